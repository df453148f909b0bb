"""Minutes of everything at once: is any answer lost, and does memory stay flat?

    python -m benchmarks.load.soak BUNDLE [--minutes 10] [--clients 8] [--swap-s 20]

Starts `florilege serve` on a copy of the bundle. Clients send, in an order drawn by a seed, photos
of three sizes, one and two at a time, broken and cut-off ones, wrong parameters, feedback, uploads
that end in the middle, and ask for classes; meanwhile the bundle gets another calibration id and
SIGHUP now and then. Each answer has to have the status that its request deserves (503 with
Retry-After where the queue is full). The exit code is 1 if any other came, if a connection broke,
or if memory grew by more than `MOST_GROWTH_MB` after the first tenth.
"""

import argparse
import http.client
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.load.server import PHOTOS, family, jpeg, port_of, serve
from florilege.calibration.record import CalibrationRecord
from florilege.models.bundle import open_bundle, replace_files

MOST_GROWTH_MB: Final = 80
BOUNDARY: Final = "between"
MULTIPART: Final = f"multipart/form-data; boundary={BOUNDARY}"
KINDS: Final = {
    **dict.fromkeys([name for name, *_ in PHOTOS[:2]], 30),
    **{PHOTOS[2][0]: 4, "two photos": 8, "broken": 8, "cut off": 8, "wrong parameter": 4},
    **{"feedback": 4, "classes": 4, "leaves": 8},
}
"""What clients send, and how often in a hundred."""


@dataclass
class Seen:
    """What came of all requests."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)  # by kind and status
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


def main() -> None:
    """Run, print what came of it, and say whether it is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--swap-s", type=float, default=20)
    arguments = parser.parse_args()
    photos = {name: jpeg(width, height, size) for name, width, height, size in PHOTOS}
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(shutil.copytree(arguments.bundle, Path(folder) / "bundle"))
        flags = ["--device", "cpu", "--threads", "2", "--feedback-store", f"{folder}/feedback"]
        flags += ["--feedback-rate", "1000000/hour"]
        process = serve(bundle, *flags)
        port, until = port_of(process), time.monotonic() + 60 * arguments.minutes
        record, memory, swaps = Seen(), list[float](), 0
        try:
            with ThreadPoolExecutor(arguments.clients) as pool:
                working = [
                    pool.submit(_client, number, port, photos, until, record)
                    for number in range(arguments.clients)
                ]
                next_swap = time.monotonic() + arguments.swap_s
                while time.monotonic() < until:
                    time.sleep(1)
                    memory.append(_resident_mb(process.pid))
                    if time.monotonic() > next_swap:
                        _recalibrate(bundle, f"soak-{swaps}")
                        process.send_signal(signal.SIGHUP)
                        swaps, next_swap = swaps + 1, time.monotonic() + arguments.swap_s
                for client in working:
                    client.result()
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    settled = memory[len(memory) // 10 :]
    growth = float(np.median(settled[-10:]) - np.median(settled[:10]))
    _print(record, f"{swaps} bundles swapped", memory, growth, code)
    sys.exit(1 if record.wrong or growth > MOST_GROWTH_MB or code else 0)


def _print(seen: Seen, done: str, memory: list[float], growth: float, code: int) -> None:
    for (kind, status), count in sorted(seen.answers.items()):
        print(f"{kind:16}{status or 'left':>6}{count:8}")
    p50, p99 = np.percentile(seen.latencies, [50, 99])
    print(
        f"{sum(seen.answers.values())} requests, {len(seen.wrong)} wrong, {done}; "
        f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms; memory {memory[0]:.0f} MB at first, "
        f"{max(memory):.0f} MB at most, {growth:+.0f} MB after the first tenth; exit code {code}"
    )
    for line in seen.wrong[:20]:
        print(f"WRONG {line}")


def _client(number: int, port: int, photos: dict[str, bytes], until: float, seen: Seen) -> None:
    generator = random.Random(number)
    connection, last = http.client.HTTPConnection("127.0.0.1", port, timeout=60), None
    for kind in _kinds(generator):
        if time.monotonic() > until:
            return
        if kind == "leaves":
            _leave(port, photos["250 KB"], generator)
            seen.answers[kind, 0] += 1
            continue
        path, body, headers, deserved = _request(kind, photos, last, generator)
        started = time.monotonic()
        try:
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            seen.wrong.append(f"{kind}: {error!r}")
            connection.close()
            continue
        seen.answers[kind, response.status] += 1
        busy = response.status == 503 and response.getheader("Retry-After") is not None
        if response.status == 200 and kind in photos:
            last = json.loads(content)
            seen.latencies.append(time.monotonic() - started)
        if response.status not in deserved and not busy:
            seen.wrong.append(f"{kind}: {response.status} {content[:200]!r}")


def _kinds(generator: random.Random) -> Iterator[str]:
    while True:
        yield from generator.choices(list(KINDS), weights=list(KINDS.values()), k=100)


def _request(
    kind: str, photos: dict[str, bytes], last: dict[str, str] | None, generator: random.Random
) -> tuple[str, bytes | None, dict[str, str], set[int]]:
    """Path, body (None for GET), headers, and the statuses that the request deserves."""
    small = photos["25 KB"]
    if kind in photos:
        return "/v1/identify?include=rollup", photos[kind], {}, {200}
    if kind == "two photos":
        part = (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
        )
        form = 2 * (part.encode() + small + b"\r\n") + f"--{BOUNDARY}--\r\n".encode()
        return "/v1/identify", form, {"Content-Type": MULTIPART}, {200}
    if kind == "broken":
        return "/v1/identify", generator.randbytes(generator.randint(0, 50_000)), {}, {415, 422}
    if kind == "cut off":
        return "/v1/identify", small[: generator.randint(4, len(small) // 2)], {}, {415, 422}
    if kind == "wrong parameter":
        return "/v1/identify?k=many", small, {}, {400}
    if kind == "feedback":
        body = {"request_id": last["id"] if last else "nobody", "class_id": "not_listed"}
        headers = {"Content-Type": "application/json"}
        return "/v1/feedback", json.dumps(body).encode(), headers, {202} if last else {404}
    return "/v1/classes?limit=20", None, {}, {200}


def _leave(port: int, photo: bytes, generator: random.Random) -> None:
    """Go away in the middle of an upload, or before the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        head = f"POST /v1/identify HTTP/1.1\r\nHost: x\r\nContent-Length: {len(photo)}\r\n\r\n"
        connection.sendall(head.encode() + photo[: generator.randint(0, len(photo))])
        time.sleep(generator.random() / 20)


def _recalibrate(path: Path, calibration_id: str) -> None:
    """The same thresholds under another id, which makes it another bundle."""
    record = CalibrationRecord.from_json(open_bundle(path).read("calibration.json"))
    record = replace(record, calibration_id=calibration_id)
    replace_files(path, {"calibration.json": record.to_json().encode()})


def _resident_mb(pid: int) -> float:
    """Of the process and all below it; what they share counts for each."""
    result = 0
    for each in family(pid):
        with suppress(OSError):
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            result += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return result / 1024


if __name__ == "__main__":
    main()

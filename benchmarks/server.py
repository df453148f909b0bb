"""How much of what the processor could answer a real server does answer, over HTTP.

Starts `florilege serve` on a bundle, posts JPEGs of three sizes over 1, 8 and 32 connections, and
compares with the sum of decoding and network, measured in the same run in a process of its own
without any server. ``ratio`` is that sum over the CPU time that the server took for a request: 1
would be a server that costs nothing. It does not suffer from other work on the machine, nor from
the client, which shares the processor; ``share`` does: it is the rate over what the cores could do.

    python -m benchmarks.server BUNDLE [--seconds 6] [--threads N]
"""

import argparse
import http.client
import io
import multiprocessing
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from models.cores import cores

CONNECTIONS = (1, 8, 32)
PHOTOS = (("25 KB", 640, 480, 25_000), ("250 KB", 1600, 1200, 250_000), ("12 MP", 4000, 3000, None))
LIMIT_S = 3.0
READY_S = 60


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one load gave.

    Attributes:
        seconds: From the first request to the last answer.
        latencies: Of the answers, ascending, seconds.
        refused: Answers other than 200.
        cpu: Seconds of CPU time that the server took meanwhile.
    """

    seconds: float
    latencies: list[float]
    refused: int
    cpu: float

    @property
    def rate(self) -> float:
        """Photos answered a second."""
        return len(self.latencies) / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of the server for each answer."""
        return 1000 * self.cpu / len(self.latencies)

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share was answered."""
        return 1000 * self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path, nargs="?", default=Path("demo/bundle"))
    parser.add_argument("--seconds", type=float, default=6.0, help="for each load; 9 of them")
    parser.add_argument("--threads", type=int, default=cores(), help="of the server")
    wanted = parser.parse_args()
    if not wanted.bundle.is_dir():
        parser.error(f"there is no bundle {wanted.bundle}; `make demo` makes one, or name another")
    photos = {name: jpeg(width, height, size) for name, width, height, size in PHOTOS}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        limits = pool.submit(sums, wanted.bundle, photos).result()
    process = serve(wanted.bundle, wanted.threads)
    try:
        table(process, photos, limits, wanted.seconds, wanted.threads)
    finally:
        process.terminate()
        process.wait(30)


def table(
    process: subprocess.Popen[str],
    photos: dict[str, bytes],
    limits: dict[str, float],
    seconds: float,
    threads: int,
) -> None:
    """Put the server under each load and print a line."""
    port = port_of(process)
    most = min(threads, cores())
    print(
        f"{threads} threads, {cores()} cores; limit: CPU ms of decoding and network by themselves"
    )
    print(f"{'photo':8}{'limit':>8}{'conn.':>7}{'photos/s':>10}{'p50 ms':>9}{'p99 ms':>9}"
          f"{'CPU ms':>9}{'ratio':>8}{'share':>8}{'refused':>9}")  # fmt: skip
    for name, photo in photos.items():
        drive(port, photo, connections=2, seconds=0.5)
        for connections in CONNECTIONS:
            load = drive(port, photo, connections=connections, seconds=seconds)
            limit = limits[name]
            share = load.rate * limit / (1000 * min(most, connections))
            print(f"{name:8}{limit:8.2f}{connections:7}{load.rate:10.1f}"
                  f"{load.percentile(0.5):9.1f}{load.percentile(0.99):9.1f}{load.cpu_ms:9.2f}"
                  f"{limit / load.cpu_ms:8.2f}{share:8.2f}{load.refused:9}")  # fmt: skip


def jpeg(width: int, height: int, size: int | None) -> bytes:
    """A made-up photo, smooth with some grain, of about ``size`` bytes."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height)), dtype=np.int16)
    grain = generator.integers(-8, 9, (height, width, 1), dtype=np.int16)
    image = Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))
    low, high = (85, 85) if size is None else (5, 98)
    while True:
        quality = (low + high + 1) // 2
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        if low >= high:
            return buffer.getvalue()
        low, high = (low, quality - 1) if buffer.tell() > (size or 0) else (quality, high)


def sums(bundle: Path, photos: dict[str, bytes]) -> dict[str, float]:
    """CPU milliseconds of decoding and network by photo, one after the other in one thread."""
    from models.bundle import open_bundle
    from models.images import load
    from models.session import Session

    opened = open_bundle(bundle)
    session = Session(opened, device="cpu", threads=1)
    found = {}
    for name, photo in photos.items():
        session.logits(load(photo, opened.preprocess)[np.newaxis])
        rounds, started, until = 0, time.process_time(), time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            session.logits(load(photo, opened.preprocess)[np.newaxis])
            rounds += 1
        found[name] = 1000 * (time.process_time() - started) / rounds
    return found


def serve(bundle: Path, threads: int, *flags: str) -> subprocess.Popen[str]:
    """Start a server on a free port."""
    command = [sys.executable, "-m", "florilege", "serve", str(bundle), "--device", "cpu"]
    return subprocess.Popen(
        [*command, "--port", "0", "--threads", str(threads), *flags],
        stderr=subprocess.PIPE,
        text=True,
    )


def port_of(process: subprocess.Popen[str]) -> int:
    """Where the server listens, once it says so; what it says later is read and dropped."""
    said = []
    until = time.monotonic() + READY_S
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        found = re.search(r"ready: http://127\.0\.0\.1:(\d+)/", line)
        if found:
            threading.Thread(target=lambda: list(process.stderr or ()), daemon=True).start()
            return int(found[1])
        if time.monotonic() > until:
            break
    raise SystemExit(f"the server did not start: {''.join(said)}")


def drive(port: int, photo: bytes, *, connections: int, seconds: float) -> Load:
    """Keep ``connections`` requests under way for some seconds."""
    before, started = cpu_seconds(port), time.perf_counter()
    until = started + seconds
    with ThreadPoolExecutor(connections) as pool:
        workers = [pool.submit(_ask, port, photo, until) for _ in range(connections)]
        results = [worker.result() for worker in workers]
    ended = time.perf_counter()
    return Load(
        seconds=ended - started,
        latencies=sorted(latency for latencies, _ in results for latency in latencies),
        refused=sum(refused for _, refused in results),
        cpu=cpu_seconds(port) - before,
    )


def _ask(port: int, photo: bytes, until: float) -> tuple[list[float], int]:
    latencies: list[float] = []
    refused = 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while (started := time.perf_counter()) < until or not latencies:
        connection.request("POST", "/v1/identify", photo)
        response = connection.getresponse()
        response.read()
        if response.status == 200:
            latencies.append(time.perf_counter() - started)
        else:
            refused += 1
            time.sleep(0.05)
    connection.close()
    return latencies, refused


def cpu_seconds(port: int) -> float:
    """CPU time of the server so far, as its metrics say."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"^process_cpu_seconds_total (\S+)$", text, re.MULTILINE)
    if found is None:
        raise SystemExit("the server's metrics hold no CPU time on this system")
    return float(found[1])


if __name__ == "__main__":
    main()

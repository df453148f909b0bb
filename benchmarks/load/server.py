"""How much of what the processor could answer a real server does answer, over HTTP.

Starts `florilege serve` on a bundle, posts JPEGs of several sizes over 1, 8 and 32 connections, and
compares with the sum of decoding and network. That ``limit`` is measured without the server, in as
many processes as there are cores, or threads if these are fewer: cores that work side by side share
caches and memory. As machines change their speed from one second to the next, the limit is measured
before and after each load, each load is repeated, and the medians are printed. ``ratio`` is the
limit over the CPU time that the server took for a request: 1 would be a server that costs nothing.
It does not suffer from other work on the machine; ``share`` does: it is the rate over what the
cores could do in the time that this client leaves them. A last line for each photo is not of
connections that ask again at once but of photos that come by chance, at 44 % of what the cores
could do, and wait where others do.

    python -m benchmarks.load.server BUNDLE [--seconds 2] [--rounds 5] [--threads N]
                              [--workers 1,2] [--connections 8,32,128] [--photos "250 KB"]
                              [--against onnxruntime,litserve,bentoml] [--device cuda]

With ``--workers`` each server runs with each number of processes. ``client`` is the share of the
machine's CPU time that the clients took, themselves several processes (`benchmarks.load.clients`).
Above a half, what a line says is theirs and not the server's: its ``share`` is left out, and the
program ends with 1.

With ``--device cuda`` the limit is that of decoding alone, ``ratio`` says how much of the server's
CPU time that is, and ``share`` is the rate over what the cores could decode or, where that is less,
over what the GPU alone does in batches of the largest size, which is printed first.

With ``--against`` others serve the same network and photos, one after the other in the same run:
``onnxruntime`` is `florilege serve --runtime onnxruntime`, and LitServe and BentoML run the network
in ONNX Runtime too, in as many processes (`benchmarks.load.peer_servers`). Each has the limit of
its runtime. Then photos go as forms to all. The path of a Python interpreter is `florilege serve`
of its environment, such as that of a free-threaded build.
"""

import argparse
import http.client
import io
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from benchmarks.load import peer_servers
from benchmarks.load.clients import Answers, Clients, Sent
from benchmarks.load.server_limit import Limit, rate_of_gpu
from florilege.cores import cores
from florilege.models.runtime import RuntimeName

CONNECTIONS = (1, 8, 32)
PHOTOS = (
    *(("25 KB", 640, 480, 25_000), ("250 KB", 1600, 1200, 250_000), ("12 MP", 4000, 3000, None)),
    ("64 px", 64, 64, None),  # not by default: of hardly more than HTTP
)
BY_CHANCE = 0.44
"""Of what the cores could do: the load at which answers should still come quickly."""
MOST_OF_CLIENTS = 0.5
"""Of the machine's CPU time: with more of it clients measure themselves."""
READY_S = 60
OURS = "florilege"


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one load gave.

    Attributes:
        seconds: From the first request to the last answer.
        latencies: Of the answers, ascending, seconds.
        refused: Answers other than 200.
        cpu: Seconds of CPU time that the server took meanwhile.
        client: The same of the client.
    """

    seconds: float
    latencies: list[float]
    refused: int
    cpu: float
    client: float

    @property
    def client_share(self) -> float:
        """The share of all cores that the client took."""
        return self.client / (self.seconds * cores())

    @property
    def rate(self) -> float:
        """Photos answered a second."""
        return len(self.latencies) / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds of the server for each answer."""
        return 1000 * self.cpu / len(self.latencies)

    def share(self, could: float, most: int, gpu: float) -> float:
        """The rate over that of ``most`` cores which each can do ``could`` photos a second.

        ``gpu`` is the rate that the network alone allows.
        """
        return self.rate / min(could * (most - self.client / self.seconds), gpu)

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share was answered."""
        return 1000 * self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path, nargs="?", default=Path("demo/bundle"))
    parser.add_argument("--seconds", type=float, default=2.0, help="for each load")
    parser.add_argument("--rounds", type=int, default=5, help="of each load")
    parser.add_argument("--threads", type=int, help="of the server; its own default otherwise")
    parser.add_argument("--workers", type=_numbers, default=(1,), help="processes of each server")
    parser.add_argument("--connections", type=_numbers, default=CONNECTIONS)
    parser.add_argument("--against", default="", help="onnxruntime, litserve, bentoml, PYTHON")
    names = [name for name, *_ in PHOTOS]
    parser.add_argument("--photos", nargs="+", choices=names, default=names[:3])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of our servers")
    arguments = parser.parse_args()
    if not arguments.bundle.is_dir():
        parser.error(
            f"there is no bundle {arguments.bundle}; `make demo` makes one, or name another"
        )
    many = min(arguments.threads or cores(), cores())
    photos = {name: jpeg(width, height, size) for name, width, height, size in PHOTOS
              if name in arguments.photos}  # fmt: skip
    print(
        f"{cores()} cores; limit: CPU ms of decoding and network by themselves, in {many} processes"
        f" at once; medians of {arguments.rounds} rounds"
    )
    gpu = math.inf
    if arguments.device == "cuda":
        gpu = rate_of_gpu(arguments.bundle, arguments.seconds)
        print(f"the GPU alone runs the network on {gpu:.0f} photos a second")
    heads = (
        "limit",
        "conn.",
        "photos/s",
        "p50 ms",
        "p99 ms",
        "CPU ms",
        "ratio",
        "share",
        "client",
        "refused",
    )
    print(f"{'server, processes':28}{'photo':8}" + "".join(f"{head:>9}" for head in heads))
    overloaded = 0
    for name in (OURS, *filter(None, arguments.against.split(","))):
        runtime: RuntimeName | None = None if name == OURS or "/" in name else "onnxruntime"
        forms, device = bool(arguments.against), arguments.device
        with (
            Limit(arguments.bundle, many, arguments.seconds, gpu, runtime=runtime) as limit,
            Clients(max(1, cores() // 2)) as clients,
        ):
            for workers in arguments.workers:
                start = started(
                    *(name, arguments.bundle, arguments.threads, workers),
                    forms=forms,
                    device=device,
                )
                with start as target:
                    bench = _Bench(target, clients, limit, arguments.seconds, arguments.rounds)
                    for photo_name, photo in photos.items():
                        overloaded += bench.table(photo_name, photo, arguments.connections)
    if overloaded:
        raise SystemExit(
            f"{overloaded} lines have no verdict: the clients took more than "
            f"{MOST_OF_CLIENTS:.0%} of the machine; send from another one, or larger photos"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server that runs.

    Attributes:
        process: It, the parent of all its processes.
        field: Name of the form's field that a photo is sent as; None: as the raw body.
    """

    name: str
    process: subprocess.Popen[str]
    port: int
    path: str
    field: str | None

    def sent(self, photo: bytes) -> Sent:
        """The whole request that brings a photo."""
        body, headers = self.request(photo)
        fields = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
        return Sent(self.port, "\r\n".join([*lines, "", ""]).encode() + body)

    def request(self, photo: bytes) -> tuple[bytes, dict[str, str]]:
        """Body and headers that bring a photo."""
        if self.field is None:
            return photo, {}
        head = f'--b\r\nContent-Disposition: form-data; name="{self.field}"; filename="a"\r\n\r\n'
        form = head.encode() + photo + b"\r\n--b--\r\n"
        return form, {"Content-Type": "multipart/form-data; boundary=b"}

    def cpu_seconds(self) -> float:
        """CPU time so far of the process and all below it."""
        used = 0
        for pid in family(self.process.pid):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used += int(words[11]) + int(words[12])
        return used / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> set[int]:
    """A process and all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(words[1])
    result = {pid}
    while more := {child for child, parent in parents.items() if parent in result} - result:
        result |= more
    return result


@contextmanager
def started(
    name: str, bundle: Path, threads: int | None, workers: int, *, forms: bool, device: str
) -> Iterator[Target]:
    """Start a server, yield it once it answers, and stop it."""
    ours = name in (OURS, "onnxruntime") or "/" in name
    if ours:
        flags = [] if threads is None else ["--threads", str(threads)]
        flags += [] if workers == 1 else ["--workers", str(workers)]
        flags += ["--runtime", name] if name == "onnxruntime" else []
        python = name if "/" in name else sys.executable
        process = serve(bundle, "--device", device, *flags, python=python)
        port, path, field = port_of(process), "/v1/identify", "images" if forms else None
    else:
        port, path, field = free_port(), "/predict", "photo"
        peer = {"PEER_BUNDLE": str(bundle), "PEER_WORKERS": str(workers)}
        process = subprocess.Popen(
            peer_servers.command(name, port),
            env={**os.environ, **peer, "OMP_NUM_THREADS": "1", "BENTOML_DO_NOT_TRACK": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
    target = Target(
        name=f"{name[-20:]}, {workers}", process=process, port=port, path=path, field=field
    )
    try:
        wait_until_it_answers(target)
        yield target
    finally:
        if ours:
            process.terminate()
        else:
            for pid in family(process.pid):  # BentoML's workers outlive their parent
                os.kill(pid, signal.SIGKILL)
        process.wait(30)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_it_answers(target: Target) -> None:
    """Send it a small photo until it does."""
    body, headers = target.request(jpeg(64, 64, None))
    until = time.monotonic() + READY_S
    while time.monotonic() < until and target.process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=READY_S)
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", target.path, body, headers)
            if connection.getresponse().status == 200:
                return
        connection.close()
        time.sleep(0.2)
    raise SystemExit(f"{target.name} does not answer")


@dataclass(frozen=True)
class _Bench:
    """Puts a server under loads."""

    target: Target
    clients: Clients
    limit: Limit
    seconds: float
    rounds: int

    def table(self, photo_name: str, photo: bytes, connections: tuple[int, ...]) -> int:
        """Print a line for each load with one photo; returns how many have no verdict."""
        limit, sent = self.limit, self.target.sent(photo)
        most, lines = min(limit.many, cores()), 0
        self._load(partial(self._drive, sent, 2))
        rate = BY_CHANCE * min(most * 1000 / limit(photo), limit.gpu)
        puts = [(str(many), partial(self._drive, sent, many)) for many in connections]
        for name, put in [*puts, (f"{BY_CHANCE:.0%}", partial(self._arrive, sent, rate))]:
            used = min(most, int(name)) if name.isdigit() else most
            loads, limits = list[Load](), [limit(photo)]
            for _ in range(self.rounds):
                loads.append(self._load(put))
                limits.append(limit(photo))
            pairs = zip(loads, limits, limits[1:], strict=False)
            rows = [_row(load, (one + two) / 2, used, limit.gpu) for load, one, two in pairs]
            middle = [median(column) for column in zip(*rows, strict=True)]
            lines += middle[7] > MOST_OF_CLIENTS
            share = "-" if middle[7] > MOST_OF_CLIENTS else f"{middle[6]:.2f}"
            print(f"{self.target.name:28}{photo_name:8}{middle[0]:9.2f}{name:>9}{middle[1]:9.1f}"
                  f"{middle[2]:9.1f}{middle[3]:9.1f}{middle[4]:9.2f}{middle[5]:9.2f}{share:>9}"
                  f"{middle[7]:9.2f}{sum(row[8] for row in rows):9.0f}", flush=True)  # fmt: skip
        return lines

    def _drive(self, sent: Sent, connections: int) -> Answers:
        until = time.perf_counter() + self.seconds
        return self.clients.drive(sent, connections=connections, until=until)

    def _arrive(self, sent: Sent, rate: float) -> Answers:
        """Photos that come by chance, ``rate`` a second on average."""
        pauses = np.random.default_rng(0).exponential(1 / rate, int(rate * self.seconds))
        return self.clients.arrive(sent, (time.perf_counter() + np.cumsum(pauses)).tolist())

    def _load(self, put: Callable[[], Answers]) -> Load:
        started, cpu = time.perf_counter(), self.target.cpu_seconds()
        answers = put()
        return Load(
            seconds=time.perf_counter() - started,
            latencies=answers.latencies,
            refused=answers.refused,
            cpu=self.target.cpu_seconds() - cpu,
            client=answers.cpu,
        )


def _row(load: Load, limit: float, used: int, gpu: float) -> tuple[float, ...]:
    return (
        limit,
        load.rate,
        load.percentile(0.5),
        load.percentile(0.99),
        load.cpu_ms,
        limit / load.cpu_ms,
        load.share(1000 / limit, used, gpu),
        load.client_share,
        load.refused,
    )


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


def serve(
    bundle: Path, *flags: str, python: str = sys.executable, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a server, on a free port unless the flags name one."""
    command = [python, "-m", "florilege", "serve", str(bundle), "--port", "0"]
    # A session of its own, as the peers have: Linux shares cores fairly between sessions
    # (sched_autogroup), so a server in that of its clients would get what these leave.
    return subprocess.Popen(
        [*command, *flags],
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def port_of(process: subprocess.Popen[str]) -> int:
    """Where the server listens, once it says so; what it says later is read and dropped."""
    lines = []
    until = time.monotonic() + READY_S
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        result = re.search(r"ready: http://127\.0\.0\.1:(\d+)/", line)
        if result:
            threading.Thread(target=lambda: list(process.stderr or ()), daemon=True).start()
            return int(result[1])
        if time.monotonic() > until:
            break
    raise SystemExit(f"the server did not start: {''.join(lines)}")


if __name__ == "__main__":
    main()

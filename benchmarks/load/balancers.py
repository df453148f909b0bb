"""Several processes behind one address: `--workers`, a load balancer, and Ray Serve.

    python -m benchmarks.load.balancers BUNDLE [--processes 2] [--connections 8,32]
                                        [--seconds 3] [--rounds 5]

`florilege serve --workers 2`, two `florilege serve` behind HAProxy (leastconn, `/readyz` asked
every half second), and two replicas of Ray Serve run side by side, one thread a process, and are
put under load in turn, as in `benchmarks.load.peer_turns`. Then two things happen to each under
eight connections: one of its processes is killed, and a new version is rolled out, by SIGHUP, by
restarting one server after the other, and by deploying it anew. ``failed`` are requests without an
answer of 200, ``longest`` is the longest wait for one, the last column the time until all answer
with the new version. Rates are left out: where other programs run, Linux shares the cores between
sessions, of which Ray has many. Prints CSV. It needs `haproxy` and the extra `ray`.
"""

import argparse
import csv
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.load.clients import Clients
from benchmarks.load.peer_turns import turn
from benchmarks.load.server import (
    PHOTOS,
    Target,
    family,
    free_port,
    jpeg,
    serve,
    wait_until_it_answers,
)
from florilege.cores import cores

EVENTS = "killed", "new version"
EVENT_CONNECTIONS = 8
SLICE_S = 2.0
PATIENCE_S = 180
SURE = 20  # new connections in a row that get the new version
HAPROXY = """
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  retries 3
  option redispatch
  option httpchk GET /readyz
  default-server check inter 500ms fall 1 rise 1
listen photos
  bind 127.0.0.1:{port}
  balance leastconn
{servers}
"""


class Bundles:
    """A link to one of two bundles, which differ by their version alone."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.link, self.version, self._folder = folder / "bundle", 0, folder
        for version in (1, 2):
            copy = Path(shutil.copytree(bundle, folder / f"version-{version}"))
            manifest = json.loads((copy / "bundle.json").read_text())
            (copy / "bundle.json").write_text(json.dumps(manifest | {"version": f"{version}"}))
        self.turn()

    def turn(self) -> Path:
        """Let the link name the other bundle, whose path is returned."""
        self.version = 2 if self.version == 1 else 1
        target = self._folder / f"version-{self.version}"
        new = self._folder / "new"
        new.symlink_to(target)
        new.rename(self.link)
        return target


@dataclass(frozen=True, kw_only=True)
class Arrangement(Target, ABC):
    """Several processes that answer at one port; ``process`` is the parent of all."""

    bundles: Bundles

    @abstractmethod
    def answering(self) -> list[int]:
        """The processes that answer photos."""

    @abstractmethod
    def roll_out(self) -> None:
        """Begin to serve the bundle that the link names."""

    def is_new(self) -> bool:
        """Whether all answer with the bundle that the link names."""
        return all(self._version() == f"{self.bundles.version}" for _ in range(SURE))

    def _version(self) -> str | None:
        content = _got(self.port, "/v1/model")
        return None if content is None else str(json.loads(content)["model"]["version"])


class Workers(Arrangement):
    """`florilege serve --workers`."""

    def answering(self) -> list[int]:
        return _named(self.process.pid, b"spawn_main")

    def roll_out(self) -> None:
        self.process.send_signal(signal.SIGHUP)


class Balanced(Arrangement):
    """Servers behind HAProxy; their parent starts a server anew wherever one ends."""

    def answering(self) -> list[int]:
        return _named(self.process.pid, b"florilege\0serve")

    def roll_out(self) -> None:
        for server in self.answering():
            others = {*self.answering()} - {server}
            os.kill(server, signal.SIGTERM)
            while Path(f"/proc/{server}").exists() or len(self.answering()) == len(others):
                time.sleep(0.1)
            (new,) = {*self.answering()} - others
            port = Path(f"/proc/{new}/cmdline").read_bytes().split(b"\0")[-2].decode()
            while _got(int(port), "/readyz") is None:
                time.sleep(0.1)
            time.sleep(1)  # HAProxy has seen it


class Replicas(Arrangement):
    """Ray Serve."""

    def answering(self) -> list[int]:
        return _named(self.process.pid, b"ray::ServeReplica")

    def roll_out(self) -> None:
        self.process.send_signal(signal.SIGHUP)


def _named(parent: int, words: bytes) -> list[int]:
    """The processes below one whose command has these words."""
    result = []
    for pid in sorted(family(parent) - {parent}):
        with suppress(OSError):
            if words in Path(f"/proc/{pid}/cmdline").read_bytes():
                result.append(pid)
    return result


def _got(port: int, path: str) -> bytes | None:
    """What is answered on a new connection; None if it is not 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.read() if response.status == 200 else None
    return None


@contextmanager
def workers(bundle: Path, folder: Path, count: int) -> Iterator[Arrangement]:
    """`florilege serve --workers`, until the block ends."""
    bundles, port = Bundles(bundle, folder), free_port()
    flags = ("--workers", str(count), "--threads", "1", "--device", "cpu", "--port", str(port))
    process = serve(bundles.link, *flags, stderr=subprocess.DEVNULL)
    with _ending(process):
        yield _answering(Workers, f"`--workers {count}`", process, port, bundles)


@contextmanager
def balanced(bundle: Path, folder: Path, count: int) -> Iterator[Arrangement]:
    """Servers behind HAProxy, until the block ends."""
    bundles, port, ports = Bundles(bundle, folder), free_port(), [free_port() for _ in range(count)]
    servers = "\n".join(f"  server s{each} 127.0.0.1:{each}" for each in ports)
    (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port, servers=servers))
    flags = "--threads 1 --device cpu --drain-notice-s 2 --port"
    command = f"{sys.executable} -m florilege serve {bundles.link} {flags}"
    loops = "\n".join(f"(while :; do {command} {each}; sleep .5; done) &" for each in ports)
    script = f"{loops}\nhaproxy -f {folder}/haproxy.cfg -db &\nwait"
    process = _started("sh", "-c", script)
    with _ending(process):
        yield _answering(Balanced, f"{count} servers, HAProxy", process, port, bundles)


@contextmanager
def replicas(bundle: Path, folder: Path, count: int) -> Iterator[Arrangement]:
    """Ray Serve, until the block ends."""
    bundles, port = Bundles(bundle, folder), free_port()
    module = "benchmarks.load.peer_servers.with_ray"
    process = _started(sys.executable, "-m", module, str(bundles.link), str(port), str(count))
    with _ending(process):
        yield _answering(Replicas, f"Ray Serve, {count} replicas", process, port, bundles)


def _started(*command: str) -> subprocess.Popen[str]:
    """A silent process in a session of its own."""
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdout=silent, stderr=silent, text=True, start_new_session=True
    )


def _answering(
    kind: type[Arrangement],
    name: str,
    process: "subprocess.Popen[str]",
    port: int,
    bundles: Bundles,
) -> Arrangement:
    one = kind(
        name=name, process=process, port=port, path="/v1/identify", field="images", bundles=bundles
    )
    wait_until_it_answers(one)
    return one


@contextmanager
def _ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process and all below it with the block."""
    try:
        yield
    finally:
        for pid in family(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)


class Event(NamedTuple):
    """What clients saw of an event."""

    failed: int
    longest: float  # seconds until an answer
    seconds: float  # until the event was over


def event(arrangement: Arrangement, clients: Clients, photo: bytes, name: str) -> Event:
    """Put an arrangement under load until an event is over, and two seconds more."""
    sent, failed, longest = arrangement.sent(photo), 0, 0.0
    with ThreadPoolExecutor(1) as pool:
        time.sleep(1)
        task = pool.submit(_killed if name == EVENTS[0] else _rolled_out, arrangement)
        over = False
        while not over:
            over = task.done()
            until = time.perf_counter() + SLICE_S
            answers = clients.drive(sent, connections=EVENT_CONNECTIONS, until=until)
            failed += answers.refused
            longest = max(longest, *answers.latencies)
        return Event(failed, longest, task.result())


def _killed(arrangement: Arrangement) -> float:
    time.sleep(SLICE_S)
    before = arrangement.answering()
    began = time.perf_counter()
    os.kill(before[0], signal.SIGKILL)
    _wait(lambda: len({*arrangement.answering()} - {before[0]}) == len(before))
    _wait(lambda: arrangement._version() is not None)
    return time.perf_counter() - began


def _rolled_out(arrangement: Arrangement) -> float:
    time.sleep(SLICE_S)
    arrangement.bundles.turn()
    began = time.perf_counter()
    arrangement.roll_out()
    _wait(arrangement.is_new)
    return time.perf_counter() - began


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("it does not end")
        time.sleep(0.1)


def main() -> None:
    """Start all, let them take turns, let things happen, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--connections", default="8,32")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    _, width, height, size = next(row for row in PHOTOS if row[0] == "250 KB")
    photo, many = (
        jpeg(width, height, size),
        [int(text) for text in arguments.connections.split(",")],
    )
    with ExitStack() as stack:
        clients = stack.enter_context(Clients(max(1, cores() // 2)))
        arrangements = []
        for start in (workers, balanced, replicas):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            started = start(arguments.bundle.resolve(), folder, arguments.processes)
            arrangements.append(stack.enter_context(started))
            print("started", arrangements[-1].name, file=sys.stderr, flush=True)
        turns = [
            [[turn(one, clients, photo, count, arguments.seconds) for one in arrangements]
             for _ in range(arguments.rounds + 1)][1:]  # the first one warms up
            for count in many
        ]  # fmt: skip
        table = csv.writer(sys.stdout, lineterminator="\n")
        heads = [f"CPU ms a photo, {count} connections" for count in many]
        events = [f"{name}: {what}" for name in EVENTS for what in ("failed", "longest, s")]
        table.writerow(("processes", *heads, *events, "all new, s"))
        for number, one in enumerate(arrangements):
            costs = [median(row[number].cpu_ms for row in rounds) for rounds in turns]
            cells = [one.name, *(f"{cost:.1f}" for cost in costs)]
            for name in EVENTS:
                seen = event(one, clients, photo, name)
                cells += [str(seen.failed), f"{seen.longest:.1f}"]
            cells.append(f"{seen.seconds:.1f}")
            table.writerow(cells)
            sys.stdout.flush()


if __name__ == "__main__":
    main()

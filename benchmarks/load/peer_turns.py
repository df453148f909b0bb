"""Photos a second and CPU time of several servers that all run, in short turns, over HTTP.

    python -m benchmarks.load.peer_turns BUNDLE [--peers litserve] [--workers 1,2]
                                         [--connections 8,32] [--seconds 1] [--rounds 5]
                                         [--busy 2]

`benchmarks.load.server` measures one server after the other, and a machine with other work changes
from minute to minute. Here `florilege serve` and its peers, each with each number of processes,
wait side by side and are put under load in turn; servers without requests cost next to nothing.
``--busy`` starts so many programs that only count, each in a session of its own, as other users'
would be. Photos go as forms to all. Medians are printed as CSV; ``beside`` is the rate over that of
the best florilege of the same turn, the median of the turns.
"""

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.load.clients import Clients
from benchmarks.load.server import OURS, PHOTOS, Target, jpeg, started
from florilege.cores import cores

SIZES = ("64 px", "250 KB")
COLUMNS = ("photo", "connections", "server, processes", "photos/s", "CPU ms a photo", "beside")


class Turn(NamedTuple):
    """What one server did in one turn."""

    rate: float  # photos a second
    cpu_ms: float  # of the server, a photo


def main() -> None:
    """Start all servers, let them take turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--peers", default="litserve")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--connections", default="8,32")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="other programs that run meanwhile")
    arguments = parser.parse_args()
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    with ExitStack() as stack:
        clients = stack.enter_context(Clients(max(1, cores() // 2)))
        targets = [
            stack.enter_context(
                started(name, arguments.bundle, None, int(count), forms=True, device="cpu")
            )
            for name in (OURS, *filter(None, arguments.peers.split(",")))
            for count in arguments.workers.split(",")
        ]
        for _ in range(arguments.busy):
            stack.enter_context(busy_program())
        for photo_name, width, height, size in PHOTOS:
            if photo_name not in SIZES:
                continue
            photo = jpeg(width, height, size)
            for connections in map(int, arguments.connections.split(",")):
                turns = [
                    [
                        turn(target, clients, photo, connections, arguments.seconds)
                        for target in targets
                    ]
                    for _ in range(arguments.rounds + 1)
                ][1:]  # the first one warms up
                for row in rows(targets, turns):
                    table.writerow((photo_name, connections, *row))
                sys.stdout.flush()


@contextmanager
def busy_program() -> Iterator[None]:
    """Another program that keeps a core busy."""
    loop = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(loop, start_new_session=True) as process:
        try:
            yield
        finally:
            process.kill()


def turn(target: Target, clients: Clients, photo: bytes, connections: int, seconds: float) -> Turn:
    """Put a server under load for some seconds."""
    began, cpu = time.perf_counter(), target.cpu_seconds()
    answers = clients.drive(target.sent(photo), connections=connections, until=began + seconds)
    answered = max(1, len(answers.latencies))
    took = time.perf_counter() - began
    return Turn(answered / took, 1000 * (target.cpu_seconds() - cpu) / answered)


def rows(targets: list[Target], turns: list[list[Turn]]) -> list[tuple[str, str, str, str]]:
    """The cells of each server."""
    ours = [number for number, target in enumerate(targets) if target.name.startswith(OURS)]
    cells = []
    for number, target in enumerate(targets):
        own = [results[number] for results in turns]
        best = [max(results[other].rate for other in ours) for results in turns]
        beside = median(one.rate / rate for one, rate in zip(own, best, strict=True))
        rate, cpu_ms = median(one.rate for one in own), median(one.cpu_ms for one in own)
        cells.append((target.name, f"{rate:.0f}", f"{cpu_ms:.2f}", f"{beside:.2f}"))
    return cells


if __name__ == "__main__":
    main()

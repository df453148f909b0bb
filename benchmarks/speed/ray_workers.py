"""What a photo costs when `predict --ray` spreads photos over 1, 2 and 4 workers.

    python -m benchmarks.speed.ray_workers BUNDLE PHOTOS... [--photos 1200] [--workers 1,2,4]
                        [--rounds 3]

Processor seconds are those between the first fifth of the photos and the last tenth: starting Ray
is not in them. Those of the workers are the work; the others are the process that writes and Ray's
own, which also costs when nothing is done. On a machine with fewer cores than workers they alone
can tell whether more workers do less work for each second of a core. `local` is the command without
Ray, in one thread. Numbers are medians of the rounds, taken in turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from florilege.server.predict.prediction import find_photos

TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Of one photo, in ms."""

    workers: float  # processor time
    others: float
    clock: float


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("paths", nargs="+", help="photos, folders or manifests")
    parser.add_argument("--photos", type=int, default=1_200, help="repeated where there are fewer")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    listed, _ = find_photos(arguments.paths, [])
    photos = list(islice(cycle(str(one.photos[0].resolve()) for one in listed), arguments.photos))
    ways = {"local": ("--threads", "1")} | {
        number: ("--ray", "--workers", number) for number in arguments.workers.split(",")
    }
    results: dict[str, list[Cost]] = {way: [] for way in ways}
    for _ in range(arguments.rounds):
        for way, flags in ways.items():
            results[way].append(_cost(arguments.bundle, photos, flags))
            print(way, *(f"{part:.2f}" for part in results[way][-1]), file=sys.stderr, flush=True)
    middle = {way: [statistics.median(part) for part in zip(*costs, strict=True)]
              for way, costs in results.items()}  # fmt: skip
    one = middle[arguments.workers.split(",")[0]]
    print("| workers | worker, ms a photo | others | clock | per worker's second | per second |")
    print("|---|---|---|---|---|---|")
    for way, (workers, others, clock) in middle.items():
        shares = one[0] / workers, (one[0] + one[1]) / (workers + others)
        print(f"| {way} | {workers:.2f} | {others:.2f} | {clock:.2f} | {shares[0]:.3f} | "
              f"{shares[1]:.3f} |")  # fmt: skip


def _cost(bundle: Path, photos: list[str], flags: tuple[str, ...]) -> Cost:
    """Of one run, from its journal and the processor times of its processes."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "sets.csv"
        command = [sys.executable, "-m", "florilege", "predict", str(bundle), "-"]
        process = subprocess.Popen(
            [*command, "-o", str(output), *flags],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write("\n".join(photos))
        process.stdin.close()
        marks = [_mark(process, output, round(share * len(photos))) for share in (0.2, 0.9)]
        assert process.stderr is not None
        result = process.stderr.read()
        if process.wait() not in (0, 6):
            raise SystemExit(result)
    then, now = marks
    number = now.photos - then.photos
    return Cost(*(1000 * (now[part] - then[part]) / number for part in (1, 2, 3)))


class Mark(NamedTuple):
    """How far a run has come."""

    photos: int
    workers: float  # processor seconds
    others: float
    clock: float


def _mark(process: subprocess.Popen[str], output: Path, photos: int) -> Mark:
    """How far it has come once so many photos are done."""
    journal = output.with_name(f"{output.name}.run")
    while process.poll() is None:
        result = journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0
        if result >= photos:
            used = dict(_used(process.pid))
            workers = sum(used[number] for number in used if _is_worker(number)) or used.pop(
                process.pid
            )
            others = sum(seconds for number, seconds in used.items() if not _is_worker(number))
            return Mark(result, workers, others, time.monotonic())
        time.sleep(0.1)
    raise SystemExit("the run ended too soon")


def _is_worker(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().startswith(b"ray::MapWorker")
    except OSError:
        return False


def _used(root: int) -> Iterator[tuple[int, float]]:
    """Processor seconds of a process and of all below it."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        number = int(each.parent.name)
        parents[number] = int(fields[1])
        seconds[number] = (int(fields[11]) + int(fields[12])) / TICKS
    for number in parents:
        above = number
        while above not in (root, 0):
            above = parents.get(above, 0)
        if above == root:
            yield number, seconds[number]


if __name__ == "__main__":
    main()

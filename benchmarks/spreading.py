"""What a photo costs when `predict --ray` spreads photos over 1, 2 and 4 workers.

    python -m benchmarks.spreading BUNDLE PHOTOS... [--photos 1200] [--workers 1,2,4] [--rounds 3]

Processor seconds are those of all processes, Ray's own included, between the first fifth of the
photos and the last tenth: starting Ray is not in them. On a machine with fewer cores than workers
they alone can tell whether more workers do less work for each second of a core. `local` is the
command without Ray, in one thread. Numbers are medians of the rounds, taken in turns.
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

from server.predict.inputs import find_photos

TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Of one photo, in ms."""

    processor: float
    clock: float


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("paths", nargs="+", help="photos, folders or manifests")
    parser.add_argument("--photos", type=int, default=1_200, help="repeated where there are fewer")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    listed, _ = find_photos(wanted.paths, [])
    photos = list(islice(cycle(str(one.photos[0].resolve()) for one in listed), wanted.photos))
    ways = {"local": ("--threads", "1")} | {
        number: ("--ray", "--workers", number) for number in wanted.workers.split(",")
    }
    found: dict[str, list[Cost]] = {way: [] for way in ways}
    for _ in range(wanted.rounds):
        for way, flags in ways.items():
            found[way].append(_cost(wanted.bundle, photos, flags))
            print(f"{way}: {found[way][-1].processor:.2f} ms", file=sys.stderr, flush=True)
    one = next(way for way in ways if way != "local")
    base = statistics.median(cost.processor for cost in found[one])
    print("| workers | processor, ms a photo | photos per processor second, of one worker's | "
          "clock, ms a photo |\n|---|---|---|---|")  # fmt: skip
    for way, costs in found.items():
        processor = statistics.median(cost.processor for cost in costs)
        clock = statistics.median(cost.clock for cost in costs)
        print(f"| {way} | {processor:.2f} | {base / processor:.3f} | {clock:.2f} |")


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
        said = process.stderr.read()
        if process.wait() not in (0, 6):
            raise SystemExit(said)
    (photos_then, used_then, then), (photos_now, used_now, now) = marks
    number = photos_now - photos_then
    return Cost(1000 * (used_now - used_then) / number, 1000 * (now - then) / number)


def _mark(process: subprocess.Popen[str], output: Path, photos: int) -> tuple[int, float, float]:
    """Photos, processor seconds and time, once so many photos are done."""
    used = dict[int, float]()
    journal = output.with_name(f"{output.name}.run")
    while process.poll() is None:
        used |= dict(_used(process.pid))
        done = journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0
        if done >= photos:
            return done, sum(used.values()), time.monotonic()
        time.sleep(0.1)
    raise SystemExit("the run ended too soon")


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

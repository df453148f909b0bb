"""How much of what the processor could answer `predict` does answer, and what a kill costs it.

    python -m benchmarks.batches BUNDLE PHOTOS... [--photos 2000] [--threads N]

For each format the CPU time of decoding and of the network by themselves is measured first, with as
many threads in a process of its own; then `predict` answers the same photos. What its process takes
to start (`predict` of one photo) is taken off. ``ratio`` is decoding and network over the CPU time
of `predict`: 1 would be a command that costs nothing. ``decode`` is decoding over what `predict`
takes beside the network: the share of the decode limit of the cores that it reaches where the
network costs them nothing, as on a GPU. Photos per second are by the clock; the others are ratios
of CPU time inside one minute, which other work on the machine moves less.

At last a run is killed in the middle (SIGKILL) and resumed; its file is compared with the file of
the run that nobody interrupted.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from models.cores import cores
from server.predict.inputs import find_photos

FORMATS = ("jsonl", "csv", "parquet")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of one process, by the clock and of CPU time."""

    seconds: float
    cpu: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("paths", nargs="+", help="photos, folders or manifests")
    parser.add_argument("--photos", type=int, default=2_000, help="repeated where there are fewer")
    parser.add_argument("--threads", type=int, default=cores())
    wanted = parser.parse_args()
    listed, _ = find_photos(wanted.paths, [])
    photos = list(islice(cycle(str(one.photos[0]) for one in listed), wanted.photos))
    print(f"{len(photos):,} photos, {wanted.threads} threads, {cores()} cores\n")
    with tempfile.TemporaryDirectory() as folder:
        _formats(wanted.bundle, photos, wanted.threads, Path(folder))
        _killed(wanted.bundle, photos, wanted.threads, Path(folder))


def _formats(bundle: Path, photos: list[str], threads: int, to: Path) -> None:
    print("| format | photos/s | decoding, ms | network, ms | predict, ms | ratio | decode |")
    print("|---|---|---|---|---|---|---|")
    start = _ended(_start(bundle, photos[:1], threads, to / "one.csv")).cpu
    for form in FORMATS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            decode, forward = pool.submit(limits, bundle, photos, threads).result()
        cost = _ended(_start(bundle, photos, threads, to / f"sets.{form}"))
        each = (cost.cpu - start) / len(photos)
        shown = " | ".join(f"{1000 * seconds:.2f}" for seconds in (decode, forward, each))
        print(
            f"| {form} | {len(photos) / cost.seconds:.1f} | {shown} | "
            f"{(decode + forward) / each:.2f} | {decode / (each - forward):.2f} |",
            flush=True,
        )


def limits(bundle: Path, photos: list[str], threads: int) -> tuple[float, float]:
    """CPU seconds a photo of decoding, and of the network, by so many threads at once."""
    from models.images import load
    from server.answers.pipeline import open_pipeline

    pipeline = open_pipeline(bundle, device="cpu")
    preprocess, features = pipeline.bundle.preprocess, pipeline.reference is not None

    def work(photo: str) -> tuple[float, float]:
        started = time.thread_time()
        pixels = load(Path(photo).read_bytes(), preprocess)
        decoded = time.thread_time()
        pipeline.session.outputs(pixels[np.newaxis], features=features)
        return decoded - started, time.thread_time() - decoded

    work(photos[0])
    with ThreadPoolExecutor(threads) as pool:
        decode, forward = np.mean(list(pool.map(work, photos)), axis=0)
    return float(decode), float(forward)


def _killed(bundle: Path, photos: list[str], threads: int, to: Path) -> None:
    for form in FORMATS:
        output = to / f"killed.{form}"
        process = _start(bundle, photos, threads, output)
        while _finished(output) < len(photos) // 2:
            time.sleep(0.02)
        process.kill()
        process.wait()
        kept = _finished(output)
        cost = _ended(_start(bundle, photos, threads, output, "--resume"))
        same = output.read_bytes() == (to / f"sets.{form}").read_bytes()
        print(
            f"\n{form}: killed after {kept:,} photos, resumed in {cost.seconds:.1f} s "
            f"({cost.cpu:.1f} s of CPU time); {'the same bytes' if same else 'OTHER BYTES'}"
        )


def _finished(output: Path) -> int:
    journal = output.with_name(f"{output.name}.run")
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def _start(
    bundle: Path, photos: list[str], threads: int, output: Path, *more: str
) -> subprocess.Popen[str]:
    words = ["predict", str(bundle), "-", "--device", "cpu", "-o", str(output), *more]
    words += ["--threads", str(threads)]
    process = subprocess.Popen(
        [sys.executable, "-m", "florilege", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("\n".join(photos))
    process.stdin.close()
    return process


def _ended(process: subprocess.Popen[str]) -> Cost:
    """Wait for a process; what it took since now."""
    begun = time.monotonic()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"predict ended with exit code {process.returncode}")
    return Cost(seconds=time.monotonic() - begun, cpu=used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    main()

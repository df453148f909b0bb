"""How much of what the processor could answer `predict` does answer, and what a kill costs it.

    python -m benchmarks.speed.predict BUNDLE PHOTOS... [--photos 2000] [--width 1600]
                                [--quality 85] [--threads N] [--rounds 8]

In one process and in turns: the CPU time of decoding by itself, of decoding and network, of
`predict` with its file, and of `predict` with a network that costs nothing (``fed``), as where a
GPU has it, for the same 300 photos with as many threads. Other work on the machine only ever adds
to these, so the least of each is printed, and two ratios, which would be 1 for a command that costs
nothing: ``ratio`` is decoding and network over `predict`, ``decode`` is decoding over ``fed``. The
last column says how many photos a second each core decodes and answers so. Photos per second are by
the clock, in the best turn.

``--width`` makes JPEG files of the photos first, so many pixels wide: those of a phone are larger
than those of most data sets, and take longer to decode.

At last a run is killed in the middle (SIGKILL) and resumed; its file is compared with the file of
the run that nobody interrupted.
"""

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from florilege.cores import cores
from florilege.models.images import Header, load, read_header
from florilege.models.session import Outputs
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.predict.batch_run import predict_batch
from florilege.server.predict.batch_settings import BatchSettings
from florilege.server.predict.prediction import Observation, find_photos

FORMATS = ("jsonl", "csv", "parquet")
BLOCK = 300
Pixels = NDArray[np.uint8]


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
    parser.add_argument("--width", type=int, help="of the photos, in pixels; default: as they are")
    parser.add_argument("--quality", type=int, default=85, help="of these JPEG files")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    listed, _ = find_photos(arguments.paths, [])
    paths = [one.photos[0] for one in listed]
    with tempfile.TemporaryDirectory() as folder:
        if arguments.width is not None:
            size, quality, to = arguments.width, arguments.quality, Path(folder)
            paths = [_resized(path, size, quality, to) for path in paths[:BLOCK]]
        photos = list(islice(cycle(map(str, paths)), arguments.photos))
        size = np.mean([Path(photo).stat().st_size for photo in photos[:BLOCK]]) / 1000
        threads = f"{arguments.threads} threads, {cores()} cores"
        print(f"{len(photos):,} photos of {size:.0f} KB, {threads}\n")
        _formats(arguments.bundle, photos, arguments.threads, arguments.rounds, Path(folder))
        _killed(arguments.bundle, photos, arguments.threads, Path(folder))


def _resized(photo: Path, width: int, quality: int, to: Path) -> Path:
    target = to / f"{hashlib.sha256(bytes(photo)).hexdigest()}.jpg"
    with Image.open(photo) as image:
        rgb = image.convert("RGB")
        rgb.resize((width, width * rgb.height // rgb.width)).save(target, quality=quality)
    return target


def _formats(bundle: Path, photos: list[str], threads: int, rounds: int, to: Path) -> None:
    heads = ("format", "photos/s", "decoding, ms", "network, ms", "predict, ms", "fed, ms")
    print(f"| {' | '.join((*heads, 'ratio', 'decode', 'fed, photos/s a core'))} |")
    print(9 * "|---" + "|")
    pipeline = open_pipeline(bundle, device="cpu")
    for form in FORMATS:
        turns = [
            _turn(pipeline, photos[:BLOCK], threads, to / f"turn.{form}") for _ in range(rounds)
        ]
        seconds, decode, both, predict, fed = np.min(turns, axis=0)
        view = " | ".join(f"{1000 * each:.2f}" for each in (decode, both - decode, predict, fed))
        print(
            f"| {form} | {1 / seconds:.1f} | {view} | {both / predict:.2f} "
            f"| {decode / fed:.2f} | {1 / fed:.0f} |",
            flush=True,
        )


class _Elsewhere:
    """Looks at photos as a session whose network runs elsewhere, and always finds the same."""

    def __init__(self, pipeline: Pipeline, photo: Path) -> None:
        self.provider, self.dimensions = pipeline.session.provider, pipeline.session.dimensions
        self._preprocess = pipeline.bundle.preprocess
        self._found = pipeline.outputs(photo.read_bytes())

    def infer(
        self, photo: Header, *, max_pixels: int, features: bool = False
    ) -> tuple[Outputs, float]:
        load(photo, self._preprocess, max_pixels=max_pixels)
        return self._found, 0.0


def _turn(
    pipeline: Pipeline, photos: list[str], threads: int, output: Path
) -> tuple[float, float, float, float, float]:
    """Seconds a photo: `predict` by the clock; CPU time of decoding, both, `predict`, fed."""
    preprocess, features = pipeline.bundle.preprocess, pipeline.reference is not None

    def decode(photo: str) -> Pixels:
        return load(Path(photo).read_bytes(), preprocess)

    def both(photo: str) -> None:
        header = read_header(Path(photo).read_bytes())
        pipeline.session.infer(header, max_pixels=pipeline.max_pixels, features=features)

    def spread(work: Callable[[str], object]) -> float:
        before = time.process_time()
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(work, photos):
                pass
        return (time.process_time() - before) / len(photos)

    def predict(with_: Pipeline) -> tuple[float, float]:
        observations = [Observation((Path(photo),)) for photo in photos]
        before, begun = time.process_time(), time.perf_counter()
        with redirect_stderr(io.StringIO()):
            predict_batch(
                with_, observations, IdentifyQuery(), BatchSettings(output=output, threads=threads)
            )
        used = time.process_time() - before
        return (time.perf_counter() - begun) / len(photos), used / len(photos)

    limits = spread(decode), spread(both)
    elsewhere: Any = _Elsewhere(pipeline, Path(photos[0]))
    seconds, used = predict(pipeline)
    return (seconds, *limits, used, predict(replace(pipeline, session=elsewhere))[1])


def _killed(bundle: Path, photos: list[str], threads: int, to: Path) -> None:
    for form in FORMATS:
        output = to / f"killed.{form}"
        process = _start(bundle, photos, threads, output)
        while _finished(output) < len(photos) // 2:
            time.sleep(0.02)
        process.kill()
        process.wait()
        remaining = _finished(output)
        cost = _ended(_start(bundle, photos, threads, output, "--resume"))
        whole = to / f"whole.{form}"
        straight = _ended(_start(bundle, photos, threads, whole))
        same = output.read_bytes() == whole.read_bytes()
        print(
            f"\n{form}: killed after {remaining:,} photos, resumed in {cost.seconds:.1f} s "
            f"({cost.cpu:.1f} s of CPU time); uninterrupted {straight.seconds:.1f} s "
            f"({straight.cpu:.1f} s); {'the same bytes' if same else 'OTHER BYTES'}"
        )


def _finished(output: Path) -> int:
    part = output.with_name(f"{output.name}.part")
    return part.read_bytes().count(b"\n") if part.exists() else 0


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

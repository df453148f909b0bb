"""Time and peak memory of the whole pipeline at the sizes of real data sets.

    python -m benchmarks.speed.scale BACKBONE --classes 1081 --val 31000 [--test 2000]
                        [--image-size 32]

Photos are small pictures of random content, the network is one that nobody has trained: what takes
time and memory is the same. Prints a Markdown table with a row for each command, run in a process
of its own: seconds, processor seconds and peak memory. The row `one photo` is `predict` of a single
photo, which is the network and the libraries alone; what a command holds beyond it is its own.
`--validate` also trains for one epoch, to measure the validation that follows it.
"""

import argparse
import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from florilege.calibration.record.record_file import read_record
from florilege.models.bundle import CALIBRATION, REFERENCE, open_bundle
from florilege.server.process import bind

MIB = 2**20
SIDE = 32
TRAIN, PREDICTED, POSTED = 2_000, 1_000, 200
READY_S = 120


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one process took: seconds, processor seconds, and its largest memory in MiB."""

    seconds: float
    cpu: float
    peak: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("backbone")
    parser.add_argument("--classes", type=int, default=1_081)
    parser.add_argument("--val", type=int, default=31_000)
    parser.add_argument("--test", type=int, default=2_000)
    parser.add_argument("--image-size", type=int, default=SIDE)
    parser.add_argument("--validate", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _measure(arguments, Path(folder))


def _measure(given: argparse.Namespace, folder: Path) -> None:
    counts = {"train": max(TRAIN, given.classes), "val": given.val, "test": given.test}
    data = _write_photos(folder / "photos", given.classes, counts)
    run, bundle = folder / "run", folder / "bundle"
    train = [
        *("train", "--data", data, "--backbone", given.backbone, "--loss", "cross_entropy"),
        *("--image-size", given.image_size, "--device", "cpu"),
    ]
    some = [folder / "photos" / f"test-{row}.png" for row in range(min(PREDICTED, given.test))]
    rows = f"{given.val:,}"
    print(f"{given.backbone}, {given.classes:,} classes, pictures of {given.image_size} px\n")
    print("| step | s | processor s | peak MiB |\n|---|---|---|---|")
    if given.validate:
        _row(f"train, 1 epoch, and validate {rows}", [*train, "--out", folder / "v", "--epochs", 1])
    _row("train, 0 epochs", [*train, "--out", run, "--epochs", 0])
    _row("export", ["export", run, "--out", bundle])
    _row(f"calibrate, {rows} photos", ["calibrate", bundle, "--data", data])
    _row("one photo", ["predict", bundle, some[0]])
    evaluate = ["evaluate", bundle, "--data", data]
    _row(f"evaluate, {given.test:,} photos", evaluate)
    page = folder / "page.html"
    _row(f"evaluate --report, {given.test:,} photos", [*evaluate, "--report", page])
    out = folder / "sets.jsonl"
    _row(f"predict, {len(some):,} photos", ["predict", bundle, *some, "-o", out])
    cost, latencies = _serve(bundle, some[:POSTED])
    print(f"| serve, {len(latencies)} requests | {_figures(cost)} |")
    opened = open_bundle(bundle)
    tables = len(read_record(opened).tables)
    sizes = {name: (bundle / name).stat().st_size / MIB for name in (CALIBRATION, REFERENCE)}
    middle, slow = np.quantile(latencies, (0.5, 0.99)) * 1000
    print(
        f"\nAn answer takes {middle:.1f} ms (median; p99 {slow:.1f}). `calibration.json` holds "
        f"{tables} tables in {sizes[CALIBRATION]:.2f} MiB, `reference.npy` "
        f"{sizes[REFERENCE]:.2f} MiB, the page of `evaluate --report` has "
        f"{page.stat().st_size / MIB:.2f} MiB."
    )


def _write_photos(folder: Path, classes: int, counts: dict[str, int]) -> Path:
    """A manifest of pictures that all differ."""
    random = np.random.default_rng(0)
    folder.mkdir()
    lines = ["path,class_id,split"]
    for split, count in counts.items():
        for row in range(count):
            picture = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            picture //= random.integers(1, 6, 3, dtype=np.uint8)  # not all alike to a network
            path = folder / f"{split}-{row}.png"
            Image.fromarray(picture).save(path, compress_level=0)
            lines.append(f"{path.name},c{row % classes},{split}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    return folder / "photos.csv"


def _row(step: str, words: list[object]) -> None:
    begun = time.monotonic()
    process = _start(words)
    print(f"| {step} | {_figures(_ended(process, begun))} |", flush=True)
    if process.returncode:
        raise SystemExit(f"{step} ended with exit code {process.returncode}")


def _start(words: list[object]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "florilege", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _ended(process: subprocess.Popen[bytes], begun: float) -> Cost:
    """Wait for a process; what it took."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(
        seconds=time.monotonic() - begun,
        cpu=used.ru_utime + used.ru_stime,
        peak=used.ru_maxrss / (MIB if sys.platform == "darwin" else 1024),
    )


def _figures(cost: Cost) -> str:
    return f"{cost.seconds:.1f} | {cost.cpu:.1f} | {cost.peak:,.0f}"


def _serve(bundle: Path, photos: list[Path]) -> tuple[Cost, list[float]]:
    """Post photos one after the other; what the server took, and seconds until each answer."""
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    begun = time.monotonic()
    process = _start(["serve", bundle, "--port", port])
    try:
        with _connected(port) as connection:
            latencies = [_post(connection, photo.read_bytes()) for photo in photos]
    finally:
        process.terminate()
        cost = _ended(process, begun)
    return cost, latencies


@contextmanager
def _connected(port: int) -> Iterator[http.client.HTTPConnection]:
    """A connection to the server, once it is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_S)
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().read() and connection.sock is not None:
                break
        except OSError:
            connection.close()
            time.sleep(0.1)
    try:
        yield connection
    finally:
        connection.close()


def _post(connection: http.client.HTTPConnection, photo: bytes) -> float:
    begun = time.perf_counter()
    connection.request("POST", "/v1/identify", photo, {"content-type": "image/png"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"the server answered {answer.status}")
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()

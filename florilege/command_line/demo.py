"""``florilege demo``: train, calibrate and serve a small model, of the flora or of real photos.

The photos are Oxford Flowers 102: M.-E. Nilsback and A. Zisserman, "Automated flower classification
over a large number of classes", ICVGIP 2008. The published train and val hold ten photos of each
species, but the published test is as unbalanced as the web. Set sizes on val and test would differ,
so new splits are drawn.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import tarfile
import time
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, Literal
from urllib.request import Request, urlopen

import typer

from florilege.command_line.fit_cli import FitPlan
from florilege.data.cli import PRETRAINED as NETWORK
from florilege.data.cli import pretrained_flags
from florilege.data.manifests import draw_splits
from florilege.data.options import parse_flora_options
from florilege.data.sources import open_dataset
from florilege.errors import DataError, FlorilegeError, UsageError
from florilege.tables import write_table
from florilege.terminal import STEP, conclude, new_table, print_result, print_table, progress, say

app = typer.Typer(add_completion=False, help="Train and serve a small model.")

_SMALL: Final = "flora:train=16000,val=2000,test=2000"
_SMALL_EPOCHS: Final = 3
_SMALL_DURATION: Final = (
    ": about a minute on two idle cores. It is a small model for a first look; --full trains a "
    "better one"
)
_FULL: Final = "flora:train=80000"
_FULL_DURATION: Final = ": about four minutes on two idle cores"
_ANSWERS: Final = 10  # photos that are sent to the server
_LISTED: Final = 6  # most classes of a set to print
_PRETRAINED: Final = "pretrained"


@app.command("demo")
def _demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the run, the bundle and photos.")] = Path(
        "demo"
    ),
    port: Annotated[int, typer.Option(help="Port of the page; 0 picks a free one.")] = 8000,
    once: Annotated[bool, typer.Option("--once", help="Exit after the answers.")] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Five times as many drawings: better sets, four minutes."),
    ] = False,
    data: Annotated[
        str | None, typer.Option(help="Another flora, such as flora:train=4000,seed=3.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training pictures; fewer do worse.")
    ] = None,
    photos: Annotated[
        Literal["flowers102"] | None,
        typer.Option(help="Real photos to download instead of the flora: Oxford Flowers 102."),
    ] = None,
    backbone: Annotated[
        str, typer.Option(help="Pretrained network for photos, as in `train`.")
    ] = NETWORK,
    weights: Annotated[
        str, typer.Option(help="Its weights: pretrained (downloaded), or a file.")
    ] = _PRETRAINED,
    yes: Annotated[bool, typer.Option("--yes", help="Download without asking.")] = False,
) -> None:
    """Train, calibrate and serve a small model on the built-in flora, or on photos of flowers.

    The flora's true P(species | picture) is known, so the table shows how far the model is from
    the best possible model. A second run continues where the first stopped, or serves its bundle;
    delete the folder to start again.
    """
    from florilege.server.process import bind  # here, because --help does without

    with bind("127.0.0.1", port) as listener:  # an occupied port is an error now, not in a minute
        port = listener.getsockname()[1]  # of 0, a free one
    started, print_figures = time.monotonic(), _flora_table
    if photos is not None:
        out, print_figures = out / photos, _photo_table
        flags = [*pretrained_flags(backbone), "--weights", weights]
        data = str(_flowers102(out / "data", backbone, weights, ask=not yes))
    else:
        flags, duration = ["--recipe", "demo"], ""
        if full:
            data, out, duration = _FULL, out / "full", _FULL_DURATION
        elif data is None:
            data, epochs, duration = _SMALL, epochs or _SMALL_EPOCHS, _SMALL_DURATION
        _announce(data, duration)
    flags += [] if epochs is None else ["--epochs", str(epochs)]
    plan = FitPlan(source=data, out=out, training=flags, evaluated=False)
    plan.carry_out()
    say(f"{time.monotonic() - started:.0f} s from pictures to thresholds")
    server = subprocess.Popen(
        [sys.executable, "-m", "florilege", "serve", str(plan.bundle), "--port", str(port)],
        env={**os.environ, STEP: "1"},
    )
    try:
        _demo_answers(f"http://127.0.0.1:{port}", server, data, out / "photos")
        print_figures(plan.bundle, data)
        if not once:
            say(f"the bundle is {plan.bundle}; pictures to try are in {out / 'photos'}")
            say(f"next: open http://127.0.0.1:{port}/ and drop one there; Ctrl-C stops the server")
            server.wait()
    except KeyboardInterrupt:
        pass  # the last lines say how to serve it again
    finally:
        server.terminate()
        server.wait()
    conclude(f"the bundle is {plan.bundle}", then=[("serve", plan.bundle)])


def _announce(data: str, duration: str) -> None:
    """What will happen and how long it takes, before anything does."""
    say(
        f"{parse_flora_options(data).train:,} drawings of 85 invented species train a small "
        f"network, others set its thresholds, then it answers ten new ones and its page opens"
        f"{duration}. Ctrl-C stops; the same command continues"
    )


def _flowers102(folder: Path, backbone: str, weights: str, *, ask: bool) -> Path:
    """The manifest of the photos in ``folder``; announces a download and asks before it."""
    manifest = folder / _MANIFEST
    if manifest.is_file():
        return manifest
    # Here, because torch takes seconds; photos that are there need none.
    from torchvision.datasets import Flowers102

    from florilege.models.backbones import architecture, open_weights

    size = architecture(backbone).megabytes if weights == _PRETRAINED else None
    network = f", and {size:.0f} MB of weights of {backbone} unless cached" if size else ""
    archive = f"{ARCHIVE.size / 1e6:.0f} MB from {HOST}/"
    say(
        f"Oxford Flowers 102, 8,189 photos of 102 kinds: {archive}{network}. Unpacking needs "
        f"twice the space in {folder}. The photos are from the web, for research; see that page"
    )
    if ask and not sys.stdin.isatty():
        raise UsageError("the download needs a confirmation: add --yes")
    if ask:
        typer.confirm("Download?", default=True, abort=True, err=True)
    open_weights(weights, backbone)  # the smaller download first, in case it fails
    return _fetch_flowers102(folder, Flowers102.classes)


def _flora_table(bundle: Path, data: str) -> None:
    """Print how the model compares with the best possible one on new pictures."""
    from florilege.calibration.calibrate import evaluate_bundle
    from florilege.data.flora.posterior import bayes_average_k_accuracy, bayes_top_k_accuracy

    evaluation = evaluate_bundle(bundle, data)
    headings = ("K", "best top-K", "best average-K", "this model", "points below", "mean set size")
    table = new_table(headings)
    table.padding = (0, 3, 0, 0)
    table.columns[3].style = "bold"
    for point, measurement, *_ in evaluation.rules:
        if point.rule == "average_k" and measurement.value in (2.0, 3.0, 5.0):
            k, hits = measurement.value, measurement.hit_rate or 0.0
            best = bayes_average_k_accuracy(k)
            rates = (f"{rate:.3f}" for rate in (bayes_top_k_accuracy(int(k)), best, hits))
            table.add_row(f"{k:g}", *rates, f"{100 * (best - hits):.1f}", f"{measurement.size:.2f}")
    print_table(table, f"{evaluation.rows:,} fresh pictures of 85 species")
    typer.echo(
        "best: the hit rate with the exact P(species | picture).\n"
        "top-K: always K species; average-K: K on average, more for ambiguous pictures.\n"
    )


def _photo_table(bundle: Path, data: str) -> None:
    """Print set sizes and hit rates on the test photos."""
    from florilege.calibration.calibrate import evaluate_bundle

    evaluation = evaluate_bundle(bundle, data)
    rows = {(point.rule, row.value): row for point, row, *_ in evaluation.rules}
    table = new_table(("K", "top-K", "average-K", "95 % interval", "mean set size"))
    table.padding = (0, 3, 0, 0)
    for k in (1.0, 2.0, 3.0, 5.0):
        if (row := rows.get(("average_k", k))) is not None:
            interval = f"{row.hit_low:.3f} to {row.hit_high:.3f}"
            top, hits = rows["top_k", k].hit_rate, row.hit_rate
            table.add_row(f"{k:g}", f"{top:.3f}", f"{hits:.3f}", interval, f"{row.size:.2f}")
    print_table(
        table, f"Hit rates on {evaluation.rows:,} photos that neither trained nor calibrated"
    )
    typer.echo("top-K: always K kinds; average-K: K on average, more for ambiguous photos.\n")


def _demo_answers(address: str, server: subprocess.Popen[bytes], data: str, photos: Path) -> None:
    """Post ten fresh pictures to the server and print its sets beside the truth."""
    dataset = open_dataset(data, splits=["test"])
    split = dataset.split("test")
    photos.mkdir(parents=True, exist_ok=True)
    _wait_until_ready(address, server)
    hits = 0
    rows = range(0, len(split), max(1, len(split) // _ANSWERS))[:_ANSWERS]
    for number, row in enumerate(rows):
        picture = split.read(row)
        truth = dataset.classes[int(split.labels[row])]
        suffix = Path(split.names[row]).suffix or ".png"
        name = truth.scientific_name.replace(" ", "-")
        (photos / f"{number:02}-{name}{suffix}").write_bytes(picture)
        request = urllib.request.Request(f"{address}/v1/identify", data=picture)
        with urllib.request.urlopen(request, timeout=30) as response:
            results = json.load(response)["results"]
        hit = any(result["class_id"] == truth.id for result in results)
        hits += hit
        listed = [
            f"{result['taxon']['scientific_name']} {result['score']:.2f}" for result in results
        ]
        verdict = f"{'in' if hit else 'NOT in'} the set of {len(results)}"
        if len(listed) > _LISTED:
            listed[_LISTED:] = [f"and {len(listed) - _LISTED} more"]
        print_result(f"{truth.scientific_name} is {verdict}: {', '.join(listed)}")
    print_result(f"{hits} of {len(rows)} sets hold the true species")


def _wait_until_ready(address: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise FlorilegeError(f"the server exited with code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise FlorilegeError("the server was not ready within 30 seconds")


HOST: Final = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
_MANIFEST: Final = "photos.csv"
_PHOTOS: Final = "jpg"  # the folder inside the archive
_SHARE: Final = 0.2  # of the photos for val, and the same share for test
_CHUNK: Final = 2**20
_SECONDS: Final = 30  # to wait for an answer


@dataclass(frozen=True)
class _RemoteFile:
    """A published file: its name, size in bytes and MD5, as in torchvision."""

    name: str
    size: int
    md5: str


ARCHIVE: Final = _RemoteFile("102flowers.tgz", 344_862_509, "52808999861908f626f3c1f4e79d11fa")
LABELS: Final = _RemoteFile("imagelabels.mat", 502, "e0620be6f572b9609742df49c70aed4d")


def _fetch_flowers102(folder: Path, names: Sequence[str]) -> Path:
    """Download what ``folder`` lacks, and return the manifest of the photos in it.

    ``names`` holds the common name of each class, in the order of the labels.

    Raises:
        DataError: A file cannot be downloaded or is damaged, or the disk is full. A second call
            continues.
    """
    manifest = folder / _MANIFEST
    if manifest.is_file():
        return manifest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        labels = _read_labels(_download(LABELS, folder))
        if not (folder / _PHOTOS).is_dir():
            archive = _download(ARCHIVE, folder)
            with TemporaryDirectory(dir=folder) as partial:  # all photos or none
                with tarfile.open(archive) as photos:
                    # Pythons before 3.11.4 have no filters; the archive is the one we know.
                    photos.extraction_filter = getattr(tarfile, "data_filter", None)
                    photos.extractall(partial)
                (Path(partial) / _PHOTOS).rename(folder / _PHOTOS)
            archive.unlink()
        paths = [f"{_PHOTOS}/image_{number:05}.jpg" for number in range(1, len(labels) + 1)]
        class_ids = [names[label - 1] for label in labels]
        splits = draw_splits(class_ids, paths, val=_SHARE, test=_SHARE, seed=0)
        columns = {"path": paths, "class_id": class_ids, "split": splits}
        write_table(manifest, columns | {"common_name:en": class_ids})
    except OSError as error:
        raise DataError(f"{folder}: {error}; repeat the command to continue") from error
    return manifest


def _download(file: _RemoteFile, folder: Path) -> Path:
    """Download a file into ``folder`` and verify it; an interrupted download is continued."""
    path, part = folder / file.name, folder / f"{file.name}.part"
    address = f"{HOST}/{file.name}"
    if not path.exists():
        try:
            _receive(address, part, file)
        except (OSError, HTTPException) as error:
            raise DataError(
                f"{address} could not be downloaded: {error}. Repeat the command to continue, or "
                f"save the file as {path} yourself; `florilege demo` alone needs no network"
            ) from error
        part.replace(path)
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "md5").hexdigest()
    if digest != file.md5:
        path.unlink()
        raise DataError(
            f"{path} was damaged and is removed: its MD5 is {digest} instead of {file.md5}. Repeat "
            "the command to download it again"
        )
    return path


def _receive(address: str, part: Path, file: _RemoteFile) -> None:
    """Append the missing rest of a remote file to ``part``."""
    start = part.stat().st_size if part.exists() else 0
    if start >= file.size:
        return
    request = Request(address, headers={"Range": f"bytes={start}-"})
    with urlopen(request, timeout=_SECONDS) as response, part.open("ab") as output:
        if response.status != HTTPStatus.PARTIAL_CONTENT:  # the server sends all of it
            start = output.truncate(0)
        if response.length != file.size - start:  # such as the sign-in page of a network
            raise OSError(f"the server sends another file, not the one of {file.size:,} bytes")
        with progress(-(-response.length // _CHUNK), f"{file.name}, MiB") as advance:
            while chunk := response.read(_CHUNK):
                output.write(chunk)
                advance()
    if part.stat().st_size < file.size:
        raise OSError("the connection ended early")


def _read_labels(path: Path) -> list[int]:
    """The label of each photo, from 1: the only array of a compressed MATLAB file, version 5."""
    element = zlib.decompress(path.read_bytes()[136:])  # after the header and its type and size
    # Type and size of the element, flags, dimensions and name take 56 bytes; the labels are uint8.
    _, count = struct.unpack_from("<II", element, 56)
    return list(element[64 : 64 + count])

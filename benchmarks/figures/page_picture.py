"""The picture of the page, in the README: docs/images/page-set.jpg.

``python -m benchmarks.figures.page_picture OUT/bundles/first SETS/grocery-plants/photos.csv`` takes
the bundle of `benchmarks.figures.headline` and calibrates a copy on the test photos that the
README counts on: the page then shows the rate of photos that were kept out of training. It
needs Debian's Chromium and playwright.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.figures.headline import PHOTO, K
from benchmarks.load.server import port_of, serve
from benchmarks.sets.offline import FLAGS
from florilege.calibration.record.record_file import read_record
from florilege.models.bundle import open_bundle

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "page-set.jpg"
WIDTH, HEIGHT = 1100, 840
NAMES = (  # class id, scientific name, English name, a photo to compare with
    ("Orange", "Citrus \u00d7 sinensis", "orange", "train/Orange/Orange_003.jpg"),
    ("Satsumas", "Citrus unshiu", "satsuma", "train/Satsumas/Satsumas_001.jpg"),
    (
        "Red-Grapefruit",
        "Citrus \u00d7 paradisi",
        "red grapefruit",
        "train/Red-Grapefruit/Red-Grapefruit_001.jpg",
    ),
)
CREDIT = {"thumbnail_author": "M. Klasson et al.", "thumbnail_licence": "MIT"}


def main(
    bundle: Annotated[Path, typer.Argument(help="The bundle of benchmarks.figures.headline.")],
    data: Annotated[Path, typer.Argument(help="photos.csv of the set grocery-plants.")],
    out: Annotated[Path, typer.Option(help="The picture.")] = PICTURE,
) -> None:
    """Take a picture of the page with the answer to one photo."""
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(shutil.copytree(bundle, Path(folder) / "first"))
        _calibrate(shown, data)
        table = Path(folder) / "classes.csv"
        _write_names(table, data.parent)
        _florilege("bundle", "set-names", str(shown), str(table))
        with _served(shown) as url:
            _take(url, data.parent / PHOTO, out, Path(folder) / "page.png")


def _calibrate(bundle: Path, data: Path) -> None:
    """Calibrate on the test photos with the head and scores that it has: they choose nothing."""
    record = read_record(open_bundle(bundle))
    chosen = ("--head", record.head, "--score-kind", record.score_kind)
    temperature = ("--temperature", str(record.temperature), "--k", "1,2,3,5")
    _florilege(
        "calibrate", str(bundle), "--data", str(data), "--split", "test", *chosen, *temperature
    )


def _write_names(table: Path, photos: Path) -> None:
    columns = ("class_id", "scientific_name", "genus", "family", "common_name_en", "thumbnail")
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*columns, *CREDIT))
        writer.writeheader()
        for class_id, scientific, english, picture in NAMES:
            names = (class_id, scientific, "Citrus", "Rutaceae", english)
            values = (*names, str((photos / picture).absolute()))
            writer.writerow({**dict(zip(columns, values, strict=True)), **CREDIT})


@contextmanager
def _served(bundle: Path) -> Iterator[str]:
    process = serve(bundle)
    try:
        yield f"http://127.0.0.1:{port_of(process)}/"
    finally:
        process.terminate()
        process.wait()


def _take(url: str, photo: Path, out: Path, screenshot: Path) -> None:
    with sync_playwright() as driver:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, locale="en-GB")
        page.goto(url)
        page.set_input_files("#file", photo)
        page.wait_for_selector(f"#result[data-k='{K}']:not([hidden])")
        page.wait_for_load_state("networkidle")
        page.evaluate("document.querySelector('#history').hidden = true")
        page.screenshot(path=screenshot)
        typer.echo(page.inner_text(".verdict"))
        browser.close()
    Image.open(screenshot).convert("RGB").save(out, quality=88, optimize=True)


def _florilege(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "florilege", *words], check=True)


if __name__ == "__main__":
    typer.run(main)

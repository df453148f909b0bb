"""The picture of the page, in the README: docs/images/page-set.jpg.

``florilege demo --once``, then ``python -m benchmarks.figures.page_picture demo/bundle`` shows the
page of a server with the bundle of the demo, asked for a plant without its berries. A copy of the
bundle is calibrated on the test drawings, which chose nothing, and given a drawing of each species
to compare with. It needs Debian's Chromium and playwright.
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

from benchmarks.figures.large_drawings import large_drawing
from benchmarks.load.server import port_of, serve
from benchmarks.sets.offline import FLAGS
from florilege.data.flora.posterior import HIDDEN, TRAITS, flora_classes, species_traits
from florilege.models.bundle import open_bundle

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "page-set.jpg"
WIDTH, HEIGHT = 1100, 950
PLANT, HIDES, SEED = "Gramblea auranticarpa", "fruit", 5
"""The plant, the trait that the photo does not show, and the chance that places its organs."""
_REFERENCES = 100  # the first seed of the drawings to compare with
_K = 3


def main(
    bundle: Annotated[Path, typer.Argument(help="The bundle of `florilege demo`.")],
    out: Annotated[Path, typer.Option(help="The picture.")] = PICTURE,
) -> None:
    """Take a picture of the page with the answer to one drawing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shown = Path(shutil.copytree(bundle, folder / "demo"))
        data = str(open_bundle(shown).read_object("provenance.json")["data"])
        _florilege("calibrate", str(shown), "--data", data, "--split", "test", "--k", "1,2,3,5")
        _florilege("bundle", "set-names", str(shown), str(_names(folder)))
        photo = folder / "photo.png"
        large_drawing(traits_of(PLANT, HIDES), SEED).save(photo)
        with _served(shown) as url:
            _take(url, photo, out, folder / "page.png")


def traits_of(species: str, hidden: str | None = None) -> list[int]:
    """The visible traits of a species, as the drawer takes them."""
    row = [item.scientific_name for item in flora_classes()].index(species)
    return [HIDDEN if name == hidden else int(species_traits()[name][row]) for name in TRAITS]


def _names(folder: Path) -> Path:
    """A table of all species with a drawing of each, every organ visible."""
    table = folder / "classes.csv"
    columns = ("class_id", "scientific_name", "genus", "family", "common_name_en", "thumbnail")
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row, item in enumerate(flora_classes()):
            picture = folder / f"{item.id}.jpg"
            large_drawing(traits_of(item.scientific_name), _REFERENCES + row).save(picture)
            english = item.common_names["en"][0]
            taxon = (item.id, item.scientific_name, item.genus, item.family)
            writer.writerow((*taxon, english, picture))
    return table


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
        page.wait_for_selector(f"#result[data-k='{_K}']:not([hidden])")
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

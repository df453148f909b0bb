"""The pictures of the architecture and of sets say what the code does."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.figures import architecture, set_growth, threshold
from benchmarks.figures.scored_photos import ScoredPhotos
from florilege.calibration.calibrate import calibrate_bundle
from tests.calibration.small_bundle import make_bundle, make_data

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ScoredPhotos:
    folder = tmp_path_factory.mktemp("scored")
    bundle, data = make_bundle(folder / "bundle").path, make_data(folder / "data")
    calibrate_bundle(bundle, str(data), ks=[1, 2, 3, 5])
    return ScoredPhotos.of(bundle, data)


def words(picture: str) -> list[str]:
    """Its lines of text."""
    return [each.text or "" for each in ElementTree.fromstring(picture).iter() if each.text]


def test_the_architecture_is_drawn_as_it_is_and_names_folders_that_exist() -> None:
    """After a wanted change: `python -m benchmarks.figures.architecture`."""
    assert architecture.FILE.read_text("utf-8") == architecture.picture()
    folders = {box.folder for box in (*architecture.MAKING, *architecture.SERVING) if box.folder}
    missing = {each for each in folders if not list(ROOT.glob(f"{each.rstrip('/')}*"))}
    assert missing == set()


@pytest.mark.parametrize("file", [architecture.FILE, threshold.FILE, set_growth.FILE])
def test_a_picture_is_small_and_loads_nothing_from_elsewhere(file: Path) -> None:
    text = file.read_text("utf-8")
    assert len(text) < 200_000
    assert "prefers-color-scheme:dark" in text
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"') == 1
    assert ElementTree.fromstring(text).get("viewBox")


def test_the_cut_separates_the_classes_of_each_set(photos: ScoredPhotos) -> None:
    row = int(photos.sets(3).sum(axis=1).argmin())
    lines = words(threshold.picture(photos, {photos.split.names[row]: "clear"}))
    inside = photos.sets(3)[row]
    assert f"a set of {inside.sum()}" in lines
    assert (photos.scores[row][inside] >= photos.cut(3)).all()
    assert (photos.scores[row][~inside] < photos.cut(3)).all()
    sizes = photos.sets(3).sum(axis=1)
    assert f"The sets of {len(sizes)} photos: {sizes.mean():.2f} classes on average" in lines
    bars = [
        part for size, n in enumerate(np.bincount(sizes)[1:], 1) for part in (str(n), str(size))
    ]
    assert lines[-1 - len(bars) : -1] == bars


def test_a_column_is_as_high_as_the_set_is_large(photos: ScoredPhotos) -> None:
    wrong = photos.scores.argmax(axis=1) != photos.labels
    row = int(np.flatnonzero(wrong & photos.sets(3)[np.arange(len(wrong)), photos.labels])[0])
    picture = set_growth.picture(photos, photos.split.names[row])
    sizes = [int(photos.sets(k)[row].sum()) for k in set_growth.KS]
    bars = ElementTree.fromstring(picture).findall(".//*[@fill='var(--green)']")
    heights = [float(bar.get("height", 0)) for bar in bars]
    assert heights == [size * set_growth.LINE - 8 for size in sizes]
    assert f"It is a {photos.name(int(photos.labels[row]))}. The set has it" in words(picture)
    hits = [photos.sets(k)[np.arange(len(wrong)), photos.labels] for k in set_growth.KS]
    held = next(k for k, hit in zip(set_growth.KS, hits, strict=True) if hit[row])
    assert f"from K = {held:g} on. A larger K only adds." in words(picture)
    rates = [f"{100 * hit.mean():.0f} %" for hit in hits]
    assert [line for line in words(picture) if line.endswith("%")] == rates

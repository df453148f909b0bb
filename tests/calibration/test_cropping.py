"""Ten crops against one view, on files and through the command."""

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

import calibration.cropping
from calibration.bundled import read_record
from calibration.calibrating import calibrate_bundle
from calibration.cli import app
from calibration.cropping import compare_crops, crops_of
from calibration.fusion import fuse
from calibration.rules import calibrate
from data.sources import open_dataset
from models.bundle import open_bundle
from models.images import Preprocess, load
from models.session import Session
from tests.calibration.small_bundle import CLASSES, COLOURS, SIDE, make_bundle

ROWS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos whose left half shows their colour and whose right half is dirt, so crops differ."""
    root, random = tmp_path_factory.mktemp("crops"), np.random.default_rng(0)
    for split in ("val", "test"):
        for label in range(CLASSES):
            target = root / "d" / split / f"c{label}"
            target.mkdir(parents=True)
            for row in range(ROWS):
                pixels = np.clip(COLOURS[label] + random.normal(0, 60, (12, 16, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{row:03}.png")
    calibrate_bundle(make_bundle(root / "b").path, str(root / "d"), ks=[1, 2.5, 3])
    return root


def png(pixels: NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_crops_cover_the_corners_of_the_whole_photo() -> None:
    pixels = np.zeros((64, 128, 3), dtype=np.uint8)
    pixels[:, :40, 0] = 200  # the left side, which the centre square does not show
    preprocess = Preprocess(image_size=28)
    crops = crops_of(png(pixels), preprocess)
    assert crops.shape == (10, 28, 28, 3)
    assert crops[0, :, :15, 0].min() == 200  # top left
    assert crops[1, :, :, 0].max() == 0  # top right
    assert (crops[5] == crops[0][:, ::-1]).all()
    assert load(png(pixels), preprocess)[:, 10:, 0].max() == 0


def test_a_small_crop_fraction_is_kept() -> None:
    pixels = np.arange(100 * 100 * 3, dtype=np.uint32).reshape(100, 100, 3).astype(np.uint8)
    preprocess = Preprocess(image_size=50, crop_fraction=0.5)  # the photo is 100 pixels wide then
    crops = crops_of(png(pixels), preprocess)
    np.testing.assert_array_equal(crops[4], pixels[25:75, 25:75])
    np.testing.assert_array_equal(crops[3], pixels[50:, 50:])


def test_the_comparison_is_that_of_fused_crops(folder: Path) -> None:
    bundle = open_bundle(folder / "b")
    record = read_record(bundle)
    data = open_dataset(str(folder / "d"), splits=["test"], classes=bundle.classes)
    split, session = data.split("test"), Session(bundle, device="cpu")
    photos = range(len(split))
    one = np.stack([load(split.read(row), bundle.preprocess)[np.newaxis] for row in photos])
    ten = np.stack([crops_of(split.read(row), bundle.preprocess) for row in photos])
    logits = [
        np.stack([session.logits(images)[record.head] for images in views]) for views in (one, ten)
    ]
    rows = np.arange(len(split))
    for result in compare_crops(folder / "b", str(folder / "d")):
        for which, change in enumerate(
            [result.comparison.hit_rate.old, result.comparison.hit_rate.new]
        ):
            marginal = which == 1 and result.fusion == "mean_marginal"
            values = fuse(
                logits[which],
                score_kind=record.score_kind,
                fusion="mean_marginal" if marginal else "mean_score",
                k=int(result.k) if marginal else None,
            )
            if result.rule == "top_k":
                members = calibrate("top_k", values, k=int(result.k)).sets(values)
            else:
                members = calibrate("average_k", values, average_k=result.k).sets(values)
            assert change == pytest.approx(members[rows, split.labels].mean(), abs=1e-12)
        size = result.comparison.size
        assert size.new == pytest.approx(result.k, abs=0.02)
        assert size.old == pytest.approx(result.k, abs=0.02)


def test_every_k_asked_for_is_compared(folder: Path) -> None:
    found = [
        (result.rule, result.k, result.fusion)
        for result in compare_crops(folder / "b", str(folder / "d"))
    ]
    assert found == [
        ("average_k", 1.0, "mean_score"),
        ("average_k", 2.5, "mean_score"),
        ("average_k", 3.0, "mean_score"),
        ("top_k", 1.0, "mean_marginal"),
        ("top_k", 1.0, "mean_score"),
        ("top_k", 3.0, "mean_marginal"),
        ("top_k", 3.0, "mean_score"),
    ]


def test_a_k_too_large_for_marginals_is_compared_without_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for largest, expected in ((2, 1), (3, 2)):
        monkeypatch.setattr(calibration.cropping, "LARGEST_K", largest)
        found = compare_crops(folder / "b", str(folder / "d"))
        assert [result.fusion for result in found].count("mean_marginal") == expected


def test_the_command_says_that_crops_are_not_calibrated(folder: Path) -> None:
    arguments = ["evaluate", str(folder / "b"), "--data", str(folder / "d"), "--crops", "10"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    content = json.loads(result.stdout)
    assert len(content["crops"]) == 7
    assert {entry["calibrated"] for entry in content["crops"]} == {False}
    first, last = content["crops"][0], content["crops"][-1]
    assert first["threshold_from"] == "these photos, without their labels"
    assert last["threshold_from"] is None
    assert first["hit_rate"]["ten"] > first["hit_rate"]["one"] - 0.2
    assert content["rules"]
    assert "not calibrated" in CliRunner().invoke(app, arguments).stdout


def test_crops_are_as_large_as_the_input() -> None:
    for shape in ((SIDE, SIDE, 3), (5, 300, 3), (90, 3, 3)):
        crops = crops_of(png(np.full(shape, 7, dtype=np.uint8)), Preprocess(image_size=SIDE))
        assert crops.shape == (10, SIDE, SIDE, 3)
        assert (crops == 7).all()


def test_a_k_below_one_is_compared_too(folder: Path, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b").path
    calibrate_bundle(bundle, str(folder / "d"), ks=[0.5], min_size=0)
    [found] = compare_crops(bundle, str(folder / "d"))
    assert (found.rule, found.k) == ("average_k", 0.5)
    assert found.comparison.size.old == found.comparison.size.new == 0.5

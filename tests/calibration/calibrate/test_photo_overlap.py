"""A guarantee rests on photos that the network has not met, whatever their split is called."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.cautions import cautions
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.certificate import Reason
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.view import PLAIN
from florilege.data.copies import fingerprint, look_at
from florilege.errors import BundleError
from florilege.models.bundle import Bundle, replace_files
from florilege.models.photo_hashes import PHOTOS, PhotoHashes, photo_hash
from tests.calibration.command_line import run
from tests.calibration.small_bundle import CLASSES, make_bundle
from tests.data.copies.test_near_duplicates import changed, encoded, scene

ROWS = 12
SCENES = range(3)  # which also trained the network
NAMED: dict[str, Any] = {"head": "sccp", "score_kind": "softmax"}


@pytest.fixture(name="data")
def squares(data: str) -> Path:
    return Path(data)


@pytest.fixture(scope="module")
def fingerprints() -> NDArray[np.uint64]:
    return np.stack([fingerprint(look_at(encoded(scene(seed)))) for seed in SCENES])


@pytest.fixture
def bundle(tmp_path: Path, data: Path, fingerprints: NDArray[np.uint64]) -> Bundle:
    train, val = (
        [photo_hash(photo.read_bytes()) for photo in (data / split).rglob("*.png")]
        for split in ("train", "val")
    )
    train.append(photo_hash(encoded(scene(0))))
    copy = make_bundle(tmp_path / "b")
    papers = b'{"data": "d", "checkpoint_chosen_on": "val"}'
    hashes = replace(PhotoHashes.of(train, val), fingerprints=fingerprints).to_bytes()
    return replace_files(copy.path, {"provenance.json": papers, PHOTOS: hashes})


def calibrated(bundle: Bundle, data: Path, split: str) -> CalibrationRecord:
    return calibrate_bundle(bundle.path, str(data), split, **NAMED)


def test_photos_that_the_network_has_not_met_make_a_guarantee(bundle: Bundle, data: Path) -> None:
    record = calibrated(bundle, data, "test")
    measured = record.measured
    assert (measured.train_photos, measured.selection_photos) == (0, 0)
    assert measured.chose_checkpoint is False
    assert record.point(PLAIN, record.setting("coverage")).guaranteed
    assert not any("photos also" in caution for caution in cautions(record))


def test_training_photos_called_test_make_none(tmp_path: Path, bundle: Bundle, data: Path) -> None:
    shutil.copytree(data / "train", tmp_path / "other" / "test")
    for number, photo in enumerate(sorted((tmp_path / "other").rglob("*.png"))):
        photo.rename(photo.with_name(f"copy-{number}.png"))
    record = calibrated(bundle, tmp_path / "other", "test")
    rows = ROWS * CLASSES
    assert (record.measured.train_photos, record.measured.selection_photos) == (rows, 0)
    assert record.measured.chose_checkpoint is True
    for rule in ("coverage", "class_coverage", "balanced_coverage"):
        assert not record.point(PLAIN, record.setting(rule)).guaranteed
    assert (
        "no guarantee, since 72 of the photos also trained"
        in record.point(PLAIN, record.setting("coverage")).statement
    )
    assert "all 72 photos also trained the network" in " ".join(cautions(record))


def test_one_photo_of_training_is_enough(tmp_path: Path, bundle: Bundle, data: Path) -> None:
    shutil.copytree(data / "test", tmp_path / "other" / "test")
    shutil.copy(data / "train" / "c0" / "000.png", tmp_path / "other" / "test" / "c0" / "new.png")
    record = calibrated(bundle, tmp_path / "other", "test")
    assert record.measured.train_photos == 1
    assert not record.point(PLAIN, record.setting("coverage")).guaranteed


def test_a_copy_in_other_bytes_counts_like_a_photo_of_training(
    tmp_path: Path, bundle: Bundle, data: Path
) -> None:
    folder = tmp_path / "other" / "test" / "c0"
    shutil.copytree(data / "test", folder.parent)
    (folder / "half.jpg").write_bytes(changed(scene(0), "halved"))
    (folder / "cut.jpg").write_bytes(changed(scene(1), "cropped"))
    (folder / "wind.jpg").write_bytes(encoded(scene(2, moved=6.0)))
    (folder / "new.jpg").write_bytes(encoded(scene(0)))  # in the same bytes
    record = calibrated(bundle, tmp_path / "other", "test")
    assert (record.measured.train_photos, record.measured.near_copies) == (3, 2)
    point = record.point(PLAIN, record.setting("coverage"))
    assert not point.guaranteed
    assert "since 3 of the photos also trained" in point.statement
    told = " ".join(cautions(record))
    assert "3 of the 76 photos also trained" in told
    assert "2 of them in other bytes, resized" in told
    result = evaluate_bundle(bundle.path, str(tmp_path / "other"), "test")
    assert (result.overlap.train_photos, result.overlap.near_copies) == (3, 2)


def test_only_photos_that_calibrate_must_be_new(
    tmp_path: Path, bundle: Bundle, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others chose the checkpoint, and choose the scores."""
    monkeypatch.setattr("florilege.calibration.calibrate.training_photos.FEWEST_TO_SPLIT", 20)
    shutil.copytree(data / "val", tmp_path / "other" / "val")
    shutil.copytree(data / "test", tmp_path / "other" / "val", dirs_exist_ok=True)
    for number, photo in enumerate(sorted((data / "val").rglob("*.png"))):
        shutil.copy(photo, tmp_path / "other" / "val" / "c0" / f"chose-{number}.png")
    (tmp_path / "other" / "val" / "c5" / "z.jpg").write_bytes(changed(scene(0), "halved"))
    record = calibrated(bundle, tmp_path / "other", "val")
    assert (record.measured.choosing_rows, record.measured.rows) == (72, 73)
    assert (record.measured.train_photos, record.measured.near_copies) == (1, 1)


def test_a_network_without_training_photos_has_no_copies(bundle: Bundle, data: Path) -> None:
    none = replace_files(bundle.path, {PHOTOS: PhotoHashes.of().to_bytes()})
    record = calibrated(none, data, "test")
    assert (record.measured.train_photos, record.measured.near_copies) == (0, 0)
    assert "older version" not in " ".join(cautions(record))


def test_of_an_older_run_it_is_unknown_whether_photos_are_copies(
    bundle: Bundle, data: Path
) -> None:
    hashes = PhotoHashes.from_bytes(bundle.read(PHOTOS))
    older = replace_files(bundle.path, {PHOTOS: replace(hashes, fingerprints=None).to_bytes()})
    record = calibrated(older, data, "test")
    assert (record.measured.train_photos, record.measured.near_copies) == (0, None)
    assert record.point(PLAIN, record.setting("coverage")).guaranteed
    assert "copies of its photos in other bytes are not known" in " ".join(cautions(record))


@pytest.mark.parametrize("split", ["val", "val:0-0.5"])
def test_photos_that_chose_the_checkpoint_are_named(bundle: Bundle, data: Path, split: str) -> None:
    record = calibrated(bundle, data, split)
    rows = record.measured.rows
    assert (record.measured.train_photos, record.measured.selection_photos) == (0, rows)
    point = record.point(PLAIN, record.setting("coverage"))
    assert point.certificate.reasons == (Reason.CHOICE_UNCOUNTED,)
    assert "since the photos also chose the network, among" in point.statement
    assert f"all {rows} photos also chose the network" in " ".join(cautions(record))


def test_photos_that_chose_among_a_counted_number_still_guarantee(
    tmp_path: Path, bundle: Bundle, data: Path
) -> None:
    """Each epoch that these photos compared costs a little coverage, not the promise."""
    shutil.copytree(bundle.path, tmp_path / "counted")
    content = bundle.read_object("provenance.json") | {"networks_compared": 12}
    counted = replace_files(tmp_path / "counted", {"provenance.json": json.dumps(content).encode()})
    fresh = calibrated(bundle, data, "test")
    records = calibrated(counted, data, "val"), calibrated(bundle, data, "val")
    points = [record.point(PLAIN, record.setting("coverage")) for record in records]
    assert [point.guaranteed for point in points] == [True, False]
    assert (points[0].table.candidates, points[1].table.candidates) == (12, 1)
    assert (points[0].lambda_val or 0) <= (points[1].lambda_val or 0)
    assert fresh.measured.networks == 1


def test_the_same_name_with_other_photos_is_a_guarantee(
    tmp_path: Path, bundle: Bundle, data: Path
) -> None:
    shutil.copytree(data / "test", tmp_path / "other" / "val")
    record = calibrated(bundle, tmp_path / "other", "val")
    assert record.point(PLAIN, record.setting("coverage")).guaranteed


def test_an_evaluation_says_so_too(tmp_path: Path, bundle: Bundle, data: Path) -> None:
    calibrated(bundle, data, "test")
    result = evaluate_bundle(bundle.path, str(data), "train")
    assert (result.overlap.train_photos, result.overlap.selection_photos) == (72, 0)
    command = ("evaluate", bundle.path, "--data", data, "--json", "--split")
    output = run(*command, "val")
    assert "all 72 photos also chose the network" in output.stderr
    plain = json.loads(output.stdout)
    assert (plain["train_photos"], plain["selection_photos"]) == (0, 72)
    [warning] = plain["warnings"]
    assert "also chose the network" in warning
    assert run(*command, "test").stderr.count("\n") == 1  # what it does


def test_a_run_exported_without_hashes_promises_nothing(tmp_path: Path, data: Path) -> None:
    bundle = make_bundle(tmp_path / "old")
    papers = b'{"data": "d", "checkpoint_chosen_on": "val"}'
    record = calibrated(replace_files(bundle.path, {"provenance.json": papers}), data, "test")
    assert (record.measured.train_photos, record.measured.chose_checkpoint) == (None, None)
    assert (
        "since nothing tells which photos trained"
        in record.point(PLAIN, record.setting("coverage")).statement
    )
    assert any("train --resume" in caution for caution in cautions(record))


def test_weights_from_a_run_of_unknown_photos_promise_nothing(bundle: Bundle, data: Path) -> None:
    unknown = PhotoHashes.of([b"12345678"], complete=False).to_bytes()
    record = calibrated(replace_files(bundle.path, {PHOTOS: unknown}), data, "test")
    assert (record.measured.train_photos, record.measured.chose_checkpoint) == (0, None)
    assert not record.point(PLAIN, record.setting("coverage")).guaranteed


def test_damaged_hashes_are_refused(bundle: Bundle, data: Path) -> None:
    replace_files(bundle.path, {PHOTOS: b"damaged"})
    with pytest.raises(BundleError, match="damaged"):
        calibrated(bundle, data, "test")

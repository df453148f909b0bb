"""Calibrating a rejection by features: which photos, what is stored, when it is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import florilege.calibration.calibrate.training_photos as module
from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.photo_outputs import photos_for
from florilege.calibration.calibrate.training_photos import balanced_rows
from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.calibration.monitoring.score_log import Scorer
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import open_reference, read_record, verification
from florilege.calibration.reference import Reference
from florilege.errors import BundleError, DataError
from florilege.models.bundle import Bundle, open_bundle, replace_files
from florilege.models.images import load
from florilege.models.session import Session
from tests.calibration.command_line import write_log
from tests.calibration.small_bundle import CLASSES, make_bundle

ROWS = 20


@pytest.fixture(name="data", scope="module")
def squares(more_data: Path) -> Path:
    return more_data


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    bundle = make_bundle(tmp_path_factory.mktemp("bundle") / "b", features=True)
    calibrate_bundle(bundle.path, str(data))
    return bundle.path


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "b", features=True)


def judged(record: CalibrationRecord) -> Any:
    assert record.rejection is not None
    return record.rejection


def features_of(bundle: Bundle, data: Path, split: str) -> list[tuple[Any, Any]]:
    """Logits of the served head and features, one photo at a time."""
    photos = photos_for(bundle, str(data), split)
    session, head = Session(bundle, device="cpu"), read_record(bundle).head
    results = [
        session.outputs(load(photos.read(row), bundle.preprocess)[np.newaxis], features=True)
        for row in range(len(photos))
    ]
    return [(outputs.logits[head], outputs.features) for outputs in results]


def referred(path: Path) -> Reference:
    """The reference of a calibrated bundle."""
    bundle = open_bundle(path)
    reference = open_reference(bundle, read_record(bundle), 3)
    assert reference is not None
    return reference


def test_the_threshold_is_that_of_served_photos_one_by_one(calibrated: Path, data: Path) -> None:
    bundle = open_bundle(calibrated)
    judge = judged(read_record(bundle))
    assert (judge.method, judge.rows) == ("combined", ROWS * CLASSES)
    photos, reference = features_of(bundle, data, "val"), referred(calibrated)
    values = sorted(judge.verdict(*outputs, reference)[0] for outputs in photos)
    assert judge.threshold == values[1]  # 1 % of 120 photos: one lies below
    by_logits = [judge.by_logits.verdict(logits)[0] for logits, _ in photos]
    assert judge.by_logits.threshold == sorted(by_logits)[1]


def test_the_reference_is_of_the_training_photos(calibrated: Path, data: Path) -> None:
    bundle = open_bundle(calibrated)
    stored = bundle.read("reference.npy")
    reference = [row for _, row in features_of(bundle, data, "train")]
    assert stored == Reference.of(np.concatenate(reference)).to_bytes()
    assert judged(read_record(bundle)).reference_sha256 == bundle.manifest.files["reference.npy"]
    report = verification(calibrated)
    assert (report["ok"], set(report["files"].values()), report["opening"]) == (True, {None}, None)


def test_the_record_survives_the_file_and_bundles_of_before_still_open(calibrated: Path) -> None:
    record = read_record(open_bundle(calibrated))
    assert CalibrationRecord.from_json(record.to_json()) == record
    plain = json.loads(record.to_json())
    by_logits = plain["rejection"]["by_logits"]
    names = ("method", "threshold", "share", "rows", "head", "score_kind")
    plain["rejection"] = {name: by_logits[name] for name in names}
    older = CalibrationRecord.from_json(json.dumps(plain))
    assert older.rejection == judged(record).by_logits


def test_a_calibration_without_rejection_removes_the_reference(bundle: Bundle, data: Path) -> None:
    for method in ("auto", None):
        record = calibrate_bundle(bundle.path, str(data), rejection_method=method)
        assert (record.rejection is None) == (method is None)
        assert open_bundle(bundle.path).has("reference.npy") == (method is not None)
        assert (bundle.path / "reference.npy").exists() == (method is not None)


def test_sets_cover_unseen_classes_by_the_photos_of_the_other_classes(
    calibrated: Path, bundle: Bundle, data: Path
) -> None:
    assert judged(read_record(open_bundle(calibrated))).unseen == ()  # 6 classes: too few for 0.9
    record = calibrate_bundle(bundle.path, str(data), coverages=[0.5, 0.9])
    photos, train = (features_of(open_bundle(bundle.path), data, part) for part in ("val", "train"))
    reference, labels = referred(bundle.path), np.repeat(np.arange(CLASSES), ROWS)
    features = np.concatenate([row for _, row in photos])
    of_others = np.concatenate(
        [
            replace(reference, directions=reference.directions[labels != label]).compare(
                features[labels == label]
            )[0]
            for label in range(CLASSES)
        ]
    )
    assert len(train) == len(reference.directions)
    (unseen,) = judged(record).unseen
    rank = -(-ROWS * (CLASSES + 1) // 2)  # half of the classes and one more
    assert (unseen.coverage, unseen.threshold) == (0.5, np.sort(of_others)[rank - 1])
    assert unseen.known_share == (reference.compare(features)[0] <= unseen.threshold).mean()


def test_no_photo_is_calibrated_on_and_compared_with(bundle: Bundle, data: Path) -> None:
    calibrate_bundle(bundle.path, str(data), "train:0-0.5")
    reference, rest = (
        referred(bundle.path),
        features_of(open_bundle(bundle.path), data, "train:0.5-1"),
    )
    assert len(reference.directions) == len(rest) == ROWS * CLASSES // 2
    expected = Reference.of(np.concatenate([features for _, features in rest]))
    assert reference.to_bytes() == expected.to_bytes()


def test_a_copied_calibration_photo_is_left_out(tmp_path: Path, bundle: Bundle, data: Path) -> None:
    copied = shutil.copytree(data, tmp_path / "d")
    for number in range(3):
        shutil.copy(
            copied / "val" / "c1" / f"{number:03}.png", copied / "train" / "c4" / f"x{number}.png"
        )
    calibrate_bundle(bundle.path, str(copied))
    assert len(referred(bundle.path).directions) == ROWS * CLASSES


def test_a_training_split_of_copies_is_refused(tmp_path: Path, bundle: Bundle, data: Path) -> None:
    copied = shutil.copytree(data / "val", tmp_path / "d" / "val").parent
    shutil.copytree(data / "val", copied / "train")
    with pytest.raises(DataError, match="training"):
        calibrate_bundle(bundle.path, str(copied))


def test_so_many_photos_are_kept_from_every_class(
    bundle: Bundle, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, expected in ((2 * CLASSES, 2 * CLASSES), (1, CLASSES)):  # one a class at least
        monkeypatch.setattr(module, "MOST_PHOTOS", most)
        calibrate_bundle(bundle.path, str(data))
        assert len(referred(bundle.path).directions) == expected


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(0, 70))
def test_classes_take_turns(labels: list[int], most: int) -> None:
    rows = balanced_rows(np.array(labels, dtype=np.int64), most).tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == min(most, len(labels))
    counts = [sum(labels[row] == label for row in rows) for label in range(6)]
    for label, count in enumerate(counts):
        assert count == labels.count(label) or count >= max(counts) - 1


def test_auto_judges_by_logits_where_features_or_training_photos_are_missing(
    tmp_path: Path, bundle: Bundle, data: Path
) -> None:
    older = make_bundle(tmp_path / "older")
    without = shutil.copytree(data / "val", tmp_path / "d" / "val").parent
    for path, photos, split in (
        (older.path, data, "val"),
        (bundle.path, without, "val"),
        (bundle.path, data, "train"),
    ):
        record = calibrate_bundle(path, str(photos), split)
        assert judged(record).method == "generalised_entropy"
        assert judged(record).from_logits == judged(record)
        assert not open_bundle(path).has("reference.npy")


@pytest.fixture
def copy(tmp_path: Path, calibrated: Path) -> Path:
    return Path(shutil.copytree(calibrated, tmp_path / "copy"))


def test_a_reference_of_another_calibration_or_none_is_refused(copy: Path) -> None:
    other = {"reference.npy": Reference.of(np.ones((2, 3))).to_bytes()}
    for files, without in ((other, ()), ({}, ("reference.npy",))):
        replace_files(copy, files, without=without)
        with pytest.raises(BundleError, match="calibration"):
            referred(copy)
        assert "calibrate it again" in str(verification(copy)["opening"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no arrays", r"reference\.npy of .* is damaged .*calibrate the bundle again"),
        (Reference.of(np.ones((2, 5))).to_bytes(), "features of 5 numbers, the graph outputs 3"),
    ],
)
def test_a_reference_that_cannot_be_used_is_named(copy: Path, content: bytes, message: str) -> None:
    changed = replace_files(copy, {"reference.npy": content})
    record, sha256 = read_record(changed), changed.manifest.files["reference.npy"]
    rejection = replace(judged(record), reference_sha256=sha256)  # as if calibrated with it
    with pytest.raises(BundleError, match=message):
        open_reference(changed, replace(record, rejection=rejection), 3)


def test_a_graph_without_features_does_not_go_with_a_reference(copy: Path) -> None:
    bundle = open_bundle(copy)
    with pytest.raises(BundleError, match="outputs"):
        open_reference(bundle, read_record(bundle), None)


def test_traffic_is_guarded_by_logits_and_keeps_the_rejection(
    tmp_path: Path, copy: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.calibration.monitoring.recalibration.FEWEST_REQUESTS", 50)
    bundle = open_bundle(copy)
    record = read_record(bundle)
    judge = judged(record)
    photos = [logits for logits, _ in features_of(bundle, data, "test")]
    photos.append(np.zeros((1, CLASSES), np.float32))
    write_log(tmp_path / "log", Scorer.of(bundle, record), photos)
    left_out = sum(judge.by_logits.verdict(logits)[1] for logits in photos)
    outcome = recalibrate_bundle(copy, tmp_path / "log", approve=True)
    assert outcome.left_out == left_out >= 1
    assert judged(read_record(open_bundle(copy))) == judge
    referred(copy)

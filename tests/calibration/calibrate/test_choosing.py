"""A fifth of the plants chooses head, scores and temperature; the others calibrate and measure."""

from pathlib import Path

import numpy as np
import pytest

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.comparison import interval_of_best
from florilege.calibration.photo_groups import choosing_rows
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import selection_note
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import PLAIN, View
from florilege.data.sources import open_dataset
from florilege.models.bundle import Bundle, open_bundle, replace_files
from florilege.models.photo_hashes import PHOTOS, PhotoHashes, photo_hash
from florilege.models.regions import RegionList
from tests.calibration.calibrate.test_fit import PLANTS
from tests.calibration.record.test_record import COUNTS, ROWS, sample_logits, scoring_of
from tests.calibration.simulation import CLASSES
from tests.calibration.small_bundle import make_bundle, make_data

FIFTH, REST = 100, 428  # of 528 squares


def test_plants_are_drawn_whole_and_the_same_each_time() -> None:
    plants = np.repeat(np.arange(600), 3)
    mask = choosing_rows(plants, 1800)
    assert mask is not None
    assert mask.sum() == 3 * 120
    assert all(len(set(mask[plants == plant])) == 1 for plant in (0, 17, 599))
    again = choosing_rows(plants, 1800)
    assert again is not None
    assert again.tolist() == mask.tolist()
    assert choosing_rows(plants[: 3 * 499], 3 * 499) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("choosing")
    make_data(root / "d", rows=88, splits=("val",))
    return root


def bundle_of(path: Path, selection: list[bytes] | None) -> Bundle:
    bundle = make_bundle(path)
    if selection is None:
        return bundle
    hashes = PhotoHashes.of((), selection).to_bytes()
    return replace_files(bundle.path, {PHOTOS: hashes})


def photos(folder: Path) -> list[bytes]:
    split = open_dataset(str(folder / "d"), splits=["val"]).split("val")
    return [photo_hash(split.read(row)) for row in range(len(split))]


def test_what_chose_does_not_calibrate_and_every_promise_holds(folder: Path) -> None:
    bundle = bundle_of(folder / "fresh", [])
    record = calibrate_bundle(bundle.path, str(folder / "d"))
    measured = record.measured
    assert (measured.rows, measured.choosing_rows, measured.chose_head) == (423, 105, False)
    assert record.selection.candidates > 1
    assert record.selection.honest_hit_rate == record.selection.hit_rate
    points = record.requested_points()
    assert all(point.guaranteed for point in points if point.guarantee)
    assert {point.table.candidates for point in points} == {1}
    assert all(point.rows == 423 for point in points)
    assert sum(record.distribution.best_scores) == 423
    assert record.rejection is not None
    assert record.rejection.rows == 423


def test_photos_that_chose_the_checkpoint_choose_the_scores_too(folder: Path) -> None:
    """A run that looked at some of these photos leaves the others to calibrate."""
    chose = photos(folder)[:FIFTH]
    record = calibrate_bundle(bundle_of(folder / "some", chose).path, str(folder / "d"))
    assert (record.measured.rows, record.measured.choosing_rows) == (REST, FIFTH)
    assert record.measured.selection_photos == 0
    assert record.point(PLAIN, record.setting("coverage")).guaranteed


def test_other_photos_of_a_plant_that_chose_do_not_calibrate(tmp_path: Path) -> None:
    names = [str(number) for number in np.repeat(np.arange(600), 2)]
    outputs = scoring_of({"sccp": np.zeros((1200, 2), np.float32)}, np.zeros(1200, int),
                         observations=names)  # fmt: skip
    outputs.photos = [row.to_bytes(8, "little") for row in range(1200)]
    bundle = bundle_of(tmp_path / "b", outputs.photos[:200:2])  # one photo of each of 100 plants
    mask = PhotoOverlap.choosing(bundle, outputs)
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == list(range(200))


@pytest.mark.parametrize(("chose", "new"), [(350, 250), (351, 249)])
def test_photos_that_chose_choose_again_if_250_others_calibrate(
    tmp_path: Path, chose: int, new: int
) -> None:
    outputs = scoring_of({"sccp": np.zeros((600, 2), np.float32)}, np.zeros(600, int))
    outputs.photos = [row.to_bytes(8, "little") for row in range(600)]
    mask = PhotoOverlap.choosing(bundle_of(tmp_path / "b", outputs.photos[:chose]), outputs)
    fifth = choosing_rows(None, 600)
    assert mask is not None
    assert fifth is not None
    assert mask.tolist() == (fifth.tolist() if new < 250 else [row < chose for row in range(600)])


def test_photos_that_all_chose_the_checkpoint_are_counted_or_promise_nothing(folder: Path) -> None:
    bundle = bundle_of(folder / "all", photos(folder))
    record = calibrate_bundle(bundle.path, str(folder / "d"))
    assert record.measured.selection_photos == record.measured.rows == 423
    assert not record.point(PLAIN, record.setting("coverage")).guaranteed
    bundle = replace_files(bundle.path, {"provenance.json": b'{"networks_compared": 5}'})
    record = calibrate_bundle(bundle.path, str(folder / "d"))
    point = record.point(PLAIN, record.setting("coverage"))
    assert (point.guaranteed, point.table.candidates) == (True, 5)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("overlap", "networks"),
    [
        (PhotoOverlap(0, 0, False, 1), 1),  # the network has not met them
        (PhotoOverlap(0, ROWS, True, 1), 1),  # they chose the only epoch
        (PhotoOverlap(0, ROWS, True, 12), 12),
        (PhotoOverlap(0, 9, True, 12), 12),
        (PhotoOverlap(0, ROWS, True, None), None),  # nobody counted
        (PhotoOverlap(3, 0, True, 1), None),  # some trained it
        (PhotoOverlap(), None),  # nobody knows
    ],
)
def test_a_hit_rate_to_expect_is_stated_where_these_photos_can_tell(
    overlap: PhotoOverlap, networks: int | None, apart: bool
) -> None:
    """No outputs tell what the other networks would have done on photos that did not choose."""
    logits, labels = sample_logits()
    choosing = np.arange(ROWS) % 5 == 0 if apart else None
    plan = CalibrationPlan(classes=CLASSES, ks=(3.0,), temperatures=(1.0, 2.0), images=())
    outputs = scoring_of({"a": logits, "b": -logits}, labels)
    record = fit_record(outputs, plan, class_counts=COUNTS, choosing=choosing, overlap=overlap)
    selection, point = record.selection, record.point(PLAIN, record.setting("average_k"))
    assert (selection.honest_hit_rate is not None) == (networks == 1)
    assert (selection.honest_ci95 is not None) == (networks is not None)
    if selection.honest_ci95 is not None:
        assert point.row.hit_rate is not None
        hits = np.arange(point.rows) < round(point.row.hit_rate * point.rows)
        total = (1 if apart else 6) * (networks or 1)  # 4 pairs, of which 2 have a temperature more
        assert selection.honest_ci95[1] == pytest.approx(interval_of_best(hits, total)[1])
    note = selection_note(record)
    assert ("of 12 networks" in note) == (networks == 12)
    assert ("on other photos expect" in note) == (networks is not None and note != "")


def test_thresholds_are_those_of_the_rows_that_did_not_choose() -> None:
    logits, labels = sample_logits()
    choosing = np.arange(ROWS) % 5 == 0
    alps = RegionList(name="alps", classes=(3, 5, 8))
    plan = CalibrationPlan(
        classes=CLASSES, ks=(3.0,), score_kind="softmax", images=(2,), lists=(alps,)
    )
    record = fit_record(
        scoring_of({"linear": logits}, labels, observations=PLANTS),
        plan,
        class_counts=COUNTS,
        choosing=choosing,
        overlap=PhotoOverlap(0, 0, False),
    )
    values = scores(logits[~choosing], "softmax")
    rule = calibrate("average_k", values, average_k=3)
    point = record.point(PLAIN, record.setting("average_k"))
    assert point.lambda_val == rule.lambda_val
    members = rule.sets(values)[np.arange(len(values)), labels[~choosing]]
    assert point.row.hit_rate == members.mean()
    listed = np.isin(labels[~choosing], alps.classes).sum()
    assert record.lists[0].rows == record.point(View(list="alps"), point.setting).rows == listed
    assert CalibrationRecord.from_json(record.to_json()) == record


def test_thresholds_allow_for_the_networks_that_their_photos_compared() -> None:
    logits, labels = sample_logits()
    plan = CalibrationPlan(
        classes=CLASSES, ks=(3.0,), coverages=(0.8,), head="linear", score_kind="softmax",
        images=(),
    )  # fmt: skip
    one, twelve = (
        fit_record(
            scoring_of({"linear": logits}, labels),
            plan,
            class_counts=COUNTS,
            overlap=PhotoOverlap(0, ROWS, True, networks),
        )
        for networks in (1, 12)
    )
    for point in one.requested_points():
        other = twelve.point(PLAIN, point.setting)
        assert other.guaranteed == point.guaranteed == (point.guarantee is not None)
        assert other.row.size <= point.row.size if point.k else other.row.size > point.row.size


def test_an_opened_bundle_says_how_many_chose(folder: Path) -> None:
    bundle = bundle_of(folder / "again", [])
    calibrate_bundle(bundle.path, str(folder / "d"))
    content = open_bundle(bundle.path).read_object("calibration.json")
    assert content["measured"]["choosing_rows"] == 105

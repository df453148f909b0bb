"""Thresholds of lists: against an oracle, in blocks, at the borders, and on fresh photos."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.calibrate import calibrate_bundle, fit, score_sources
from florilege.calibration.calibrate import photo_outputs as outputs_module
from florilege.calibration.calibrate.cautions import FEW_LISTED, cautions
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.score_sources import LabelledPhotos, Source
from florilege.calibration.calibrate.threshold_tables import tabulate
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import NotCalibrated
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import ScoreKind
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import Scoring, View
from florilege.errors import DataError
from florilege.models.bundle import open_bundle
from florilege.models.regions import RegionList
from tests.calibration.estimates import hits_of
from tests.calibration.record.test_record import COUNTS, fitted, sample_logits, scoring_of
from tests.calibration.simulation import CLASSES, draw
from tests.calibration.small_bundle import make_bundle, make_data

ALPS = RegionList(name="alps", classes=(1, 4, 5, 12, 18, 22, 27, 29))
PAIR = RegionList(name="pair", classes=(0, 2))


def fitted_lists(
    *lists: RegionList,
    without: tuple[int, ...] = (),
    kind: ScoreKind = "softmax",
    temperature: float = 1.0,
) -> CalibrationRecord:
    """The record of the sample, maybe without the photos of some classes."""
    logits, labels = sample_logits()
    rows = ~np.isin(labels, without)
    settings: dict[str, Any] = {"ks": (1.0, 2.55, 3.0, 10.0), "coverages": (0.9,), "lists": lists}
    settings |= {"score_kind": kind, "temperatures": (temperature,)}
    return fitted({"linear": logits[rows]}, labels[rows], **settings)


@pytest.fixture(scope="module")
def alpine() -> CalibrationRecord:
    return fitted_lists(ALPS)


def among(
    logits: NDArray[np.float32],
    labels: NDArray[np.int64],
    region: RegionList,
    *,
    kind: ScoreKind = "softmax",
    temperature: float = 1.0,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Photo by photo: the scores of the listed classes alone, and labels among these."""
    rows, places = [], []
    for row, label in zip(logits, labels, strict=True):
        if label in region.classes:
            remaining = np.array([float(row[index]) for index in region.classes]) / temperature
            powers = np.exp(remaining - remaining.max())
            rows.append(
                powers / powers.sum() if kind == "softmax" else 1 / (1 + np.exp(-remaining))
            )
            places.append(region.classes.index(int(label)))
    return np.array(rows), np.array(places)


@pytest.mark.parametrize(
    ("kind", "temperature"), [("softmax", 1.0), ("softmax", 1.7), ("sigmoid", 1.0)]
)
def test_a_list_has_thresholds_of_its_own_photos(kind: ScoreKind, temperature: float) -> None:
    logits, labels = sample_logits()
    record = fitted_lists(ALPS, kind=kind, temperature=temperature)
    values, places = among(logits, labels, ALPS, kind=kind, temperature=temperature)
    [result] = record.lists
    assert (result.name, result.classes, result.rows) == ("alps", ALPS.classes, len(values))
    assert result.classes_seen == len(set(places.tolist()))
    counts = COUNTS[list(ALPS.classes)]
    for rule in ("average_k", "balanced_average_k", "coverage", "balanced_coverage"):
        options = {"coverage": 0.9} if "coverage" in rule else {"average_k": 2.55}
        value = 0.9 if "coverage" in rule else 2.55
        oracle = calibrate(rule, values, places, class_counts=counts, **options)  # type: ignore[arg-type]  # one of the two
        point = record.point(View(list="alps"), record.setting(rule, value))
        assert point.lambda_val == pytest.approx(oracle.lambda_val, rel=1e-12)
        sets = oracle.sets(values)
        assert point.row.size == sets.sum() / len(values)
        assert hits_of(point).value == sets[np.arange(len(sets)), places].mean()
        assert (point.sets(values) != sets).sum() <= 1  # one score may lie on the threshold
        assert (point.rows, point.table.view.list) == (len(values), "alps")
    assert record.point(View(list="alps"), record.setting("top_k", 3)).row.size == 3
    assert (
        "of classes of the list 'alps' like the"
        in record.point(View(list="alps"), record.setting("average_k")).statement
    )


def test_a_list_changes_nothing_about_all_classes() -> None:
    plain, listed = fitted_lists(), fitted_lists(ALPS, PAIR)
    assert tuple(table for table in listed.tables if table.view.list is None) == plain.tables
    assert (listed.rules, listed.promises, listed.photos) == (
        plain.rules, plain.promises, plain.photos,
    )  # fmt: skip
    assert listed.compared(3.0) == plain.compared(3.0)
    assert listed.values("average_k") == plain.values("average_k")
    assert listed.values("average_k", None, View(list="alps")) == [1.0, 2.55, 3.0, 10.0]


def test_the_sets_of_a_k_beyond_a_list_hold_all_of_it() -> None:
    logits, labels = sample_logits()
    record = fitted_lists(PAIR)
    for rule in ("average_k", "balanced_average_k", "top_k"):
        point = record.point(View(list="pair"), record.setting(rule, 3))
        assert (point.k, point.row.size, hits_of(point).value) == (3.0, 2.0, 1.0)
        values, _ = among(logits, labels, PAIR)
        assert point.sets(values).all()
    assert record.point(View(list="pair"), record.setting("average_k")).k == 3.0
    one = fitted_lists(RegionList(name="one", classes=(7,)))
    assert one.point(View(list="one"), one.setting("average_k", 1)).row.size == 1.0
    assert one.point(View(list="one"), one.setting("coverage", 0.9)).row.size == 1.0


def test_a_list_without_photos_has_no_thresholds_and_says_so() -> None:
    record = fitted_lists(ALPS, without=ALPS.classes)
    assert record.lists[0].rows == record.lists[0].classes_seen == 0
    with pytest.raises(NotCalibrated, match="calibrated"):
        record.point(View(list="alps"), record.setting("average_k"))
    [warning] = [caution for caution in cautions(record) if "list" in caution]
    assert warning == "list 'alps' has no photo in this split: its answers are not calibrated"


def test_few_photos_and_absent_classes_are_cautions(alpine: CalibrationRecord) -> None:
    def warnings(rows: int, classes_with_photos: int) -> list[str]:
        changed = replace(alpine.lists[0], rows=rows, classes_seen=classes_with_photos)
        result = cautions(replace(alpine, lists=(changed,)))
        return [caution for caution in result if "list" in caution]

    assert warnings(FEW_LISTED, 8) == []
    [few] = warnings(FEW_LISTED - 1, 8)
    assert few.startswith("list 'alps' has only 199 photos")
    assert warnings(FEW_LISTED, 6) == ["2 of the 8 classes of list 'alps' have no photo"]


def test_more_photos_than_a_block_give_the_same_thresholds(
    alpine: CalibrationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_module, "ROWS_AT_ONCE", 7)  # most blocks hold no photo of the list
    assert fitted_lists(ALPS).tables == alpine.tables


def listed_source(outputs: SplitOutputs, region: RegionList) -> Source:
    counts = np.ones(CLASSES, dtype=np.int64)
    photos = LabelledPhotos(outputs=outputs, counts=counts, lists={region.name: region.classes})
    return photos.source(View(list=region.name), Scoring(head="a", score_kind="softmax"))


@pytest.mark.parametrize(("bytes_kept", "passes"), [(10**6, 1), (0, 3)])
def test_scores_of_few_photos_are_computed_once_and_others_in_every_pass(
    monkeypatch: pytest.MonkeyPatch, bytes_kept: int, passes: int
) -> None:
    monkeypatch.setattr(score_sources, "_KEPT_BYTES", bytes_kept)
    logits, labels = sample_logits()
    outputs = SplitOutputs({"linear": CLASSES}, labels[:200], split="val")
    outputs.append({"linear": logits[:200]})
    rows = MagicMock(wraps=outputs.rows)
    monkeypatch.setattr(outputs, "rows", rows)
    counts = np.ones(CLASSES, dtype=np.int64)
    photos = LabelledPhotos(outputs=outputs, counts=counts, lists={})
    source = photos.source(View(), Scoring(head="linear", score_kind="softmax"))
    first, *others = (np.concatenate([scores for scores, _ in source.blocks()]) for _ in range(3))
    assert all((scores == first).all() for scores in others)
    assert rows.call_count == passes
    outputs.close()


def test_photos_of_a_list_keep_their_plants() -> None:
    logits, labels = sample_logits()
    plants = [str(row // 5) for row in range(len(labels))]
    outputs = scoring_of({"a": logits}, labels, observations=plants)
    source = listed_source(outputs, ALPS)
    expected = [row // 5 for row, label in enumerate(labels) if label in ALPS.classes]
    assert source.observations is not None
    assert source.observations.tolist() == expected
    assert (source.rows, source.classes) == (len(expected), len(ALPS.classes))


def test_progress_ends_at_the_announced_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = sample_logits()
    nobody = RegionList(name="nobody", classes=(0,))
    selection = labels != 0
    progress = MagicMock()
    monkeypatch.setattr(fit, "progress", progress)
    fitted({"a": logits[selection]}, labels[selection], ks=(3.0,), lists=(ALPS, nobody))
    advance = progress.return_value.__enter__.return_value
    assert advance.call_count == progress.call_args.args[0] == 2 + 5 * 3 + 1


def sizes_at(lambda_val: float | None, values: NDArray[np.float64]) -> NDArray[np.int64]:
    assert lambda_val is not None
    sizes: NDArray[np.int64] = np.maximum(1, (values >= lambda_val).sum(axis=1))
    return sizes


def test_the_mean_size_on_fresh_photos_of_the_list_is_k_within_its_error() -> None:
    """The network knows the posterior; lists are a third of the classes, several times drawn."""
    random, gaps, shrunk = np.random.default_rng(3), [], []
    plan = CalibrationPlan(classes=CLASSES, ks=(3.0,))
    for seed in range(20):
        classes = sorted(random.choice(CLASSES, CLASSES // 3, replace=False).tolist())
        region = RegionList(name="third", classes=tuple(classes))
        calibration, fresh = (draw(np.random.default_rng([seed, part]), 3000) for part in (0, 1))
        scoring = scoring_of(
            {"a": np.log(calibration.scores).astype(np.float32)}, calibration.labels
        )
        source = listed_source(scoring, region)
        [row] = [rule.counts[0] for rule in tabulate(source, plan, "sizes").table.rules]
        values, _ = among(np.log(fresh.scores).astype(np.float32), fresh.labels, region)
        sizes = sizes_at(row.lambda_val, values)
        error = sizes.std() * np.sqrt(1 / len(sizes) + 1 / source.rows)
        gaps.append((sizes.mean() - 3 - row.ties / source.rows) / error)
        old = calibrate("average_k", calibration.scores, average_k=3)
        shrunk.append(sizes_at(old.lambda_val, values).mean())
    assert abs(np.mean(gaps)) < 3 / np.sqrt(len(gaps))
    assert np.abs(gaps).max() < 4
    assert np.mean(shrunk) < 2.5


def test_the_record_is_small_with_ten_lists_of_a_thousand_classes() -> None:
    random, rows = np.random.default_rng(0), 300
    labels = random.integers(0, 1081, rows)
    logits = random.normal(0, 1, (rows, 1081)).astype(np.float32)
    logits[np.arange(rows), labels] += 5
    sample = (random.choice(1081, 500, replace=False) for _ in range(10))
    lists = tuple(
        RegionList(name=f"region {number}", classes=tuple(sorted(classes.tolist())))
        for number, classes in enumerate(sample)
    )
    heads, plants = {"multi_label": logits, "sccp": logits}, [str(row // 4) for row in range(rows)]
    options: dict[str, Any] = {"observations": plants, "classes": 1081, "lists": lists}
    counts = random.integers(1, 100_000, 1081)
    record = fitted(heads, labels, class_counts=counts, **options)
    text = record.to_json()
    assert len(text) < 300_000
    assert CalibrationRecord.from_json(text) == record


def test_a_record_whose_lists_and_tables_disagree_is_refused(alpine: CalibrationRecord) -> None:
    for lists, message in (
        ((), "tables for lists that do not exist"),
        ((*alpine.lists, *alpine.lists), "two lists have the same name"),
        ((replace(alpine.lists[0], classes=(1, CLASSES)),), "beyond the"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(alpine, lists=lists)


def test_a_folder_of_lists_is_calibrated_and_evaluated_on_photos_of_each(tmp_path: Path) -> None:
    bundle, data = make_bundle(tmp_path / "b"), str(make_data(tmp_path / "d", rows=12))
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "warm.txt").write_text("c5\nc0\nc2\n")
    (folder / "cold.txt").write_text("c1\n")
    record = calibrate_bundle(bundle.path, data, list_files=[str(folder)], ks=[1, 2])
    assert [(each.name, each.rows) for each in record.lists] == [("cold", 12), ("warm", 36)]
    result = evaluate_bundle(bundle.path, data)
    cold, warm = result.to_plain()["lists"]
    assert (cold["list"], cold["classes"], cold["rows"]) == ("cold", 1, 12)
    assert (warm["list"], warm["classes"], warm["rows"]) == ("warm", 3, 36)
    own = {(each["rule"], each.get("k")): each for each in warm["rules"]}
    assert own["average_k", 2.0]["mean_set_size"] == pytest.approx(2, abs=0.5)
    assert own["average_k", 2.0]["rows"] == 36
    [one] = [each for each in cold["rules"] if each["rule"] == "top_k" and each["k"] == 2]
    assert (one["mean_set_size"], one["mean_set_size_ci95"]) == (1, (1, 1))  # all there is
    point = read_record(open_bundle(bundle.path)).point(
        View(list="cold"), read_record(open_bundle(bundle.path)).setting("top_k", 2)
    )
    assert point.top_k == 1
    calibrate_bundle(bundle.path, data)
    assert evaluate_bundle(bundle.path, data).lists == ()


def test_a_circumstance_that_was_named_but_no_photo_shows_is_told(tmp_path: Path) -> None:
    bundle, data = make_bundle(tmp_path / "b"), str(make_data(tmp_path / "d", rows=2))
    for views, count in ((("photos", "lists", "places"), 3), (("all",), 0), (("none",), 0)):
        told = list[str]()
        record = calibrate_bundle(bundle.path, data, views_wanted=views, ks=[1], say=told.append)
        assert record.views == (View(),)
        assert len(told) == count
    told = list[str]()
    options: dict[str, Any] = {
        "views_wanted": ("lists", "photos"),
        "list_files": [str(tmp_path / "warm.txt")],
    }
    (tmp_path / "warm.txt").write_text("c0\nc1\n")
    calibrate_bundle(bundle.path, data, ks=[1], say=told.append, **options)
    assert told == [
        "--views asks for photos, which get no thresholds: too few plants or species have several"
    ]


def test_a_list_that_cannot_be_read_leaves_the_bundle_as_it_was(tmp_path: Path) -> None:
    bundle, data = make_bundle(tmp_path / "b"), str(make_data(tmp_path / "d", rows=2))
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "alps.txt").write_text("c1\nc9\n")
    with pytest.raises(DataError, match="c9"):
        calibrate_bundle(bundle.path, data, list_files=[str(tmp_path / "lists")])
    assert not (bundle.path / "calibration.json").exists()

"""Temperatures as candidates of the nested choice."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from florilege.calibration.calibrate.calibrate import calibrate_bundle
from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.photo_outputs import outputs_of
from florilege.calibration.cli import app
from florilege.calibration.nested_cross_validation import choose
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.inspection import card
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scale_logits, scores
from florilege.data.sources import open_dataset
from florilege.errors import UsageError
from florilege.models.bundle import open_bundle
from florilege.models.session import Session
from tests.calibration.small_bundle import make_bundle, make_data

TEMPERATURES = (0.5, 1.0, 8.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data ``d`` and bundles that are not calibrated: ``a``, and ``sharp``, much too sure."""
    root = tmp_path_factory.mktemp("temperatures")
    make_data(root / "d", rows=40, splits=("val",))
    make_bundle(root / "a")
    make_bundle(root / "sharp", heads={"linear": "logits"}, sharper=100)
    return root


def hits_of(path: Path, data: Path, head: str, kind: str, temperature: float) -> np.ndarray:
    """Hits of average-3 sets, each candidate with a threshold of its own."""
    bundle = open_bundle(path)
    split = open_dataset(str(data), splits=["val"], classes=bundle.classes).split("val")
    scoring = outputs_of(Session(bundle, device="cpu"), split)
    logits = np.concatenate([block for (block,), _ in scoring.blocks(head)])
    values = scores(logits.astype(np.float64) / temperature, kind)  # type: ignore[arg-type]
    sets = calibrate("average_k", values, average_k=3).sets(values)
    return np.asarray(sets[np.arange(len(sets)), split.labels])


def test_each_head_has_every_temperature_of_softmax_and_one_of_sigmoid() -> None:
    settings = CalibrationPlan(classes=6, ks=(3.0,), temperatures=(0.5, 1.0, 2.0))
    assert settings.candidates(["a"]) == [
        ("a", "softmax", 0.5), ("a", "softmax", 1.0), ("a", "softmax", 2.0), ("a", "sigmoid", 1.0),
    ]  # fmt: skip
    assert len(settings.candidates(["a", "b"])) == 8


def test_the_temperature_with_most_hits_serves_and_its_rate_is_honest(folder: Path) -> None:
    record = calibrate_bundle(
        folder / "sharp", str(folder / "d"), temperatures=TEMPERATURES, score_kind="softmax"
    )
    hits = [
        hits_of(folder / "sharp", folder / "d", "linear", "softmax", temperature)
        for temperature in TEMPERATURES
    ]
    expected = choose(hits)
    assert record.temperature == TEMPERATURES[expected.best]
    assert record.temperature != 1
    assert record.selection.candidates == 3
    assert record.selection.hit_rate == expected.hit_rate
    assert record.selection.honest_hit_rate == expected.honest_hit_rate
    assert record.measured.chose_head
    rates = {key[2]: rate for key, rate in record.compared(3.0).items()}
    assert rates == {
        temperature: pytest.approx(row.mean(), abs=1e-12)
        for temperature, row in zip(TEMPERATURES, hits, strict=True)
    }
    assert CalibrationRecord.from_json(record.to_json()) == record
    assert len(set(record.rules)) == len(record.rules)
    rules = card(open_bundle(folder / "sharp"))["calibration"]["rules"]
    assert [point["value"] for point in rules["average_k"]] == record.ks("average_k")


def test_one_temperature_chooses_nothing(folder: Path) -> None:
    record = calibrate_bundle(
        folder / "sharp", str(folder / "d"), temperatures=[2], score_kind="softmax"
    )
    assert (record.temperature, record.selection.candidates) == (2.0, 1)
    assert not record.measured.chose_head


def test_the_command_takes_temperatures_and_shows_them(folder: Path) -> None:
    arguments = ["calibrate", str(folder / "sharp"), "--data", str(folder / "d")]
    result = CliRunner().invoke(app, [*arguments, "--temperature", "8,0.5,8", "--json"])
    content = json.loads(result.stdout)
    assert content["temperature"] == read_record(open_bundle(folder / "sharp")).temperature == 8
    listed = {(entry["score_kind"], entry["temperature"]) for entry in content["compared"]}
    assert listed == {("softmax", 8.0), ("softmax", 0.5), ("sigmoid", 1.0)}
    output = CliRunner().invoke(app, [*arguments, "--temperature", "8"]).stdout
    assert "softmax at temperature 8" in output
    card = open_bundle(folder / "sharp").read("MODEL_CARD.md").decode()
    assert "`softmax at temperature 8`" in card


@pytest.mark.parametrize(
    "flags",
    [["0"], ["-1"], ["1000"], ["nan"], ["1,x"], ["2", "--score-kind", "sigmoid"]],
)
def test_temperatures_that_cannot_be_are_usage_errors(folder: Path, flags: list[str]) -> None:
    arguments = ["calibrate", str(folder / "a"), "--data", str(folder / "d"), "--temperature"]
    result = CliRunner().invoke(app, [*arguments, *flags])
    assert isinstance(result.exception, UsageError)
    assert not open_bundle(folder / "a").has("calibration.json")


def test_a_temperature_moves_no_class_past_another_and_evens_the_scores() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 7)) * 5
    cold, hot = scores(logits, "softmax", temperature=0.5), scores(logits, "softmax", temperature=4)
    assert (np.argsort(cold, axis=1) == np.argsort(hot, axis=1)).all()
    assert (cold.max(axis=1) > hot.max(axis=1)).all()
    assert scale_logits(logits, 1) is logits


@pytest.mark.parametrize("temperature", [0.0, -1.0, 101.0, float("nan"), float("inf")])
def test_other_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"temperature must be in \[0.01, 100\]"):
        scale_logits([[0.0]], temperature)

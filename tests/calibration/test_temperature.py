"""Temperatures as candidates of the nested choice."""

import json
from pathlib import Path

import numpy as np
import pytest

from florilege.calibration.calibrate import calibrate_bundle, fit
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.comparison import choose_simplest
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scale_logits, scores
from florilege.calibration.settings import TEMPERATURES, CalibrationPlan
from florilege.models.bundle import open_bundle
from tests.calibration.command_line import run, usage_error
from tests.calibration.estimates import UNMET, to_expect
from tests.calibration.small_bundle import make_bundle, make_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data ``d`` and bundles that are not calibrated: ``a``, and ``sharp``, much too sure."""
    root = tmp_path_factory.mktemp("temperatures")
    make_data(root / "d", rows=40, splits=("val",))
    make_bundle(root / "a")
    make_bundle(root / "sharp", heads={"linear": "logits"}, sharper=100)
    return root


def test_heads_and_kinds_are_compared_at_the_temperature_nearest_to_1() -> None:
    plan = CalibrationPlan(classes=6, ks=(3.0,), temperatures=(0.2, 2.0, 0.6))
    assert temperatures(plan) == {"softmax": [0.6, 2.0, 0.2], "sigmoid": [1.0]}
    assert temperatures(plan.model_copy(update={"score_kind": "softmax"})) == {
        "softmax": [0.6, 2.0, 0.2]
    }
    automatic = CalibrationPlan(classes=6, ks=(3.0,))
    assert temperatures(automatic)["softmax"] == sorted(TEMPERATURES, key=lambda t: abs(np.log(t)))
    single = automatic.model_copy(update={"score_kind": "softmax"})
    assert temperatures(single) == {"softmax": [1.0]}  # where nothing else is chosen either


def temperatures(plan: CalibrationPlan) -> dict[str, list[float]]:
    """Those of a head by kind of score."""
    return {
        candidates[0].score_kind: [scoring.temperature for scoring in candidates]
        for candidates in plan.candidates(["a"])
    }


def network(scale: float, rows: int = 3000, classes: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are ``scale`` times those of the true probabilities, and labels drawn from these.

    Photos differ in how clear they are, so that one threshold depends on the scale.
    """
    random = np.random.default_rng(7)
    logits = random.normal(size=(rows, classes)) * random.uniform(0.3, 5, size=(rows, 1))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    return (scale * logits).astype(np.float32), labels


def hits_of(logits: np.ndarray, labels: np.ndarray, temperature: float, k: float) -> np.ndarray:
    """Hits of average-k sets, with a threshold of their own."""
    values = scores(logits.astype(np.float64) / temperature, "softmax")
    sets = calibrate("average_k", values, average_k=k, min_size=1).sets(values)
    return np.asarray(sets[np.arange(len(sets)), labels])


@pytest.mark.parametrize(
    ("scale", "rows_at_most", "photos_a_plant", "expected"),
    [(0.25, 5000, 1, 0.25), (0.25, 1000, 4, 0.25), (3.0, 5000, 4, 2.0), (1.0, 5000, 1, 1.0)],
)
def test_a_temperature_that_clearly_hits_more_serves_and_its_rate_is_honest(
    monkeypatch: pytest.MonkeyPatch,
    scale: float,
    rows_at_most: int,
    photos_a_plant: int,
    expected: float,
) -> None:
    monkeypatch.setattr(fit, "TEMPERATURE_ROWS", rows_at_most)
    logits, labels = network(scale)
    names = [str(row // photos_a_plant) for row in range(len(labels))]
    outputs = SplitOutputs({"a": 20, "worse": 20}, labels, observations=names)
    outputs.append({"a": logits, "worse": np.roll(logits, 1, axis=0)})
    plan = CalibrationPlan(classes=20, ks=(2.0, 3.0, 5.0), temperatures=TEMPERATURES,
                           score_kind="softmax", images=(), rejection_method=None)  # fmt: skip
    plants_of_rows = list[list[int]]()

    def recorded(hits: np.ndarray, observations: np.ndarray) -> tuple[int, np.ndarray]:
        plants_of_rows.append(observations.tolist())
        return choose_simplest(hits, observations=observations)

    monkeypatch.setattr(fit, "choose_simplest", recorded)
    record = fit.fit_record(outputs, plan, class_counts=None, overlap=UNMET)
    assert record.temperature == expected
    step, order = len(labels) // rows_at_most or 1, temperatures(plan)["softmax"]
    few = slice(None, None, step)
    assert plants_of_rows == [[int(name) for name in names[few]]]
    hits = [
        np.stack([hits_of(logits[few], labels[few], t, k) for k in plan.ks], axis=1) for t in order
    ]
    index, gain = choose_simplest(hits, observations=names[few])
    assert record.temperature == order[index]
    served, first = (hits_of(logits, labels, t, 3) for t in (expected, 1))
    selection = record.selection
    assert (selection.candidates, record.measured.chose_head) == (len(TEMPERATURES) + 1, True)
    assert selection.hit_rate == served.mean()
    honest, (low, high) = to_expect(record)
    assert honest == pytest.approx(first.mean() + gain[1], abs=1e-12)
    assert low <= honest <= high
    rates = record.compared(3.0).items()
    assert {key[2]: rate for key, rate in rates if key[0] == "a"} == {
        1.0: pytest.approx(first.mean()), expected: pytest.approx(served.mean())
    }  # fmt: skip
    assert CalibrationRecord.from_json(record.to_json()) == record
    kinds = [
        (rule.rule, table.scoring, rule.guarantee)
        for table in record.tables
        for rule in table.rules
    ]
    assert len(set(kinds)) == len(kinds)


def test_one_temperature_chooses_nothing_and_one_whose_sets_are_too_large_is_left_out(
    folder: Path,
) -> None:
    record = calibrate_bundle(folder / "sharp", str(folder / "d"), temperatures=(1.0, 0.01))
    assert record.temperature == 1
    record = calibrate_bundle(
        folder / "sharp", str(folder / "d"), temperatures=[2], score_kind="softmax"
    )
    assert (record.temperature, record.selection.candidates) == (2.0, 1)
    assert not record.measured.chose_head


def test_the_command_takes_temperatures_and_shows_them(folder: Path) -> None:
    arguments = ("calibrate", folder / "sharp", "--data", folder / "d", "--temperature")
    content = json.loads(run(*arguments, "8,9,8", "--json").stdout)
    assert content["temperature"] == read_record(open_bundle(folder / "sharp")).temperature == 8
    listed = {(entry["score_kind"], entry["temperature"]) for entry in content["compared"]}
    assert listed == {("softmax", 8.0), ("sigmoid", 1.0)}
    assert "softmax at temperature 8" in run(*arguments, "8", "--all").stdout
    card = open_bundle(folder / "sharp").read("MODEL_CARD.md").decode()
    assert "`softmax at temperature 8`" in card


@pytest.mark.parametrize(
    "flags",
    [["0"], ["-1"], ["1000"], ["nan"], ["1,x"], ["2", "--score-kind", "sigmoid"]],
)
def test_temperatures_that_cannot_be_are_usage_errors(folder: Path, flags: list[str]) -> None:
    usage_error("calibrate", folder / "a", "--data", folder / "d", "--temperature", *flags)
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

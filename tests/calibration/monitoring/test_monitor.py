"""The monitor: false alarms, power, and the blur that mean set sizes are blind to."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.drift import (
    CLEAR_AFTER,
    Expected,
    Monitor,
    _Alarm,
    expected_of,
)
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import EDGES, logsumexp, scores
from florilege.calibration.sets import largest_set
from florilege.calibration.view import PLAIN
from florilege.errors import BundleError
from tests.calibration.oracles import in_bins
from tests.calibration.record.test_record import fitted, make_record, sample_logits
from tests.calibration.simulation import CLASSES, MEANS, PRIOR

Floats = NDArray[np.float64]
Usual = tuple[Expected, float]

RUNS = 300
ALPHA = 0.05
SIZE = 3


class Photos:
    """Live photos of the simulated plants, maybe of other frequencies, maybe blurred."""

    def __init__(
        self,
        random: np.random.Generator,
        rows: int,
        *,
        prior: Floats = PRIOR,
        blur: float = 1.0,
        a_plant: int = 1,
    ) -> None:
        plants = -(-rows // a_plant)
        self.labels = np.repeat(random.choice(CLASSES, plants, p=prior), a_plant)[:rows]
        of_plants = np.repeat(random.standard_normal((plants, 4)), a_plant, axis=0)[:rows]
        own = random.standard_normal((rows, 4))
        values = own if a_plant == 1 else np.sqrt(0.6) * of_plants + np.sqrt(0.4) * own
        points = MEANS[self.labels] + blur * values
        squares = (points**2).sum(axis=1, keepdims=True) + (MEANS**2).sum(axis=1)
        logits = np.log(PRIOR) + points @ MEANS.T - squares / 2
        self.scores = scores(logits, "softmax")
        self.best = self.scores.max(axis=1)
        self.energy = np.log(np.exp(logits).sum(axis=1))

    def sizes(self, lambda_val: float) -> NDArray[np.int64]:
        return np.asarray((self.scores >= lambda_val).sum(axis=1))


POOL = Photos(np.random.default_rng(0), 30_000)


def histogram(values: Floats) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Forty bins with as many values each."""
    edges = np.unique(np.quantile(values, np.arange(0, 1, 0.025)))
    counts = np.bincount(np.searchsorted(edges, values, side="right") - 1, minlength=edges.size)
    return tuple(edges.tolist()), tuple(counts.tolist())


def expected_from(best: Floats, energy: Floats | None, values: Floats) -> Usual:
    """What a record would say, with min_size 0, and its threshold."""
    lambda_val = calibrate("average_k", values, average_k=SIZE, min_size=0).lambda_val
    assert lambda_val is not None
    sizes = (values >= lambda_val).sum(axis=1)
    edges, counts = ((), ()) if energy is None else histogram(energy)
    expected = Expected(
        calibration_id="a",
        rows=len(best),
        mean_size=float(sizes.mean()),
        size_rows=len(best),
        size_deviation=float(sizes.std()),
        largest_size=largest_set(CLASSES, "softmax", lambda_val),
        faint_below=lambda_val,
        faint_rate=float((best < lambda_val).mean()),
        edges=tuple(EDGES.tolist()),
        best_scores=tuple(in_bins(best).tolist()),
        logsumexp_edges=edges,
        logsumexp=counts,
    )
    return expected, lambda_val


@pytest.fixture(scope="module")
def usual() -> Usual:
    photos = Photos(np.random.default_rng(1), 4000)
    return expected_from(photos.best, photos.energy, photos.scores)


def fed(monitor: Monitor, photos: Photos, lambda_val: float) -> list[_Alarm]:
    return monitor.update(photos.sizes(lambda_val), photos.best, photos.energy)


def alarms_on(usual: Usual, photos: Photos, quiet: int = 0) -> dict[str, int]:
    """Rows after the quiet ones at which each thing watched gave its alarm."""
    expected, lambda_val = usual
    monitor = Monitor(expected)
    before = Photos(np.random.default_rng(2), quiet)
    for part in (before, photos) if quiet else (photos,):
        fed(monitor, part, lambda_val)
    return {alarm.watched: alarm.row - quiet for alarm in monitor.alarms}


def test_false_alarms_are_as_rare_as_promised_with_an_estimated_threshold() -> None:
    random, false = np.random.default_rng(3), 0
    for _ in range(RUNS):
        rows = random.choice(30_000, 400 + 250, replace=False)
        validation, live = rows[:400], rows[400:]
        values = POOL.energy[validation]  # their bins are chosen from the photos counted in them
        expected, lambda_val = expected_from(POOL.best[validation], values, POOL.scores[validation])
        monitor = Monitor(expected, alpha=ALPHA, seed=int(random.integers(2**31)))
        sizes = (POOL.scores[live] >= lambda_val).sum(axis=1)
        false += bool(monitor.update(sizes, POOL.best[live], POOL.energy[live]))
    assert false / RUNS <= ALPHA + 0.006 + 3 * np.sqrt(ALPHA * (1 - ALPHA) / RUNS)


def test_four_photos_of_each_plant_one_by_one_alarm_as_rarely_as_promised() -> None:
    random, false, as_if_independent, runs = np.random.default_rng(12), 0, 0, RUNS // 3
    for run in range(runs):
        validation, live = (Photos(random, rows, a_plant=4) for rows in (400, 800))
        expected, lambda_val = expected_from(validation.best, validation.energy, validation.scores)
        figures = (live.sizes(lambda_val), live.best, live.energy)
        false += bool(Monitor(expected, alpha=ALPHA, seed=run).update(*figures))
        if run < 100:
            as_if_independent += bool(Monitor(expected, seed=run, cluster_size=1).update(*figures))
    assert false / runs <= ALPHA + 0.006 + 3 * np.sqrt(ALPHA * (1 - ALPHA) / runs)
    assert as_if_independent / 100 > 4 * ALPHA


def test_without_tolerance_the_size_alone_would_alarm_far_more_often() -> None:
    """Why there is one: the threshold is estimated, so that the true mean is never quite K."""
    random, false = np.random.default_rng(4), {1e-9: 0, 3.0: 0}
    for _ in range(120):
        validation, live = random.choice(30_000, 100), random.choice(30_000, 3000)
        expected, lambda_val = expected_from(POOL.best[validation], None, POOL.scores[validation])
        sizes = (POOL.scores[live] >= lambda_val).sum(axis=1)
        for z in false:
            test = Monitor(expected, z=z).tests["set_size"]
            false[z] += bool(test.update(sizes).max() >= np.log(1 / ALPHA))
    assert false[1e-9] / 120 > 3 * ALPHA
    assert false[3.0] / 120 <= ALPHA


@pytest.mark.parametrize("classes", [2, 3])
def test_sets_of_one_size_on_validation_photos_are_no_promise_of_that_size(classes: int) -> None:
    random = np.random.default_rng(classes)
    alarms = 0
    for _ in range(12):
        values = scores(random.normal(size=(20_300, classes)), "softmax")
        k = 1 if classes == 2 else classes  # the default: each set holds one class, or all three
        rule = calibrate("average_k", values[:300], average_k=k)
        sizes = rule.sets(values).sum(axis=1)
        assert sizes[:300].tolist() == [k] * 300
        best = values.max(axis=1)
        expected = Expected(
            calibration_id="a", rows=300, mean_size=k, size_rows=300, size_deviation=0.0,
            largest_size=classes, faint_below=0.0, faint_rate=0.0,
            edges=tuple(EDGES.tolist()), best_scores=tuple(in_bins(best[:300]).tolist()),
        )  # fmt: skip
        result = Monitor(expected).update(sizes[300:], best[300:])
        alarms += any(alarm.watched == "set_size" for alarm in result)
    assert alarms <= 1


def test_a_threshold_that_leaves_every_set_empty_can_be_watched() -> None:
    expected = Expected(
        calibration_id="a", rows=100, mean_size=0.0, size_rows=100, size_deviation=0.0,
        largest_size=1, faint_below=0.9, faint_rate=1.0, edges=(0.0, 1.0), best_scores=(100, 0),
    )  # fmt: skip
    watched = {alarm.watched for alarm in Monitor(expected).update(np.ones(500), np.ones(500))}
    assert "set_size" in watched


@pytest.mark.parametrize(("quiet", "most"), [(0, 1000), (20_000, 2800)])
def test_other_frequencies_of_species_are_noticed_even_after_a_quiet_time(
    usual: Usual, quiet: int, most: int
) -> None:
    uniform = Photos(np.random.default_rng(5), 2500, prior=np.full(CLASSES, 1 / CLASSES))
    result = alarms_on(usual, uniform, quiet)
    assert 0 < result["set_size"] < most
    assert 0 < result["best_score"] < most


def test_each_alarm_comes_with_evidence_for_its_share_of_alpha(usual: Usual) -> None:
    expected, lambda_val = usual
    photos = Photos(np.random.default_rng(4), 2000, prior=PRIOR[::-1])
    sizes = photos.sizes(lambda_val).astype(np.float64)
    values = {"set_size": sizes, "best_score": photos.best, "logsumexp": photos.energy}
    alarms, tests = alarms_on(usual, photos), Monitor(expected).tests
    assert values.keys() & alarms.keys()
    for name in values.keys() & alarms.keys():
        enough = tests[name].update(values[name]) >= np.log(len(tests) / ALPHA)
        assert alarms[name] == int(enough.argmax()) + 1


def test_blur_that_leaves_the_size_and_costs_the_accuracy_is_noticed_by_the_logits(
    usual: Usual,
) -> None:
    clear, blurred = (Photos(np.random.default_rng(6), 4000, blur=blur) for blur in (1.0, 2.0))
    rows, lambda_val = np.arange(4000), usual[1]
    hits = [(p.scores[rows, p.labels] >= lambda_val).mean() for p in (clear, blurred)]
    assert blurred.sizes(lambda_val).mean() == pytest.approx(3.0, abs=0.1)
    assert hits[0] > 0.9
    assert hits[1] < 0.65
    result = alarms_on(usual, blurred)
    assert "set_size" not in result
    assert result["logsumexp"] < 240


def test_photos_of_something_else_are_faint(usual: Usual) -> None:
    expected, lambda_val = usual
    monitor = Monitor(expected)
    random = np.random.default_rng(7)
    strange = random.random(2000) < 0.1
    best = np.where(strange, lambda_val / 2, random.choice(POOL.best, 2000))
    monitor.update(np.full(2000, 3), best, random.choice(POOL.energy, 2000))
    result = {alarm.watched: alarm.row for alarm in monitor.alarms}
    assert result["faint_photos"] < 200


def test_a_photo_at_the_threshold_is_not_faint_and_one_just_below_is(usual: Usual) -> None:
    lambda_val = usual[1]
    for best, faint in ((lambda_val, False), (np.nextafter(lambda_val, 0), True)):
        monitor = Monitor(usual[0])
        monitor.update(np.full(20, 3), np.full(20, best), POOL.energy[:20])
        assert ("faint_photos" in {alarm.watched for alarm in monitor.alarms}) == faint


@pytest.mark.parametrize("blur", [1.3, 2.0])
def test_an_alarm_stands_while_the_change_lasts_and_ends_soon_after(
    usual: Usual, blur: float
) -> None:
    lambda_val, waits = usual[1], []
    for seed in range(6):
        random, monitor = np.random.default_rng(seed), Monitor(usual[0], seed=seed)
        assert fed(monitor, Photos(random, 1000), lambda_val) == []
        [begun] = fed(monitor, Photos(random, 8000, blur=blur), lambda_val)
        assert (begun.watched, begun.over, monitor.alarms) == ("logsumexp", False, [begun])
        assert f"photo {begun.row:,}" in begun.message
        [over] = fed(monitor, Photos(random, 5000), lambda_val)
        assert (over.watched, over.over, monitor.alarms) == ("logsumexp", True, [])
        assert f"over since photo {over.row:,}, noticed at photo {begun.row:,}" in over.message
        waits.append(over.row - 9000)
    assert CLEAR_AFTER / 3 < np.median(waits) < 2 * CLEAR_AFTER


def test_no_alarm_ends_before_so_many_photos_without_evidence(usual: Usual) -> None:
    random, monitor = np.random.default_rng(3), Monitor(usual[0])
    blurred = Photos(random, 400, blur=2.0)
    [begun] = fed(monitor, blurred, usual[1])
    [over] = fed(monitor, Photos(random, 3000), usual[1])
    assert over.row - begun.row >= CLEAR_AFTER
    again = fed(monitor, Photos(random, 400, blur=2.0), usual[1])
    assert [(alarm.watched, alarm.over) for alarm in again] == [("logsumexp", False)]


def test_after_an_alarm_has_ended_false_ones_are_as_rare_as_before() -> None:
    random, false = np.random.default_rng(13), 0
    expected, lambda_val = expected_from(POOL.best[:2000], POOL.energy[:2000], POOL.scores[:2000])
    for run in range(100):
        monitor = Monitor(expected, seed=run)
        fed(monitor, Photos(random, 150, blur=2.5), lambda_val)
        rows = 2000 + random.choice(28_000, 2500, replace=False)
        sizes = (POOL.scores[rows] >= lambda_val).sum(axis=1)
        result = monitor.update(sizes, POOL.best[rows], POOL.energy[rows])
        ends = [place for place, alarm in enumerate(result) if alarm.over]
        false += any(not alarm.over for alarm in result[ends[-1] if ends else 0 :])
        assert len(monitor.alarms) <= 1
    assert false / 100 <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / 100)


def test_alarms_that_come_and_go_do_not_depend_on_batches_or_restarts(usual: Usual) -> None:
    expected, lambda_val = usual
    random = np.random.default_rng(14)
    blurs = [Photos(random, 600, blur=blur) for blur in (1.0, 2.5, 1.0, 1.0, 1.0, 2.5, 1.0, 1.0)]
    whole = Monitor(expected)
    sizes = np.concatenate([part.sizes(lambda_val) for part in blurs])
    best = np.concatenate([part.best for part in blurs])
    energy = np.concatenate([part.energy for part in blurs])
    result = whole.update(sizes, best, energy)
    assert [alarm.over for alarm in result if alarm.watched == "logsumexp"] == [
        False, True, False, True,
    ]  # fmt: skip
    for step in (7, 1000):
        parts, monitor = list[_Alarm](), Monitor(expected)
        for at in range(0, len(sizes), step):
            part = slice(at, at + step)
            alarms = monitor.update(sizes[part], best[part], energy[part])
            assert all(at < alarm.row <= at + step for alarm in alarms)
            parts += alarms
            state = monitor.to_json()
            assert len(state) < 10_000
            monitor = Monitor(expected)
            monitor.restore(state)
        assert json.loads(state)["rows"] == len(sizes)
        assert parts == result
        assert monitor.alarms == whole.alarms


def test_the_state_of_another_calibration_or_a_damaged_one_is_refused(usual: Usual) -> None:
    monitor = Monitor(usual[0])
    other = Monitor(replace(usual[0], calibration_id="b"))
    with pytest.raises(BundleError, match="another calibration"):
        other.restore(monitor.to_json())
    for text in ("", "[]", "{}", monitor.to_json().replace("logs", "lags")):
        with pytest.raises(BundleError, match="damaged"):
            monitor.restore(text)
    assert monitor.rows == 0


def test_wrong_arguments_are_named(usual: Usual) -> None:
    monitor = Monitor(usual[0])
    with pytest.raises(ValueError, match="logsumexp is watched"):
        monitor.update([1], [0.5])
    with pytest.raises(ValueError, match="the same shape"):
        monitor.update([1, 2], [0.5], [0.0])
    with pytest.raises(ValueError, match="best_score"):
        monitor.update([1], [np.nan], [0.0])
    for alpha, z in ((0.0, 3.0), (1.0, 3.0), (0.05, 0.0)):
        with pytest.raises(ValueError, match="alpha must be"):
            Monitor(usual[0], alpha=alpha, z=z)


@pytest.mark.parametrize("min_size", [0, 1])
def test_a_record_says_what_to_expect(min_size: int) -> None:
    record = make_record(min_size=min_size)
    expected, point = (
        expected_of(record, k=1.1),
        record.point(PLAIN, record.setting("average_k", 1.1)),
    )
    values = scores(sample_logits()[0], record.score_kind)
    sizes = point.sets(values).sum(axis=1)
    assert expected.mean_size == pytest.approx(sizes.mean())
    assert expected.size_deviation == pytest.approx(sizes.std())
    assert expected.rows == len(values)
    assert expected.largest_size >= sizes.max()
    lambda_val = point.lambda_val
    assert lambda_val is not None
    assert expected.faint_below <= lambda_val
    assert expected.faint_below > lambda_val / 1.2
    assert expected.faint_rate == pytest.approx((values.max(axis=1) < expected.faint_below).mean())
    assert expected.faint_rate > 0
    monitor = Monitor(expected)
    assert expected.logsumexp_edges == record.distribution.logsumexp_edges
    assert sum(expected.logsumexp) == len(values)
    energies = logsumexp(sample_logits()[0][:300])
    assert monitor.update(sizes[:300], values[:300].max(axis=1), energies) == []


@pytest.mark.parametrize("min_size", [0, 1])
def test_a_much_photographed_plant_raises_no_alarm_on_photos_of_others(min_size: int) -> None:
    random, false = np.random.default_rng(13), 0
    for run in range(10):
        alone, plant = Photos(random, 300), Photos(random, 300, a_plant=300)
        values = np.concatenate([alone.scores, plant.scores])
        ids = [*map(str, range(300)), *["plant"] * 300]
        record = fitted(
            {"linear": np.log(values).astype(np.float32)},
            np.concatenate([alone.labels, plant.labels]),
            observations=ids, ks=(SIZE,), head="linear", score_kind="softmax", min_size=min_size,
        )  # fmt: skip
        live, point = Photos(random, 4000), record.default_point
        expected = expected_of(record)
        assert expected.rows == 301
        sizes = point.sets(live.scores).sum(axis=1)
        energy = logsumexp(np.log(live.scores).astype(np.float32))
        raised = Monitor(expected, seed=run).update(sizes, live.best, energy)
        false += any(alarm.watched in ("set_size", "faint_photos") for alarm in raised)
    assert false <= 1


def test_no_set_of_softmax_scores_is_larger_than_one_over_lambda() -> None:
    assert largest_set(30, "softmax", 1 / 3) == 3
    assert largest_set(30, "softmax", 0.0) == 30
    assert largest_set(30, "softmax", 0.7) == 1
    assert largest_set(30, "sigmoid", 0.7) == 30


def test_a_monitor_counts_plants_not_photos() -> None:
    """A hundred plants with ten photos each tell little more than a hundred photos."""
    logits, labels = sample_logits()
    plants = [str(row // 10) for row in range(len(labels))]
    record = fitted({"linear": logits}, np.repeat(labels[::10], 10), observations=plants, ks=(3.0,))
    alone = fitted({"linear": logits}, labels, ks=(3.0,))
    expected = expected_of(record)
    assert expected.rows == sum(expected.best_scores) == len(labels) // 10
    assert expected_of(alone).rows == sum(expected_of(alone).best_scores) == len(labels)

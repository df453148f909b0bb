"""Class frequencies from unlabelled photos, on exact posteriors of the flora under label shift."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibration.live.prior_shift import PriorShift, corrected, estimate_prior
from calibration.rules import calibrate
from data.flora import Flora
from data.flora.species import prior
from tests.calibration.simulation import draw

Floats = NDArray[np.float64]

FLORA = Flora(0, {"train": 1, "val": 8000, "test": 30_000})
OLD = prior()
POSTERIOR, LABELS = FLORA.posterior("test"), FLORA.labels("test")


def shifted(
    random: np.random.Generator, new: Floats, rows: int
) -> tuple[Floats, NDArray[np.int64]]:
    """Photos of the flora with other frequencies; their scores still assume the old ones."""
    weights = (new / OLD)[LABELS]
    chosen = random.choice(len(LABELS), rows, p=weights / weights.sum())
    return POSTERIOR[chosen], LABELS[chosen]


def hit_rate(calibration: Floats, scores: Floats, labels: NDArray[np.int64]) -> float:
    """Of sets of three on average, calibrated without labels."""
    rule = calibrate("average_k", calibration, average_k=3, min_size=0)
    return float(rule.sets(scores)[np.arange(len(labels)), labels].mean())


def truth(new: Floats) -> PriorShift:
    return PriorShift(
        old_prior=OLD, new_prior=new, rows=0, left_out=0, steps=0, converged=True, gain=0.0
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), steps=st.integers(1, 6), weight=st.sampled_from([0.0, 3.0]))
def test_each_step_is_the_mean_of_the_corrected_scores(
    seed: int, steps: int, weight: float
) -> None:
    random = np.random.default_rng(seed)
    scores, old = random.dirichlet(np.ones(4), 9), random.dirichlet(np.full(4, 3.0))
    found = estimate_prior(scores, old, pseudo_photos=weight, most_steps=steps, tolerance=0.0)
    new = old
    for _ in range(steps):
        rows = [row * new / old / (row * new / old).sum() for row in scores]
        new = (sum(rows) + weight * old) / (len(rows) + weight)
    assert found.new_prior == pytest.approx(new)
    assert (found.steps, found.converged, found.rows) == (steps, False, 9)
    by_row = [np.log((row * new / old).sum() / row.sum()) for row in scores]
    assert found.gain == pytest.approx(np.mean(by_row))
    assert corrected(scores, found) == pytest.approx(
        np.array([row * new / old / (row * new / old).sum() for row in scores])
    )


def test_more_steps_never_explain_the_photos_worse() -> None:
    scores = shifted(np.random.default_rng(1), OLD[::-1], 500)[0]
    gains = [
        estimate_prior(scores, OLD, pseudo_photos=0, most_steps=steps, tolerance=0).gain
        for steps in (1, 2, 4, 8, 16)
    ]
    assert (np.diff([0.0, *gains]) > 0).all()


def test_correcting_wins_back_what_label_shift_took() -> None:
    """Without labels: the old threshold, one calibrated again, and one on corrected scores."""
    random, old, again, estimated, best = np.random.default_rng(2), [], [], [], []
    for _ in range(5):
        traffic, _ = shifted(random, OLD[::-1], 4000)
        scores, labels = shifted(random, OLD[::-1], 4000)
        shift = estimate_prior(traffic, OLD)
        assert shift.converged
        assert shift.evident
        old.append(hit_rate(FLORA.posterior("val"), scores, labels))
        again.append(hit_rate(traffic, scores, labels))
        estimated.append(hit_rate(corrected(traffic, shift), corrected(scores, shift), labels))
        known = truth(OLD[::-1])
        best.append(hit_rate(corrected(traffic, known), corrected(scores, known), labels))
    bar = 3 * np.sqrt(0.2 * 0.8 / 20_000)
    assert np.mean(old) == pytest.approx(0.79, abs=0.02)
    assert np.mean(again) < np.mean(old) - bar  # the size is restored, the hit rate is not
    assert np.mean(estimated) > np.mean(old) + 0.08
    assert np.mean(estimated) == pytest.approx(np.mean(best), abs=0.01 + bar)


def test_frequencies_that_did_not_change_are_not_evident() -> None:
    random, evident = np.random.default_rng(3), 0
    for rows in (300, 1000, 3000):
        for _ in range(20):
            shift = estimate_prior(shifted(random, OLD, rows)[0], OLD)
            evident += shift.evident
            assert shift.distance < 0.3
    assert evident == 0


def test_a_season_is_evident_with_a_thousand_photos() -> None:
    new = OLD * np.where(np.arange(OLD.size) % 2, 3.0, 0.3)
    shift = estimate_prior(shifted(np.random.default_rng(4), new / new.sum(), 1000)[0], OLD)
    assert shift.evident
    assert shift.distance > 0.2
    assert np.corrcoef(np.log(shift.new_prior / OLD), np.log(new / OLD))[0, 1] > 0.5


def test_photos_of_nothing_known_mislead_unless_they_are_left_out() -> None:
    """A clear photo of an unknown plant often looks like one species; a frozen rule drops it."""
    random = np.random.default_rng(5)
    ours, _ = shifted(random, OLD, 3000)
    strange = np.full((600, OLD.size), 0.3 / (OLD.size - 1))
    strange[:, 7] = 0.7
    mixed = np.concatenate([ours, strange])
    accepted = np.arange(3600) < 3000
    fooled, guarded = estimate_prior(mixed, OLD), estimate_prior(mixed, OLD, accepted=accepted)
    alone = estimate_prior(ours, OLD)
    assert fooled.new_prior[7] > 0.1
    assert guarded.new_prior == pytest.approx(alone.new_prior)
    assert (guarded.rows, guarded.left_out) == (3000, 600)
    assert guarded.new_prior[7] < 0.05


def test_a_class_without_a_photo_is_not_ruled_out() -> None:
    scores = [[0.98, 0.01, 0.01]] * 50
    shift = estimate_prior(scores, [0.4, 0.3, 0.3])
    assert (shift.new_prior > 0.001).all()
    assert shift.new_prior.sum() == pytest.approx(1)
    assert estimate_prior(scores, [0.4, 0.3, 0.3], pseudo_photos=0).new_prior[2] < 1e-6


def test_wrong_arguments_are_named() -> None:
    scores = [[0.5, 0.5], [0.9, 0.1]]
    for wrong in ([0.5, 0.0], [[0.5, 0.5]], [0.5, np.nan], []):
        with pytest.raises(ValueError, match="old_prior must be"):
            estimate_prior(scores, wrong)
    with pytest.raises(ValueError, match="scores must have 3 classes, got 2"):
        estimate_prior(scores, [1, 1, 1])
    with pytest.raises(ValueError, match="softmax scores"):
        estimate_prior([[0.5, 0.9]], [1, 1])
    with pytest.raises(ValueError, match="none was accepted"):
        estimate_prior(scores, [1, 1], accepted=[False, False])
    with pytest.raises(ValueError, match="accepted must be bool"):
        estimate_prior(scores, [1, 1], accepted=[1, 0])
    with pytest.raises(ValueError, match="pseudo_photos"):
        estimate_prior(scores, [1, 1], pseudo_photos=-1)
    ruled_out = PriorShift(
        old_prior=np.array([0.5, 0.5]), new_prior=np.array([1.0, 0.0]), rows=1, left_out=0,
        steps=1, converged=True, gain=0.0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="row 1 has scores only for classes that are ruled out"):
        corrected([[0.5, 0.5], [0.0, 1.0]], ruled_out)


def test_frequencies_that_are_an_estimate_themselves_are_no_evidence() -> None:
    random, old_rows = np.random.default_rng(8), 400
    found = {"known": 0, "estimated": 0}
    for _ in range(30):
        old = draw(random, old_rows).scores.mean(axis=0)
        live = draw(random, 1000).scores
        for name, rows in (("known", None), ("estimated", old_rows)):
            found[name] += estimate_prior(live, old, old_rows=rows).evident
    assert found["estimated"] <= 1
    assert found["known"] >= 10


def test_a_real_change_stays_evident_beside_an_estimate() -> None:
    random = np.random.default_rng(9)
    old = draw(random, 1000).scores.mean(axis=0)
    sample = draw(random, 4000)
    kept = sample.labels % 2 == 0  # half of the species are gone
    assert estimate_prior(sample.scores[kept], old, old_rows=1000).evident

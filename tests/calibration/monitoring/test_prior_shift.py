"""Class frequencies from unlabelled photos, on exact posteriors of the flora under label shift;
a change of frequencies explains the logits where it is one, and not where photos changed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import florilege.calibration.monitoring.prior_shift
from florilege.calibration.distribution import DistributionOf, traits
from florilege.calibration.monitoring.prior_shift import (
    MOST_STEPS,
    UNLIKELY,
    PriorShift,
    estimate_prior,
    likelihood_of_logits,
)
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores as scores_of
from florilege.data.flora import Flora
from florilege.data.flora.species import prior
from tests.calibration.simulation import CLASSES, MEANS, PRIOR, corrected, draw

Floats = NDArray[np.float64]

FLORA = Flora(0, {"train": 1, "val": 8000, "test": 30_000})
OLD = prior()
OLD_ROWS = 2000
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
    return PriorShift(old_prior=OLD, new_prior=new, rows=0, steps=0, gain=0.0, old_rows=None)


def after(steps: int, scores: Floats, old: Floats, weight: float) -> PriorShift:
    """What so many steps find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(florilege.calibration.monitoring.prior_shift, "MOST_STEPS", steps)
        patch.setattr(florilege.calibration.monitoring.prior_shift, "SMALLEST_STEP", 0.0)
        return estimate_prior(scores, old, pseudo_photos=weight)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), steps=st.integers(1, 6), weight=st.sampled_from([0.0, 3.0]))
def test_each_step_is_the_mean_of_the_corrected_scores(
    seed: int, steps: int, weight: float
) -> None:
    random = np.random.default_rng(seed)
    scores, old = random.dirichlet(np.ones(4), 9), random.dirichlet(np.full(4, 3.0))
    found = after(steps, scores, old, weight)
    new = old
    for _ in range(steps):
        rows = [row * new / old / (row * new / old).sum() for row in scores]
        new = (sum(rows) + weight * old) / (len(rows) + weight)
    assert found.new_prior == pytest.approx(new)
    assert (found.steps, found.rows) == (steps, 9)
    by_row = [np.log((row * new / old).sum() / row.sum()) for row in scores]
    assert found.gain == pytest.approx(np.mean(by_row))
    assert corrected(scores, found) == pytest.approx(
        np.array([row * new / old / (row * new / old).sum() for row in scores])
    )


def test_more_steps_never_explain_the_photos_worse() -> None:
    scores = shifted(np.random.default_rng(1), OLD[::-1], 500)[0]
    gains = [after(steps, scores, OLD, 0).gain for steps in (1, 2, 4, 8, 16)]
    assert (np.diff([0.0, *gains]) > 0).all()


def test_correcting_wins_back_what_label_shift_took() -> None:
    """Without labels: the old threshold, one calibrated again, and one on corrected scores."""
    random, old, again, estimated, best = np.random.default_rng(2), [], [], [], []
    for _ in range(5):
        traffic, _ = shifted(random, OLD[::-1], 4000)
        scores, labels = shifted(random, OLD[::-1], 4000)
        shift = estimate_prior(traffic, OLD)
        assert shift.steps < MOST_STEPS
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


def test_photos_of_nothing_known_mislead() -> None:
    """A clear photo of an unknown plant often looks like one species."""
    random = np.random.default_rng(5)
    ours, _ = shifted(random, OLD, 3000)
    strange = np.full((600, OLD.size), 0.3 / (OLD.size - 1))
    strange[:, 7] = 0.7
    assert estimate_prior(np.concatenate([ours, strange]), OLD).new_prior[7] > 0.1
    assert estimate_prior(ours, OLD).new_prior[7] < 0.05


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
    with pytest.raises(ValueError, match="at least one row"):
        estimate_prior(np.empty((0, 2)), [1, 1])
    with pytest.raises(ValueError, match="pseudo_photos"):
        estimate_prior(scores, [1, 1], pseudo_photos=-1)


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


def logits_of(
    random: np.random.Generator, rows: int, prior: Floats = PRIOR, noise: float = 1.0
) -> NDArray[np.float32]:
    """Exact logits where ``noise`` is 1; more of it is what a blurred photo is to a network."""
    labels = random.choice(CLASSES, rows, p=prior)
    points = MEANS[labels] + noise * random.standard_normal((rows, 4))
    squared = ((points[:, np.newaxis] - MEANS) ** 2).sum(axis=2)
    return np.asarray(np.log(PRIOR) - squared / 2, dtype=np.float32)


def known(random: np.random.Generator, rows: int = OLD_ROWS) -> tuple[Floats, Floats]:
    """What a record tells of validation photos: mean scores, and mean traits by class."""
    logits, gathered = logits_of(random, rows), DistributionOf()
    for block in np.array_split(logits, 3):
        gathered.update(block, scores_of(block, "softmax"))
    found = gathered.result()
    by_class = np.stack([found.class_logsumexp, found.class_spread], axis=1)
    return np.array(found.mean_scores), by_class


def likelihood(random: np.random.Generator, live: NDArray[np.float32]) -> float:
    old, by_class = known(random)
    values = scores_of(live, "softmax")
    shift = estimate_prior(values, old, old_rows=OLD_ROWS)
    return likelihood_of_logits(live, values, shift, by_class)


def new_prior(random: np.random.Generator) -> Floats:
    return np.asarray(random.dirichlet(np.ones(CLASSES)))


def test_changed_frequencies_are_refused_once_in_twenty_at_most() -> None:
    random, trials = np.random.default_rng(0), 100
    refused = sum(
        likelihood(random, logits_of(random, 1000, new_prior(random))) < UNLIKELY
        for _ in range(trials)
    )
    assert refused / trials <= UNLIKELY + 2 * np.sqrt(UNLIKELY * (1 - UNLIKELY) / trials)


@pytest.mark.parametrize("prior", ["old", "new"])
def test_photos_that_look_otherwise_are_refused(prior: str) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        frequencies = PRIOR if prior == "old" else new_prior(random)
        live = logits_of(random, 1000, frequencies, noise=1.3)
        assert likelihood(random, live) < UNLIKELY


def test_it_is_the_chi_squared_test_of_the_mean_traits() -> None:
    random = np.random.default_rng(2)
    live, (old, by_class) = logits_of(random, 300, PRIOR[::-1]), known(random)
    values = scores_of(live, "softmax")
    shift = PriorShift(
        old_prior=old / old.sum(), new_prior=PRIOR[::-1], rows=300, steps=1, gain=0.1,
        old_rows=OLD_ROWS,
    )  # fmt: skip
    found, variance, gap = traits(live), np.zeros((2, 2)), np.zeros(2)
    expected = sum(PRIOR[::-1][label] * by_class[label] for label in range(CLASSES))
    for row in range(300):
        off = found[row] - expected
        weight = sum(values[row] * PRIOR[::-1] / (old / old.sum()))
        around = found[row] - found.mean(axis=0)
        variance += np.outer(around, around) / 299 * (1 / 300 + 0.03**2)
        variance += weight * np.outer(off, off) / 300 / OLD_ROWS
        gap += off / 300
    statistic = gap @ np.linalg.inv(variance) @ gap
    assert likelihood_of_logits(live, values, shift, by_class) == pytest.approx(
        np.exp(-statistic / 2)
    )


def test_the_traits_of_a_class_are_means_weighted_by_its_scores_of() -> None:
    random = np.random.default_rng(3)
    logits, gathered = logits_of(random, 90), DistributionOf()
    values = scores_of(logits, "softmax")
    gathered.update(logits[:40], values[:40])
    gathered.update(logits[40:], values[40:])
    found, every = gathered.result(), traits(logits)
    for column, told in enumerate((found.class_logsumexp, found.class_spread)):
        means = [np.average(every[:, column], weights=values[:, j]) for j in range(CLASSES)]
        np.testing.assert_allclose(told, means, rtol=1e-5)
    assert every[7] == pytest.approx(
        [np.log(np.exp(logits[7].astype(float)).sum()), logits[7].astype(float).std()]
    )


def test_a_class_that_no_photo_gives_a_score_has_the_mean_traits() -> None:
    logits = np.array([[0.0, 1.0, -5000.0], [2.0, 0.0, -5000.0]], dtype=np.float32)
    gathered = DistributionOf()
    gathered.update(logits, scores_of(logits, "softmax"))
    found, every = gathered.result(), traits(logits).mean(axis=0)
    assert (found.class_logsumexp[2], found.class_spread[2]) == pytest.approx(every, rel=1e-5)

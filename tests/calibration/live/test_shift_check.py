"""A change of frequencies explains the logits where it is one, and not where photos changed."""

import numpy as np
import pytest
from numpy.typing import NDArray

from calibration.distribution import DistributionOf, traits
from calibration.live.prior_shift import PriorShift, estimate_prior
from calibration.live.shift_check import UNLIKELY, likelihood_of_logits
from calibration.scores import scores
from tests.calibration.simulation import CLASSES, MEANS, PRIOR

Floats = NDArray[np.float64]

OLD_ROWS = 2000


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
        gathered.update(block, scores(block, "softmax"))
    found = gathered.result()
    by_class = np.stack([found.class_logsumexp, found.class_spread], axis=1)
    return np.array(found.mean_scores), by_class


def likelihood(random: np.random.Generator, live: NDArray[np.float32]) -> float:
    old, by_class = known(random)
    values = scores(live, "softmax")
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
    values = scores(live, "softmax")
    shift = PriorShift(
        old_prior=old / old.sum(), new_prior=PRIOR[::-1], rows=300, left_out=0, steps=1,
        converged=True, gain=0.1, old_rows=OLD_ROWS,
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


def test_the_traits_of_a_class_are_means_weighted_by_its_scores() -> None:
    random = np.random.default_rng(3)
    logits, gathered = logits_of(random, 90), DistributionOf()
    values = scores(logits, "softmax")
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
    gathered.update(logits, scores(logits, "softmax"))
    found, every = gathered.result(), traits(logits).mean(axis=0)
    assert (found.class_logsumexp[2], found.class_spread[2]) == pytest.approx(every, rel=1e-5)

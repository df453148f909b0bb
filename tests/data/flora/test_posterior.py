from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.data.flora import Flora
from florilege.data.flora.posterior import (
    HIDDEN,
    MISREAD,
    TRAITS,
    VISIBLE,
    bayes_average_k_accuracy,
    bayes_threshold,
    bayes_top_k_accuracy,
    expected_hit_rate,
    posterior_of,
    prior,
    species_traits,
)

ROWS = 100_000
SAMPLE = Flora(11, {"train": ROWS, "val": 0, "test": 0})


@pytest.fixture(scope="module")
def posterior() -> NDArray[np.float64]:
    return SAMPLE.posterior("train")


def _observed(*row: int) -> NDArray[np.int64]:
    return np.array([row], dtype=np.int64)


def test_each_row_is_a_distribution(posterior: NDArray[np.float64]) -> None:
    assert posterior.shape == (ROWS, 85)
    assert posterior.dtype == np.float64
    assert posterior.min() >= 0
    np.testing.assert_allclose(posterior.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize(
    "row",
    [(4, 5, HIDDEN, HIDDEN, 3), (4, 0, 1, 2, HIDDEN), (HIDDEN, HIDDEN, 1, 0, 0), [HIDDEN] * 5],
)
def test_bayes_rule_written_out_for_every_species_of_one_picture(row: Sequence[int]) -> None:
    traits = species_traits()
    names = ("petal_form", "flower", "leaf_form", "leaf", "fruit")
    weights = prior().copy()
    for species in range(85):
        for name, value in zip(names, row, strict=True):
            misread = 0.0 if name.endswith("form") else MISREAD
            if value != HIDDEN and traits[name][species] == value:
                weights[species] *= 1 - misread
            elif value != HIDDEN:
                weights[species] *= misread / (len(TRAITS[name]) - 1)
    expected = weights / weights.sum()
    np.testing.assert_allclose(posterior_of(_observed(*row))[0], expected, rtol=1e-12)


def test_predicted_probabilities_come_true_in_every_bin(posterior: NDArray[np.float64]) -> None:
    """Of the pairs (picture, species) with probability p, a share p is true."""
    labels = SAMPLE.labels("train")
    truth = np.zeros_like(posterior, dtype=np.bool_)
    truth[np.arange(ROWS), labels] = True
    edges = np.array([0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 1.0])
    bins = np.digitize(posterior, edges[1:-1], right=True)
    for index in range(len(edges) - 1):
        inside = (bins == index) & (posterior > 0)
        expected = posterior[inside].sum()
        spread = np.sqrt((posterior[inside] * (1 - posterior[inside])).sum())
        assert inside.any()
        assert abs(truth[inside].sum() - expected) < 4 * spread + 1e-9
    assert not truth[posterior == 0].any()


def test_predicted_species_counts_come_true(posterior: NDArray[np.float64]) -> None:
    """Chi-square of drawn against predicted species, separately for each set of visible organs."""
    labels, observed = SAMPLE.labels("train"), SAMPLE.observed("train")
    hidden = (observed[:, [0, 2, 4]] == HIDDEN) @ [4, 2, 1]
    for pattern in range(8):
        rows = hidden == pattern
        expected = posterior[rows].sum(axis=0)
        sample = np.bincount(labels[rows], minlength=85)
        enough = expected >= 5
        variance = (posterior[rows] * (1 - posterior[rows])).sum(axis=0)[enough]
        squares = ((sample - expected)[enough] ** 2 / variance).sum()
        freedom = int(enough.sum())
        assert squares < freedom + 5 * np.sqrt(2 * freedom)


def test_organs_are_visible_independently_of_the_species() -> None:
    labels, observed = SAMPLE.labels("train"), SAMPLE.observed("train")
    for column, share in zip((0, 2, 4), VISIBLE, strict=True):
        mask = observed[:, column] != HIDDEN
        rows = np.bincount(labels, minlength=85)
        counts = np.bincount(labels, weights=mask, minlength=85)
        scores = (counts - rows * share) / np.sqrt(rows * share * (1 - share))
        assert np.abs(scores).max() < 4.5
        assert abs(mask.mean() - share) < 4.5 * np.sqrt(share * (1 - share) / ROWS)


def test_organs_are_visible_and_misread_independently_of_each_other() -> None:
    """Chi-square of the three-way table of the observed state of each trait."""
    traits, labels = species_traits(), SAMPLE.labels("train")
    observed = SAMPLE.observed("train")
    outcomes, shares = [], []
    for column, name, visible in zip((1, 3, 4), ("flower", "leaf", "fruit"), VISIBLE, strict=True):
        values = len(TRAITS[name])
        step = (observed[:, column] - traits[name][labels]) % values
        outcomes.append(np.where(observed[:, column] == HIDDEN, values, step))
        misread = [visible * MISREAD / (values - 1)] * (values - 1)
        shares.append(np.array([visible * (1 - MISREAD), *misread, 1 - visible]))
    expected = ROWS * shares[0][:, None, None] * shares[1][:, None] * shares[2]
    sample = np.zeros_like(expected)
    np.add.at(sample, tuple(outcomes), 1)
    squares = ((sample - expected) ** 2 / expected).sum()
    freedom = expected.size - 1
    assert squares < freedom + 5 * np.sqrt(2 * freedom)


def test_forms_are_never_misread() -> None:
    labels, observed = SAMPLE.labels("train"), SAMPLE.observed("train")
    for column, true in ((0, species_traits()["petal_form"]), (2, species_traits()["leaf_form"])):
        mask = observed[:, column] != HIDDEN
        np.testing.assert_array_equal(observed[mask, column], true[labels[mask]])


@pytest.mark.parametrize(
    ("k", "top_k", "average_k"),
    [(1, 0.712, 0.723), (2, 0.820, 0.862), (3, 0.874, 0.915), (5, 0.920, 0.958)],
)
def test_the_optimum_is_that_of_the_documentation_and_of_drawn_pictures(
    k: int, top_k: float, average_k: float, posterior: NDArray[np.float64]
) -> None:
    assert round(bayes_top_k_accuracy(k), 3) == top_k
    assert abs(bayes_average_k_accuracy(k) - average_k) < 0.001
    labels = SAMPLE.labels("train")
    score = posterior[np.arange(ROWS), labels][:, None]
    rank = (posterior > score).sum(axis=1) + (posterior == score).sum(axis=1)  # ties: the worst
    assert np.mean(rank <= k) < top_k + 0.005
    best = np.sort(posterior, axis=1)[:, -k:].sum() / ROWS
    assert abs(best - top_k) < 0.005
    ordered = np.sort(posterior, axis=None)[::-1][: k * ROWS]
    assert abs(ordered.sum() / ROWS - average_k) < 0.005


@pytest.mark.parametrize("k", [1, 2, 3, 5, 10])
def test_the_best_threshold_reaches_the_optimum(k: int, posterior: NDArray[np.float64]) -> None:
    threshold = bayes_threshold(k)
    sets = posterior >= threshold
    above = posterior > threshold
    assert above.sum() / ROWS - 0.05 < k < sets.sum() / ROWS + 0.05
    low, high = expected_hit_rate(above, posterior), expected_hit_rate(sets, posterior)
    assert low - 0.005 < bayes_average_k_accuracy(k) < high + 0.005
    labels = SAMPLE.labels("train")
    sample = sets[np.arange(ROWS), labels].mean()
    assert abs(sample - high) < 4.5 * 0.5 / np.sqrt(ROWS)


def test_average_k_beats_top_k_and_both_grow() -> None:
    top = [bayes_top_k_accuracy(k) for k in range(1, 86)]
    average = [bayes_average_k_accuracy(k) for k in range(86)]
    assert np.all(np.diff(top) > -1e-12)
    assert np.all(np.diff(average) > -1e-12)
    assert np.all(np.array(average[1:]) >= np.array(top) - 1e-12)
    assert average[0] == 0
    assert average[2] < bayes_average_k_accuracy(2.5) < average[3]
    assert abs(average[85] - 1) < 1e-12
    assert abs(top[84] - 1) < 1e-12


def test_everything_out_of_range_is_refused() -> None:
    for k in (0, 86):
        with pytest.raises(ValueError, match=r"k must be in \[1, 85\]"):
            bayes_top_k_accuracy(k)
    for level in (-0.1, 85.1):
        with pytest.raises(ValueError, match=r"k must be in \[0, 85\]"):
            bayes_average_k_accuracy(level)
    with pytest.raises(ValueError, match="shape"):
        posterior_of(np.zeros((3, 4), dtype=np.int64))
    with pytest.raises(ValueError, match="traits"):
        posterior_of(_observed(0, 6, 0, 0, 0))
    with pytest.raises(ValueError, match="hidden together"):
        posterior_of(_observed(0, HIDDEN, 0, 0, 0))
    with pytest.raises(ValueError, match="no species shows"):
        posterior_of(_observed(2, 0, 0, 0, 0))  # no daisy has ovate leaves
    with pytest.raises(ValueError, match="the same shape"):
        expected_hit_rate(np.ones((2, 85), dtype=np.bool_), np.ones((1, 85)))

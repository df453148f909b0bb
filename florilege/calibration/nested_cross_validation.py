"""Unbiased accuracy of the best of several candidates.

The best of ten equally good heads on 600 photos looks 1.5 points better on those photos than it
is. Cross-validation removes this bias: it chooses on one part of the rows and measures on the rest.
An interval for independent rows would hold in only 82 of 100 cases, since the choices of the folds
depend on one another; :func:`interval_of_best` is valid whichever candidate is chosen.
"""

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.intervals import effective_rows, score_interval
from florilege.calibration.validation import Bools, Floats

FOLDS = 5


def choose(
    hits: ArrayLike, *, folds: int = FOLDS, seed: int = 0, plants: ArrayLike | None = None
) -> tuple[int, float]:
    """Choose the candidate with the most hits; measure it on rows that did not choose it.

    Each fold measures the candidate that is best on the other folds. Rows of one plant stay in the
    same fold.

    Args:
        hits: Whether each candidate's set holds the true class, shape ``(candidates, rows)``.
        folds: Number of folds, at least 2; at most as many as rows or plants are made.
        seed: Seed of the split into folds.
        plants: Plant of each row, shape ``(rows,)``; None where rows are independent.

    Returns:
        Index of the first candidate with the most hits on all rows, and the hit rate of one chosen
        this way on rows that did not choose it.

    Raises:
        ValueError: A wrong shape, no candidate, no row, or fewer than two folds.

    Example:
        >>> choose([[1, 1, 1, 1], [1, 0, 1, 0]])
        (0, 1.0)
    """
    table = np.asarray(hits, dtype=np.bool_)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"hits must have shape (candidates, rows), with at least one of each, got {table.shape}"
        )
    if folds < 2:
        raise ValueError(f"folds must be at least 2, got {folds}")
    totals, honest = table.sum(axis=1), np.empty(table.shape[1], dtype=np.bool_)
    for among in folds_of(table.shape[1], plants, folds, seed):
        others = totals - table[:, among].sum(axis=1)
        honest[among] = table[others.argmax(), among]
    return int(totals.argmax()), float(honest.mean())


def interval_of_best(
    hits: Bools, candidates: int, *, plants: ArrayLike | None = None
) -> tuple[float, float]:
    """95 % interval of the hit rate of the best of several candidates, by Bonferroni's correction.

    ``hits`` are those of the best one, shape ``(rows,)``; ``plants`` are as in :func:`choose`.
    """
    z = NormalDist().inv_cdf(1 - 0.025 / candidates)
    return score_interval(float(hits.mean()), effective_rows(hits, plants), z=z)


def choose_simplest(
    hits: ArrayLike, *, folds: int = FOLDS, seed: int = 0, plants: ArrayLike | None = None
) -> tuple[int, Floats]:
    """Choose by the one-standard-error rule; measure the gain on rows that did not choose.

    The choice is the first candidate within one standard error of the best one. It stays the first
    of all unless the choices of the folds gain hits on the rows that they did not see.

    Args:
        hits: Whether each candidate's set holds the true class, shape
            ``(candidates, rows, sizes)`` for several mean set sizes, which count equally; the
            simplest candidate first.
        folds, seed, plants: As in :func:`choose`.

    Returns:
        Index of the choice, and how much its hit rate exceeds that of the first candidate, shape
        ``(sizes,)``: an average over rows that did not choose.

    References:
        Breiman, Friedman, Olshen and Stone, "Classification and regression trees", 1984, section
        3.4.3.

    Example:
        >>> choose_simplest(np.array([[0] * 50 + [1] * 50, [1] * 100])[:, :, np.newaxis])
        (1, array([0.5]))
    """
    table = np.asarray(hits, dtype=np.float64)
    means, clusters = table.mean(axis=2), None if plants is None else np.asarray(plants)

    def choice(rows: Bools) -> int:
        values = means[:, rows]
        behind = values[values.mean(axis=1).argmax()] - values  # (candidates, rows)
        of = None if clusters is None else clusters[rows]
        errors = [
            differences.std() / np.sqrt(effective_rows(differences, of)) for differences in behind
        ]
        return int((behind.mean(axis=1) <= errors).argmax())

    gains, every = np.zeros(table.shape[1:]), np.ones(table.shape[1], dtype=np.bool_)
    for among in folds_of(len(every), plants, folds, seed):
        if not among.all():
            gains[among] = table[choice(~among), among] - table[0, among]
    gain: Floats = gains.mean(axis=0)
    return (choice(every), gain) if gain.mean() > 0 else (0, np.zeros_like(gain))


def folds_of(rows: int, plants: ArrayLike | None, folds: int, seed: int) -> Iterator[Bools]:
    """Masks of the rows of each fold; rows of one plant are in the same one."""
    _, numbers = np.unique(np.arange(rows) if plants is None else plants, return_inverse=True)
    order = np.random.default_rng(seed).permutation(int(numbers.max()) + 1)
    for part in np.array_split(order, min(folds, len(order))):
        yield np.isin(numbers, part)

"""An honest accuracy for the best of several candidates.

The best of ten equally good heads on 600 photos looks 1.5 points better on those photos than it
is. Choosing on one part of the rows and measuring on the rest, in turn, removes that bias.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best of some candidates, and what to expect of it."""

    best: int  # index of the candidate with the most hits on all rows; the first of equal ones
    hit_rate: float  # of the best candidate on all rows, flattered by having been chosen
    honest_hit_rate: float  # of a candidate chosen this way, on rows that did not choose it


def choose(hits: ArrayLike, *, folds: int = FOLDS, seed: int = 0) -> Choice:
    """Choose the candidate with the most hits; measure it on rows that did not choose it.

    The rows are dealt into folds; on each fold, the candidate that is best on the others counts.

    Args:
        hits: Whether each candidate's set holds the truth, shape ``(candidates, rows)``.
        folds: Parts of the rows, at least 2; never more than there are rows.
        seed: For dealing the rows.

    Raises:
        ValueError: A wrong shape, no candidate, no row, or fewer than two folds.

    Example:
        >>> choose([[1, 0, 1, 0], [1, 1, 1, 0]]).best
        1
    """
    table = np.asarray(hits, dtype=np.bool_)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"hits must have shape (candidates, rows), at least one of each, got {table.shape}"
        )
    if folds < 2:
        raise ValueError(f"folds must be at least 2, got {folds}")
    order = np.random.default_rng(seed).permutation(table.shape[1])
    parts = np.array_split(order, min(folds, len(order)))
    totals = table.sum(axis=1)
    best = int(totals.argmax())
    return Choice(
        best=best,
        hit_rate=float(table[best].mean()),
        honest_hit_rate=sum(_hits_on(table, totals, part) for part in parts) / len(order),
    )


def _hits_on(table: NDArray[np.bool_], totals: NDArray[np.int64], part: NDArray[np.intp]) -> int:
    """Hits on some rows by the candidate that is best on all other rows."""
    inside = table[:, part].sum(axis=1)
    return int(inside[(totals - inside).argmax()])

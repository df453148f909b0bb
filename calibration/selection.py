"""The same threshold from a stream of batches, in memory that does not grow with the classes.

Only the ``K rows + 1`` largest scores decide about a threshold for a mean set size of ``K``, so
those are kept and everything below them is forgotten.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration.arrays import FloatArray, as_scores
from calibration.threshold import (
    RealNumber,
    Threshold,
    check_average_k,
    exact_rank,
    midpoint,
    next_above,
    nothing_cut,
)

BLOCK = 1 << 18
"""Scores looked at together: what the processor's cache holds."""


class TopScores:
    """The largest scores of a data set, gathered batch by batch and worker by worker.

    Exact: any split of the rows into batches and workers, merged in any order, gives the bits of
    :func:`calibration.threshold.average_k_threshold` on all rows at once.

    Args:
        rows: Rows of the whole data set, the same in every worker.
        max_average_k: The largest mean set size that will be asked for.

    Raises:
        ValueError: ``rows`` below 1 or ``max_average_k`` negative.

    Example:
        >>> top = TopScores(rows=2, max_average_k=2)
        >>> top.update([[0.7, 0.2, 0.1]])
        >>> top.update([[0.4, 0.35, 0.25]])
        >>> top.threshold(1.5)
        Threshold(lambda_val=0.3, achieved=1.5, rows=2, ties=0)
    """

    def __init__(self, rows: int, max_average_k: RealNumber) -> None:
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        if not max_average_k >= 0:
            raise ValueError(f"max_average_k must be at least 0, got {max_average_k}")
        self.rows = rows
        self.max_average_k = max_average_k
        self.rows_seen = 0
        self._classes: int | None = None
        self._keep = exact_rank(max_average_k, rows) + 1
        self._held: list[FloatArray] = []  # the `keep` largest so far and some more
        self._floor: np.floating[Any] = np.float16(-np.inf)  # the smallest of those `keep`
        self._forgotten = 0  # scores equal to the floor that are not held
        self._sorted: FloatArray | None = None  # what is held, ascending

    def update(self, scores: ArrayLike) -> None:
        """Add the scores of some more rows, shape ``(batch, classes)``; no reference is kept.

        Raises:
            ValueError: A NaN or +inf, another number of classes, or more rows than announced.
        """
        batch = as_scores(scores, first_row=self.rows_seen)
        self._count_rows(batch.shape[0], batch.shape[1])
        flat = batch.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            self._add(flat[start : start + BLOCK])

    def merge(self, other: "TopScores") -> None:
        """Add what another worker gathered; ``other`` stays as it is.

        Raises:
            ValueError: The two were made for other ``rows`` or another ``max_average_k``, saw
                another number of classes, or more rows than announced together.
        """
        if (other.rows, other._keep) != (self.rows, self._keep):
            raise ValueError(
                f"merge needs the same rows and max_average_k, got {other.rows} and "
                f"{other.max_average_k} for {self.rows} and {self.max_average_k}"
            )
        if other._classes is None:
            return
        self._count_rows(other.rows_seen, other._classes)
        forgotten = other._forgotten
        for part in list(other._held):
            self._add(part)
        self._compact()
        if other._floor == self._floor:
            self._forgotten += forgotten

    def threshold(self, average_k: RealNumber) -> Threshold:
        """Threshold for a mean set size of ``average_k`` over the rows seen so far.

        Args:
            average_k: ``0 <= average_k <= max_average_k``.

        Raises:
            ValueError: ``average_k`` out of range, or no row was seen.
        """
        if self._classes is None:
            raise ValueError("no rows were seen: call update first")
        if average_k > self.max_average_k:
            raise ValueError(
                f"average_k must be at most max_average_k = {self.max_average_k}, got {average_k}"
            )
        check_average_k(average_k, lowest=0, classes=self._classes)
        return self._threshold_at_rank(exact_rank(average_k, self.rows_seen))

    def _count_rows(self, rows: int, classes: int) -> None:
        if self._classes not in (None, classes):
            raise ValueError(f"scores must have {self._classes} classes as before, got {classes}")
        if self.rows_seen + rows > self.rows:
            raise ValueError(
                f"{self.rows_seen + rows} rows were given, but only {self.rows} were announced"
            )
        self._classes = classes
        self.rows_seen += rows
        self._sorted = None

    def _add(self, values: FloatArray) -> None:
        """Hold a copy of the values above the floor; of those equal to it keep count."""
        if self._floor == -np.inf:
            above = values[values > -np.inf]
        else:
            reaching = values[values >= self._floor]
            above = reaching[reaching > self._floor]
            self._forgotten += reaching.size - above.size
        if above.size:
            self._held.append(above)
        if sum(part.size for part in self._held) > self._keep + max(self._keep, BLOCK):
            self._compact()

    def _compact(self) -> None:
        """Forget all but the ``keep`` largest values held, and raise the floor to the smallest."""
        if not self._held:
            return
        values = np.concatenate(self._held)
        surplus = values.size - self._keep
        if surplus < 0:
            return
        values.partition(surplus)
        floor = values[surplus]
        if floor > self._floor:
            self._forgotten = 0
        self._forgotten += int(np.count_nonzero(values[:surplus] == floor))
        self._floor = floor
        self._held = [values[surplus:].copy()]

    def _threshold_at_rank(self, rank: int) -> Threshold:
        values, rows = self._ascending(), self.rows_seen
        if rank == 0:
            largest = float(values[-1]) if values.size else -np.inf
            return Threshold(lambda_val=next_above(largest), achieved=0.0, rows=rows, ties=0)
        if rank >= values.size:  # then nothing was forgotten
            return nothing_cut(values, rank=rank, rows=rows)
        last_kept, first_cut = values[-rank], values[-rank - 1]
        kept = rank
        if last_kept == first_cut:
            kept = values.size - int(np.searchsorted(values, last_kept))
            kept += self._forgotten if last_kept == self._floor else 0
        return Threshold(
            lambda_val=midpoint(float(last_kept), float(first_cut)),
            achieved=kept / rows,
            rows=rows,
            ties=kept - rank,
        )

    def _ascending(self) -> FloatArray:
        if self._sorted is None:
            held = [np.empty(0, dtype=np.float64)] if not self._held else self._held
            self._sorted = np.sort(np.concatenate(held))
        return self._sorted

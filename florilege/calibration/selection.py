"""The average-K threshold from a stream of batches, in memory that does not grow with the classes.

The threshold for a mean set size of ``K`` depends only on the ``K rows + 1`` largest scores, so the
others are not stored.
"""

from numpy.typing import ArrayLike

from florilege.calibration.sets import as_scores
from florilege.calibration.threshold import (
    Largest,
    RealNumber,
    Threshold,
    check_average_k,
    exact_rank,
)


class TopScores:
    """The largest scores of a data set, collected batch by batch and worker by worker.

    For every split into batches and workers and every order of merging, the result equals
    :func:`florilege.calibration.threshold.average_k_threshold` on all rows, bit for bit.

    Args:
        rows: Rows of the whole data set, the same in every worker.
        max_average_k: The largest mean set size to be requested.

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
        self.rows, self.rows_seen, self.max_average_k = rows, 0, max_average_k
        self._classes: int | None = None
        self._largest = Largest(exact_rank(max_average_k, rows) + 1)

    def update(self, scores: ArrayLike) -> None:
        """Add the scores of a batch, shape ``(batch, classes)``, without keeping a reference.

        Raises:
            ValueError: A NaN or +inf, a different number of classes, or more rows than announced.
        """
        batch = as_scores(scores, first_row=self.rows_seen)
        self._count_rows(batch.shape[0], batch.shape[1])
        self._largest.add(batch.reshape(-1))

    def merge(self, other: "TopScores") -> None:
        """Add the scores of another worker; ``other`` is not changed.

        Raises:
            ValueError: The two differ in ``rows``, ``max_average_k`` or the number of classes, or
                together saw more rows than announced.
        """
        if (other.rows, other._largest.keep) != (self.rows, self._largest.keep):
            raise ValueError(
                f"merge needs the same rows and max_average_k, got {other.rows} and "
                f"{other.max_average_k} for {self.rows} and {self.max_average_k}"
            )
        if other._classes is None:
            return
        self._count_rows(other.rows_seen, other._classes)
        self._largest.merge(other._largest)

    def threshold(self, average_k: RealNumber) -> Threshold:
        """Threshold for a mean set size of ``average_k`` over the rows seen so far.

        Raises:
            ValueError: ``average_k`` outside ``[0, max_average_k]``, or no row was seen.
        """
        if self._classes is None:
            raise ValueError("no rows were seen: call update first")
        if average_k > self.max_average_k:
            raise ValueError(
                f"average_k must be at most max_average_k = {self.max_average_k}, got {average_k}"
            )
        check_average_k(average_k, lowest=0, classes=self._classes)
        return self._largest.threshold(exact_rank(average_k, self.rows_seen), self.rows_seen)

    def reaching(self, score: float) -> int:
        """How many scores are at least ``score``, a result of :meth:`threshold` or higher."""
        return self._largest.reaching(score)

    def _count_rows(self, rows: int, classes: int) -> None:
        if self._classes not in (None, classes):
            raise ValueError(f"scores must have {self._classes} classes as before, got {classes}")
        if self.rows_seen + rows > self.rows:
            raise ValueError(
                f"{self.rows_seen + rows} rows were given, but only {self.rows} were announced"
            )
        self._classes = classes
        self.rows_seen += rows

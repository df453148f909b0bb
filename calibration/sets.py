"""A calibrated rule that turns scores into prediction sets."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.arrays import as_scores


@dataclass(frozen=True, kw_only=True, eq=False)
class SetRule:
    """What a set holds: the classes whose number reaches the threshold, or the k best.

    Attributes:
        rule: Name of the rule, as in :data:`calibration.rules.rules.RULES`.
        lambda_val: Threshold; None for ``top_k``, which has none.
        min_size: 1 where every set holds its best class whatever it scores, else 0.
        top_k: Size of every set for the rule ``top_k``, else None.
        class_weights: Factor of each class's score before the comparison, shape ``(classes,)``,
            or None where scores are compared as they are.
        class_thresholds: What is taken off each class's score before the comparison, shape
            ``(classes,)``: its own threshold, with ``lambda_val`` 0; or None.
        max_size: Larger sets are cut down to this many best classes, or None.
        small_classes: For ``class_coverage``: classes with too few rows for their own threshold.
        achieved: Mean set size on the calibration scores, or None where it is not known.
        rows: Rows of the calibration scores.
        ties: Scores kept beyond the rank, because they equal the last one within it.
    """

    rule: str
    lambda_val: float | None
    min_size: int
    rows: int
    top_k: int | None = None
    class_weights: NDArray[np.float64] | None = None
    class_thresholds: NDArray[np.float64] | None = None
    max_size: int | None = None
    small_classes: int = 0
    achieved: float | None = None
    ties: int = 0

    def compare(self, scores: ArrayLike) -> NDArray[np.float64]:
        """The very numbers that are compared with ``lambda_val``, in float64.

        Args:
            scores: Shape ``(..., classes)``.

        Raises:
            ValueError: Another number of classes than the rule was calibrated for.
        """
        values = self.rank_by(scores)
        if self.class_thresholds is None:
            return values
        _check_classes(values, self.class_thresholds.size)
        above: NDArray[np.float64] = values - self.class_thresholds  # its sign is exact
        return above

    def rank_by(self, scores: ArrayLike) -> NDArray[np.float64]:
        """The numbers that say which class is better, in float64: weighted scores.

        Args:
            scores: Shape ``(..., classes)``.
        """
        values = np.asarray(scores, dtype=np.float64)
        if self.class_weights is None:
            return values
        _check_classes(values, self.class_weights.size)
        weighted: NDArray[np.float64] = values * self.class_weights
        return weighted

    def sets(self, scores: ArrayLike) -> NDArray[np.bool_]:
        """The prediction sets, shape ``(rows, classes)``; True for a class in the set.

        Args:
            scores: Shape ``(rows, classes)``.

        Raises:
            ValueError: A wrong shape, a NaN or +inf.
        """
        ranked = self.rank_by(as_scores(scores))
        if self.top_k is not None:
            return best_k(ranked, self.top_k)
        inside: NDArray[np.bool_] = self.compare(scores) >= np.float64(self.lambda_val)
        if self.min_size:
            np.put_along_axis(inside, best_class(ranked)[:, np.newaxis], True, axis=1)
        if self.max_size is not None:
            inside &= best_k(np.where(inside, ranked, -np.inf), self.max_size)
        return inside


def _check_classes(values: NDArray[np.float64], classes: int) -> None:
    if values.shape[-1] != classes:
        raise ValueError(f"scores must have {classes} classes, got {values.shape[-1]}")


def best_class(values: NDArray[Any]) -> NDArray[np.int64]:
    """Index of each row's largest value, the first of equal ones; shape ``(rows,)``."""
    return np.asarray(values.argmax(axis=1), dtype=np.int64)


def best_k(values: NDArray[Any], k: int) -> NDArray[np.bool_]:
    """Mask of each row's ``k`` largest values; of equal ones the first are taken."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    inside = np.zeros(values.shape, dtype=np.bool_)
    np.put_along_axis(inside, order, True, axis=1)
    return inside

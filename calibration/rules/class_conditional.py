"""One conformal threshold per class, and what to do about classes with too few rows for one."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.conformal import conformal_rank, true_score_quantile
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.sets import SetRule
from florilege.calibration.threshold import RealNumber

SmallClasses = Literal["always", "marginal", "group"]
"""What a class with too few rows gets: a place in every set, the threshold of all rows together,
or the threshold of the rows of its group."""

SMALL_CLASSES: tuple[SmallClasses, ...] = get_args(SmallClasses)


def class_coverage_of(
    evidence: Evidence,
    labels: NDArray[np.int64],
    coverage: RealNumber,
    *,
    small_classes: SmallClasses,
    groups: Sequence[str] | ArrayLike | None = None,
) -> SetRule:
    """The rule ``class_coverage`` from scores gathered batch by batch, and all their labels."""
    thresholds, small = class_thresholds(
        evidence.true_scores, labels, evidence.classes, coverage,
        small_classes=small_classes, groups=groups,
    )  # fmt: skip
    return SetRule(
        rule="class_coverage",
        lambda_val=0.0,
        min_size=evidence.min_size,
        class_thresholds=np.array([evidence.finite(value) for value in thresholds]),
        rows=evidence.rows,
        small_classes=int(small.sum()),
    )


def class_thresholds(
    true_scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: int,
    coverage: RealNumber,
    *,
    small_classes: SmallClasses,
    groups: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Threshold of each class, and which classes were too small for one of their own.

    A threshold needs ``1/(1 - coverage) - 1`` rows, be they of the class, of its group or of all
    classes; where there are fewer, the class is in every set.

    Args:
        true_scores: Score of the true class of each row, shape ``(rows,)``; ``+inf`` where it is
            in the set whatever the threshold.
        labels: True class indices, shape ``(rows,)``.
        classes: Number of classes.
        coverage: Wanted probability, in (0, 1).
        small_classes: What small classes get.
        groups: For ``group``: the group of each class, such as its genus, shape ``(classes,)``.

    Returns:
        Thresholds, ``-inf`` for a class in every set, and a mask; both of shape ``(classes,)``.

    Raises:
        ValueError: An unknown policy, or ``group`` without a group for each class.
    """
    if small_classes not in SMALL_CLASSES:
        raise ValueError(
            f"small_classes must be one of {', '.join(SMALL_CLASSES)}, got {small_classes!r}"
        )
    own = np.array([_threshold(true_scores[labels == c], coverage) for c in range(classes)])
    small = own == -np.inf
    if small_classes == "marginal":
        own[small] = _threshold(true_scores, coverage)
    elif small_classes == "group":
        membership = np.asarray([] if groups is None else groups)
        if membership.shape != (classes,):
            raise ValueError(
                f"groups must name one group per class, shape ({classes},), got {membership.shape}"
            )
        for group in np.unique(membership[small]):
            inside = membership == group
            own[small & inside] = _threshold(true_scores[inside[labels]], coverage)
    return own, small


def _threshold(true_scores: NDArray[np.float64], coverage: RealNumber) -> float:
    return true_score_quantile(true_scores, conformal_rank(coverage, true_scores.size))

"""One conformal threshold per class; classes with too few rows get that of all rows."""

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.conformal import conformal_rank, true_score_quantile
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.sets import SetRule
from florilege.calibration.threshold import RealNumber


def class_coverage_of(
    evidence: Evidence, labels: NDArray[np.int64], coverage: RealNumber
) -> SetRule:
    """The rule ``class_coverage`` from evidence and the labels of all its rows."""
    thresholds, small = class_thresholds(evidence.true_scores, labels, evidence.classes, coverage)
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
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Threshold of each class, and which classes are too small for one of their own.

    A threshold needs ``1/(1 - coverage) - 1`` rows of its class, or else of all classes; with fewer
    rows in total, every class is in every set.

    Args:
        true_scores: Score of the true class of each row, shape ``(rows,)``; ``+inf`` where it is
            in the set whatever the threshold.
        labels: True class indices, shape ``(rows,)``.
        classes: Number of classes.
        coverage: Requested probability, in (0, 1).

    Returns:
        Thresholds, ``-inf`` for a class in every set, and a mask; both of shape ``(classes,)``.
    """
    own = np.array([_threshold(true_scores[labels == c], coverage) for c in range(classes)])
    small = own == -np.inf
    own[small] = _threshold(true_scores, coverage)
    return own, small


def _threshold(true_scores: NDArray[np.float64], coverage: RealNumber) -> float:
    return true_score_quantile(true_scores, conformal_rank(coverage, true_scores.size))

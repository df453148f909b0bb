"""Rules that hold the true class with a wanted probability."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.arrays import as_labels, as_scores
from calibration.rules.balance import class_weights
from calibration.rules.class_conditional import SmallClasses, class_thresholds
from calibration.rules.evidence import Evidence
from calibration.sets import SetRule
from calibration.threshold import RealNumber


def coverage(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: RealNumber,
    min_size: int = 1,
    delta: float | None = None,
) -> SetRule:
    """Sets that hold the true class with at least the asked probability (split conformal).

    Promise: for photos exchangeable with the calibration rows, and a network chosen without
    them, ``P(true class in set) >= coverage``, and at most ``coverage + 1/(n + 1)`` where scores
    do not tie and ``min_size`` is 0. The probability is over calibration and photo together: half
    of all calibrations cover a little less. With ``delta`` all but a share ``delta`` of
    calibrations cover at least the asked share of new photos, for rows drawn independently. With
    too few rows for a level (``1/(1 - coverage) - 1`` without ``delta``) every class is in every
    set.

    Args:
        scores: Calibration scores, shape ``(rows, classes)``.
        labels: True class indices, shape ``(rows,)``.
        coverage: Wanted probability, in (0, 1).
        min_size: 1 to keep the best class in every set, else 0.
        delta: How often a calibration may cover less, in (0, 1); None for on average.

    Raises:
        ValueError: A value out of range, or a NaN or +inf among the scores.
    """
    return _evidence(scores, labels, min_size).coverage(coverage, delta=delta)


def balanced_coverage(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: RealNumber,
    class_counts: ArrayLike,
    micro_weight: float = 0.5,
    min_size: int = 1,
) -> SetRule:
    """Sets with a coverage promise over all photos that spend more of their room on rare classes.

    Promise: the probability as for ``coverage``, over all photos, not class by class.

    Args:
        scores: Calibration scores, shape ``(rows, classes)``.
        labels: True class indices, shape ``(rows,)``.
        coverage: Wanted probability, in (0, 1).
        class_counts: Training images a class, shape ``(classes,)``.
        micro_weight: 1 is ``coverage``, 0 is prevalence-adjusted in full.
        min_size: 1 to keep the best class, after weighting, in every set, else 0.

    Raises:
        ValueError: A value out of range, or a NaN or +inf among the scores.

    References:
        Ding, Fermanian and Salmon, "Conformal prediction for long-tailed classification",
        arXiv 2507.06867.
    """
    evidence = _evidence(scores, labels, min_size, class_weights(class_counts, micro_weight))
    return evidence.coverage(coverage, rule="balanced_coverage")


def class_coverage(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: RealNumber,
    small_classes: SmallClasses,
    groups: Sequence[str] | ArrayLike | None = None,
    min_size: int = 1,
) -> SetRule:
    """Sets with a coverage promise for each class, at one threshold a class.

    Promise: for photos of a class that are exchangeable with its calibration rows, and a network
    chosen without them, ``P(true class in set | class) >= coverage``. A class with fewer than
    ``1/(1 - coverage) - 1`` rows cannot have it for less than a place in every set, which is what
    ``small_classes="always"`` gives; on a long tail that makes sets of half of all classes.
    ``marginal`` gives it the threshold of all rows, and ``group`` that of its group's rows: both
    keep the promise over all small classes (of a group) only as far as they resemble the rest.

    Args:
        scores: Calibration scores, shape ``(rows, classes)``.
        labels: True class indices, shape ``(rows,)``.
        coverage: Wanted probability, in (0, 1).
        small_classes: ``always``, ``marginal`` or ``group``.
        groups: Group of each class, such as its genus, shape ``(classes,)``; for ``group``.
        min_size: 1 to keep the best class in every set, else 0.

    Returns:
        The rule; its ``small_classes`` says how many classes had too few rows.

    Raises:
        ValueError: A value out of range, or a NaN or +inf among the scores.
    """
    evidence = _evidence(scores, labels, min_size)
    true = as_labels(labels, rows=evidence.rows, classes=evidence.classes)
    return class_coverage_of(evidence, true, coverage, small_classes=small_classes, groups=groups)


def class_coverage_of(
    evidence: Evidence,
    labels: NDArray[np.int64],
    coverage: RealNumber,
    *,
    small_classes: SmallClasses,
    groups: Sequence[str] | ArrayLike | None = None,
) -> SetRule:
    """:func:`class_coverage` from scores gathered batch by batch, and all their labels."""
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


def _evidence(
    scores: ArrayLike,
    labels: ArrayLike,
    min_size: int,
    weights: NDArray[np.float64] | None = None,
) -> Evidence:
    array = as_scores(scores)
    rows, classes = array.shape
    evidence = Evidence(
        rows=rows,
        classes=classes,
        max_average_k=min_size,
        min_size=min_size,
        class_weights=weights,
    )
    evidence.update(array, labels)
    return evidence

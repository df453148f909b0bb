"""Conformal thresholds between one for all classes and one for each class."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.conformal import conformal_rank, true_score_quantile
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.sets import SetRule
from florilege.calibration.threshold import RealNumber, as_fraction


def class_coverage_of(
    evidence: Evidence, labels: NDArray[np.int64], coverage: RealNumber, macro_weight: float
) -> SetRule:
    """The rule ``class_coverage`` from evidence and the labels of all its rows.

    Args:
        evidence: Evidence of scores weighted by :func:`.rules.class_weights` of ``macro_weight``.
        labels: True class indices, shape ``(rows,)``.
        coverage: Requested probability, in (0, 1).
        macro_weight: In [0, 1].
    """
    own, shared = class_quantiles(evidence.true_scores, labels, evidence.classes, coverage)
    finite = np.array([evidence.finite(value) for value in own])
    return SetRule(
        rule="class_coverage",
        lambda_val=0.0,
        min_size=evidence.min_size,
        class_weights=evidence.class_weights,
        class_thresholds=interpolate(finite, evidence.finite(shared), macro_weight),
        macro_weight=macro_weight,
        rows=evidence.rows,
    )


def class_quantiles(
    true_scores: NDArray[np.float64],
    labels: NDArray[np.int64],
    classes: int,
    coverage: RealNumber,
) -> tuple[NDArray[np.float64], float]:
    """The conformal threshold of the rows of each class, and that of all rows.

    Args:
        true_scores: Score of the true class of each row, shape ``(rows,)``; ``+inf`` where it is
            in the set whatever the threshold.
        labels: True class indices, shape ``(rows,)``.
        classes: Number of classes.
        coverage: Requested probability, in (0, 1).

    Returns:
        Thresholds, shape ``(classes,)``, and one of all rows; ``-inf`` for fewer than
        ``1/(1 - coverage) - 1`` rows, which guarantee the coverage of no set but that of all.
    """
    own = [_quantile(true_scores[labels == c], coverage) for c in range(classes)]
    return np.array(own), _quantile(true_scores, coverage)


def interpolate(
    own: NDArray[np.float64], shared: float, macro_weight: float
) -> NDArray[np.float64]:
    """``w own + (1 - w) shared`` with ``w = macro_weight``, never outside the two.

    Rounding puts no threshold above the score it equals, so both ends of ``w`` are exact.

    Example:
        >>> interpolate(np.array([0.0, 0.5]), 0.1, 0.5)
        array([0.05, 0.3 ])
    """
    mixed = macro_weight * own + (1 - macro_weight) * shared
    return np.clip(mixed, np.minimum(own, shared), np.maximum(own, shared))


def promised_coverage(coverage: RealNumber, macro_weight: float) -> float:
    """The share of all photos that ``class_coverage`` covers at least, on average.

    It is ``coverage`` at both ends of ``macro_weight``. Between them a threshold is at most the
    higher of that of the class and that of all rows. A set without its true class is therefore a
    miss at one of these two, and each of them misses at most ``1 - coverage`` of all photos.
    Together they miss at most ``2 (1 - coverage)``, and some data come close to it.

    Example:
        >>> [promised_coverage(0.9, weight) for weight in (0, 0.5, 1)]
        [0.9, 0.8, 0.9]
    """
    misses = (1 if macro_weight in (0, 1) else 2) * (1 - as_fraction(coverage))
    return float(max(Fraction(0), 1 - misses))


def _quantile(true_scores: NDArray[np.float64], coverage: RealNumber) -> float:
    return true_score_quantile(true_scores, conformal_rank(coverage, true_scores.size))

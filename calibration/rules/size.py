"""Rules for a mean set size, and the rule for a fixed one."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.arrays import as_scores
from calibration.guarantees import DEFAULT_MAX_SIZE, Guarantee
from calibration.metrics import check_k
from calibration.rules.balance import class_weights
from calibration.rules.evidence import Evidence
from calibration.sets import SetRule
from calibration.threshold import RealNumber


def average_k(
    scores: ArrayLike,
    *,
    average_k: RealNumber,
    min_size: int = 1,
    guarantee: Guarantee | None = None,
    delta: float = 0.1,
    max_size: int | None = None,
    seed: int = 0,
) -> SetRule:
    """Sets of ``average_k`` classes on average, at one threshold for all classes.

    Promise: on the calibration scores the mean size is ``floor(K n) / n`` plus ``ties / n``,
    exactly, and needs no labels. On new photos drawn like them it is K up to a standard error of
    ``sd(size) sqrt(1/n + 1/n_new)``; half of all calibrations lie above. Nothing is promised
    about the share of sets that hold the true class, which is measured instead.

    With ``guarantee="mean"`` the expected size of a new photo's set is at most K, for photos
    exchangeable with the calibration rows (conformal risk control): on average over calibrations.
    With ``guarantee="probability"`` the mean size on new photos is at most K for all but a share
    ``delta`` of calibrations, for rows drawn independently. Both cut sets down to ``max_size``.

    Args:
        scores: Calibration scores, shape ``(rows, classes)``; in [0, 1] for ``probability``.
        average_k: Wanted mean size, ``min_size <= average_k <= classes``.
        min_size: 1 to keep the best class in every set, else 0.
        guarantee: None, ``mean`` or ``probability``.
        delta: For ``probability``: how often the mean size may exceed K, in (0, 1).
        max_size: With a guarantee: the largest set, ``average_k <= max_size <= classes``; by
            default 50, or the number of classes where there are fewer. A smaller one wastes less.
        seed: Of the order in which ``probability`` looks at the rows.

    Raises:
        ValueError: A value out of range, or a NaN or +inf among the scores.
    """
    if guarantee is None:
        return _evidence(scores, average_k, min_size).average_k(average_k)
    values = as_scores(scores)
    if max_size is None:
        max_size = min(values.shape[1], DEFAULT_MAX_SIZE)
    evidence = _evidence(values, average_k, min_size, max_size=max_size)
    rule = evidence.guaranteed_average_k(average_k, guarantee, delta=delta, seed=seed)
    return replace(rule, achieved=float(rule.sets(values).sum() / len(values)))


def top_k(scores: ArrayLike, *, k: int) -> SetRule:
    """The ``k`` best classes of every photo; of equal scores the first classes.

    Promise: exactly ``k`` classes, nothing to calibrate; how often they hold the true class is
    measured.

    Raises:
        ValueError: ``k`` is no integer in ``[1, classes]``.
    """
    rows, classes = as_scores(scores).shape
    check_k(k, classes=classes)
    return SetRule(
        rule="top_k", lambda_val=None, min_size=1, top_k=int(k), achieved=float(k), rows=rows
    )


def balanced_average_k(
    scores: ArrayLike,
    *,
    average_k: RealNumber,
    class_counts: ArrayLike,
    micro_weight: float = 0.5,
    min_size: int = 1,
) -> SetRule:
    """Sets of ``average_k`` classes on average that give rare classes a better chance.

    Promise: the size as for ``average_k``. With exact posteriors no rule of this mean size has a
    higher ``w * micro + (1 - w) * macro`` accuracy (``min_size`` 0).

    Args:
        scores: Calibration scores, shape ``(rows, classes)``.
        average_k: Wanted mean size, ``min_size <= average_k <= classes``.
        class_counts: Training images a class, shape ``(classes,)``.
        micro_weight: ``w``: 1 is ``average_k``, 0 favours rare classes most.
        min_size: 1 to keep the best class, after weighting, in every set, else 0.

    Raises:
        ValueError: A value out of range, or a NaN or +inf among the scores.
    """
    evidence = _evidence(scores, average_k, min_size, class_weights(class_counts, micro_weight))
    return evidence.average_k(average_k, rule="balanced_average_k")


def _evidence(
    scores: ArrayLike,
    average_k: RealNumber,
    min_size: int,
    weights: NDArray[np.float64] | None = None,
    max_size: int | None = None,
) -> Evidence:
    array = as_scores(scores)
    rows, classes = array.shape
    evidence = Evidence(
        rows=rows,
        classes=classes,
        max_average_k=average_k,
        min_size=min_size,
        class_weights=weights,
        max_size=max_size,
    )
    evidence.update(array)
    return evidence

"""Rules for a mean set size, and the rule for a fixed one."""

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.arrays import as_scores
from calibration.balance import class_weights
from calibration.evidence import Evidence
from calibration.guarantees import (
    DEFAULT_MAX_SIZE,
    conformal_size_threshold,
    probable_size_threshold,
)
from calibration.metrics import check_k
from calibration.sets import SetRule, best_class
from calibration.threshold import RealNumber, check_average_k

SizeGuarantee = Literal["mean", "probability"]


def average_k(
    scores: ArrayLike,
    *,
    average_k: RealNumber,
    min_size: int = 1,
    guarantee: SizeGuarantee | None = None,
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
    values = as_scores(scores).astype(np.float64)
    largest = _largest_set(max_size, average_k, values.shape[1])
    check_average_k(average_k, lowest=min_size, classes=values.shape[1])
    rest = _rest(values, min_size)
    if guarantee == "mean":
        lambda_val = conformal_size_threshold(rest, average_k, max_size=largest, min_size=min_size)
    elif guarantee == "probability":
        lambda_val = probable_size_threshold(
            rest, average_k, max_size=largest, min_size=min_size, delta=_checked(delta),
            highest=_highest(values), seed=seed,
        )  # fmt: skip
    else:
        raise ValueError(f"guarantee must be mean or probability, got {guarantee!r}")
    rule = SetRule(
        rule="average_k", lambda_val=lambda_val, min_size=min_size, max_size=largest,
        rows=len(values),
    )  # fmt: skip
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
) -> Evidence:
    array = as_scores(scores)
    rows, classes = array.shape
    evidence = Evidence(
        rows=rows,
        classes=classes,
        max_average_k=average_k,
        min_size=min_size,
        class_weights=weights,
    )
    evidence.update(array)
    return evidence


def _rest(values: NDArray[np.float64], min_size: int) -> NDArray[np.float64]:
    """The scores that a threshold has to cut: with ``min_size`` without each row's best."""
    rest = values.copy()
    if min_size:
        np.put_along_axis(rest, best_class(values)[:, np.newaxis], -np.inf, axis=1)
    return rest


def _largest_set(max_size: int | None, average_k: RealNumber, classes: int) -> int:
    largest = min(classes, DEFAULT_MAX_SIZE) if max_size is None else max_size
    if not average_k <= largest <= classes:
        raise ValueError(f"max_size must be in [{average_k}, {classes}], got {largest}")
    return largest


def _checked(delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    return delta


def _highest(values: NDArray[np.float64]) -> float:
    if values.max() > 1 or values.min() < 0:
        raise ValueError(
            "scores must be in [0, 1] for guarantee='probability', got "
            f"{values.min()} to {values.max()}"
        )
    return 1.0

"""The set rules, each calibrated on scores, and what each of them promises.

A rule is calibrated with its ``min_size``: with 1, the default, every set holds its best class,
and the threshold makes up for it. Adding the best class to empty sets afterwards would make the
sets larger than asked for: 1.10 classes instead of 1.00 at K = 1 on one of our data sets.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from calibration.arrays import as_labels, as_scores
from calibration.balance import class_weights
from calibration.evidence import Evidence
from calibration.metrics import check_k
from calibration.sets import SetRule
from calibration.threshold import RealNumber


def average_k(scores: ArrayLike, *, average_k: RealNumber, min_size: int = 1) -> SetRule:
    """Sets of ``average_k`` classes on average, at one threshold for all classes.

    Promise: on the calibration scores the mean size is ``floor(K n) / n`` plus ``ties / n``,
    exactly, and needs no labels. On new photos drawn like them it is K up to a standard error of
    ``sd(size) sqrt(1/n + 1/n_new)``; half of all calibrations lie above. Nothing is promised
    about the share of sets that hold the true class, which is measured instead.

    Args:
        scores: Calibration scores, shape ``(rows, classes)``.
        average_k: Wanted mean size, ``min_size <= average_k <= classes``.
        min_size: 1 to keep the best class in every set, else 0.

    Raises:
        ValueError: A value out of range, or a NaN or +inf among the scores.
    """
    return _evidence(scores, None, average_k, min_size).average_k(average_k)


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


def coverage(
    scores: ArrayLike, labels: ArrayLike, *, coverage: RealNumber, min_size: int = 1
) -> SetRule:
    """Sets that hold the true class with at least the asked probability (split conformal).

    Promise: for photos exchangeable with the calibration rows, and a network chosen without
    them, ``P(true class in set) >= coverage``, and at most ``coverage + 1/(n + 1)`` where scores
    do not tie and ``min_size`` is 0. The probability is over calibration and photo together. With
    fewer than ``1/(1 - coverage) - 1`` rows every class is in every set.

    Args:
        scores: Calibration scores, shape ``(rows, classes)``.
        labels: True class indices, shape ``(rows,)``.
        coverage: Wanted probability, in (0, 1).
        min_size: 1 to keep the best class in every set, else 0.

    Raises:
        ValueError: A value out of range, or a NaN or +inf among the scores.
    """
    return _evidence(scores, labels, None, min_size).coverage(coverage)


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
    evidence = _evidence(scores, None, average_k, min_size, class_counts, micro_weight)
    return evidence.average_k(average_k, rule="balanced_average_k")


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
    evidence = _evidence(scores, labels, None, min_size, class_counts, micro_weight)
    return evidence.coverage(coverage, rule="balanced_coverage")


def _evidence(
    scores: ArrayLike,
    labels: ArrayLike | None,
    average_k: RealNumber | None,
    min_size: int,
    class_counts: ArrayLike | None = None,
    micro_weight: float = 1.0,
) -> Evidence:
    array = as_scores(scores)
    rows, classes = array.shape
    evidence = Evidence(
        rows=rows,
        classes=classes,
        max_average_k=min_size if average_k is None else average_k,
        min_size=min_size,
        class_weights=None if class_counts is None else class_weights(class_counts, micro_weight),
    )
    evidence.update(array, labels)
    return evidence


RULES: Mapping[str, Callable[..., SetRule]] = MappingProxyType(
    {
        "average_k": average_k,
        "top_k": top_k,
        "coverage": coverage,
        "balanced_average_k": balanced_average_k,
        "balanced_coverage": balanced_coverage,
    }
)
"""Every rule by its name."""

NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "average_k": ("average_k",),
        "top_k": ("k",),
        "coverage": ("labels", "coverage"),
        "balanced_average_k": ("average_k", "class_counts"),
        "balanced_coverage": ("labels", "coverage", "class_counts"),
    }
)
"""The arguments of :func:`calibrate` that each rule cannot do without."""


def calibrate(
    rule: str,
    scores: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    average_k: RealNumber | None = None,
    k: int | None = None,
    coverage: RealNumber | None = None,
    min_size: int = 1,
    class_counts: ArrayLike | None = None,
    micro_weight: float = 0.5,
) -> SetRule:
    """Calibrate the rule called ``rule``; :data:`RULES` says what each one promises.

    Args:
        rule: A name in :data:`RULES`.
        scores: Calibration scores, shape ``(rows, classes)``.
        labels: True class indices, shape ``(rows,)``; for the coverage rules.
        average_k: Wanted mean set size, for ``average_k`` and ``balanced_average_k``.
        k: Wanted size of every set, for ``top_k``.
        coverage: Wanted probability of holding the true class, for the coverage rules.
        min_size: 1 to keep the best class in every set, else 0.
        class_counts: Training images a class for the balanced rules; by default how often each
            class stands in ``labels``.
        micro_weight: For the balanced rules, from 0 (macro) to 1 (micro).

    Returns:
        The rule, with ``lambda_val`` and ``sets(scores)``.

    Raises:
        ValueError: An unknown rule, an argument it needs that is missing or one that belongs to
            another rule, a value out of range, or a NaN or +inf among the scores.

    Example:
        >>> scores = [[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]]
        >>> calibrate("average_k", scores, average_k=1.5).sets(scores)
        array([[ True, False, False],
               [ True,  True, False]])
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    if class_counts is None and labels is not None:
        class_counts = _label_counts(scores, labels)
    sizes = {"average_k": average_k, "k": k, "coverage": coverage}
    given = {**sizes, "labels": labels, "class_counts": class_counts}
    _check_arguments(rule, sizes, given)
    arguments = {name: given[name] for name in NEEDS[rule]}
    if rule != "top_k":
        arguments["min_size"] = min_size
    if "class_counts" in arguments:
        arguments["micro_weight"] = micro_weight
    return RULES[rule](scores, **arguments)


def _check_arguments(rule: str, sizes: Mapping[str, object], given: Mapping[str, object]) -> None:
    for name in NEEDS[rule]:
        if given[name] is None:
            raise ValueError(f"rule {rule} needs {name}")
    for name, value in sizes.items():
        if value is not None and name not in NEEDS[rule]:
            raise ValueError(f"rule {rule} takes no {name}, got {value}")


def _label_counts(scores: ArrayLike, labels: ArrayLike) -> ArrayLike:
    rows, classes = as_scores(scores).shape
    return np.bincount(as_labels(labels, rows=rows, classes=classes), minlength=classes)

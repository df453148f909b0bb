"""The set rules, each calibrated on scores, and what each of them promises.

A rule is calibrated with its ``min_size``: with 1, the default, every set holds its best class,
and the threshold makes up for it. Adding the best class to empty sets afterwards would make the
sets larger than asked for: 1.10 classes instead of 1.00 at K = 1 on one of our data sets.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration.arrays import as_labels, as_scores
from calibration.rules.coverage import balanced_coverage, class_coverage, coverage
from calibration.rules.size import average_k, balanced_average_k, top_k
from calibration.sets import SetRule
from calibration.threshold import RealNumber

__all__ = [
    "NEEDS",
    "RULES",
    "average_k",
    "balanced_average_k",
    "balanced_coverage",
    "calibrate",
    "class_coverage",
    "coverage",
    "top_k",
]

RULES: Mapping[str, Callable[..., SetRule]] = MappingProxyType(
    {
        "average_k": average_k,
        "top_k": top_k,
        "coverage": coverage,
        "balanced_average_k": balanced_average_k,
        "balanced_coverage": balanced_coverage,
        "class_coverage": class_coverage,
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
        "class_coverage": ("labels", "coverage"),
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
    **options: Any,
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
        options: What one rule alone takes, such as ``guarantee``, ``delta`` or
            ``small_classes``; see the rule.

    Returns:
        The rule, with ``lambda_val`` and ``sets(scores)``.

    Raises:
        ValueError: An unknown rule, an argument it needs that is missing or one that belongs to
            another rule, a value out of range, or a NaN or +inf among the scores.
        TypeError: An option that the rule does not take.

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
    return RULES[rule](scores, **arguments, **options)


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

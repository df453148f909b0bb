"""The set rules, each calibrated on scores, with their guarantees, and the table of them all.

A rule is calibrated with its ``min_size``: with 1, the default, every set holds its best class,
after weighting if there are weights, and the threshold allows for that. Adding the best class to
empty sets later would make sets larger than requested: 1.10 classes instead of 1.00 at K = 1 on one
of our data sets.

Arguments and errors that are not described here are those of :func:`calibrate`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.metrics import check_k
from florilege.calibration.rules.label_noise import LabelNoise as LabelNoise
from florilege.calibration.rules.label_noise import NoiseKind as NoiseKind
from florilege.calibration.rules.label_noise import NoisyLabels as NoisyLabels
from florilege.calibration.rules.label_noise import parse_label_noise as parse_label_noise
from florilege.calibration.rules.score_summary import ScoreSummary as ScoreSummary
from florilege.calibration.sets import Floats, Guarantee, SetRule, as_counts, as_labels, as_scores
from florilege.calibration.threshold import DEFAULT_MAX_SIZE, RealNumber

PREFERRED_K = 3.0  # the default mean size where it is calibrated
MACRO_WEIGHT = 0.5
"""Default weight of the classes against the photos in the rules for rare classes."""


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

    Promise: on the calibration scores, which need no labels, the mean size is exactly
    ``floor(K n) / n`` plus ``ties / n``. On new photos drawn like them it is K up to a standard
    error of ``sd(size) sqrt(1/n + 1/n_new)``; half of all calibrations exceed K. The share of sets
    that hold the true class is not guaranteed but measured.

    With ``guarantee="mean"`` the expected size of a new photo's set is at most K, for photos
    exchangeable with the calibration rows (conformal risk control): on average over calibrations.
    With ``guarantee="probability"`` the mean size on new photos is at most K for all but a share
    ``delta`` of calibrations, for rows drawn independently. Both limit sets to ``max_size``.

    Args:
        scores: Shape ``(rows, classes)``; in [0, 1] for ``probability``.
        average_k: Requested mean size, ``min_size <= average_k <= classes``.
        guarantee: None, ``mean`` or ``probability``.
        delta: For ``probability``: how often the mean size may exceed K, in (0, 1).
        max_size: With a guarantee: the largest set, ``average_k <= max_size <= classes``; by
            default 50, or the number of classes if that is less. The smaller it is, the closer
            the mean size is to K.
        seed: Seed of the order in which ``probability`` tests the rows.
    """
    if guarantee is None:
        if max_size is not None:
            raise ValueError("max_size belongs to a guarantee: give guarantee too, or no max_size")
        return _summary(scores, largest=average_k, min_size=min_size).average_k(average_k)
    values = as_scores(scores)
    if max_size is None:
        max_size = min(values.shape[1], DEFAULT_MAX_SIZE)
    summary = _summary(values, largest=average_k, min_size=min_size, max_size=max_size)
    rule = summary.guaranteed_average_k(average_k, guarantee, delta=delta, seed=seed)
    return replace(rule, achieved=float(rule.sets(values).sum() / len(values)))


def top_k(scores: ArrayLike, *, k: int) -> SetRule:
    """The ``k`` best classes of every photo; among equal scores, the first classes.

    Promise: exactly ``k`` classes, without calibration; how often they hold the true class is
    measured.

    Raises:
        ValueError: ``k`` is not an integer in ``[1, classes]``.
    """
    rows, classes = as_scores(scores).shape
    check_k(k, classes=classes)
    return SetRule(
        rule="top_k", lambda_val=None, min_size=1, top_k=int(k), achieved=float(k), rows=rows
    )


def coverage(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: RealNumber,
    min_size: int = 1,
    delta: float | None = None,
) -> SetRule:
    """Sets that hold the true class with at least the requested probability (split conformal).

    Promise: for photos exchangeable with the calibration rows, and a network chosen without
    them, ``P(true class in set) >= coverage``, and at most ``coverage + 1/(n + 1)`` where scores
    do not tie and ``min_size`` is 0. The probability is over calibration and photo together: half
    of all calibrations cover a little less. With ``delta`` all but a share ``delta`` of
    calibrations cover at least the requested share of new photos, for rows drawn independently.
    With too few rows for a level (``1/(1 - coverage) - 1`` without ``delta``) every class is in
    every set. ``delta`` is in (0, 1), or None for a guarantee on average.
    """
    summary = _summary(scores, labels, largest=min_size, min_size=min_size)
    return summary.coverage(coverage, delta=delta)


def balanced_average_k(
    scores: ArrayLike,
    *,
    average_k: RealNumber,
    class_counts: ArrayLike,
    macro_weight: float = MACRO_WEIGHT,
    min_size: int = 1,
) -> SetRule:
    """Sets of ``average_k`` classes on average that give rare classes a better chance.

    Promise: the same size as ``average_k``. With exact posteriors no rule of this mean size has a
    higher ``(1 - w) micro + w macro`` accuracy, where ``w`` is ``macro_weight`` (``min_size`` 0).
    """
    weights = class_weights(class_counts, macro_weight)
    summary = _summary(scores, largest=average_k, min_size=min_size, class_weights=weights)
    rule = summary.average_k(average_k, rule="balanced_average_k")
    return replace(rule, macro_weight=macro_weight)


def balanced_coverage(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: RealNumber,
    class_counts: ArrayLike,
    macro_weight: float = MACRO_WEIGHT,
    min_size: int = 1,
) -> SetRule:
    """Sets with a coverage guarantee over all photos, in which rare classes get more room.

    Promise: the same probability as :func:`coverage`, over all photos, not class by class.

    References:
        Ding, Fermanian and Salmon, "Conformal prediction for long-tailed classification",
        arXiv 2507.06867.
    """
    weights = class_weights(class_counts, macro_weight)
    summary = _summary(scores, labels, largest=min_size, min_size=min_size, class_weights=weights)
    rule = summary.coverage(coverage, rule="balanced_coverage")
    return replace(rule, macro_weight=macro_weight)


def class_coverage(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: RealNumber,
    class_counts: ArrayLike,
    macro_weight: float = MACRO_WEIGHT,
    min_size: int = 1,
) -> SetRule:
    """Sets with a threshold for each class, between one for all and one of its own.

    Scores are weighted as in :func:`balanced_coverage`. The threshold of a class is ``w`` times
    the one that covers its own rows plus ``1 - w`` times the one that covers all rows, where ``w``
    is ``macro_weight``. With fewer than ``1/(1 - coverage) - 1`` rows a class has no threshold of
    its own: only 0, which excludes it from no set, would guarantee the coverage. So it gets
    ``1 - w`` times the threshold of all rows. Between 0 and 1 all thresholds are then multiplied
    by the factor with which they cover ``coverage`` of all photos, see
    :func:`florilege.calibration.conformal.interpolated_thresholds`; scores must be 0 or more.

    Promise, for photos exchangeable with the calibration rows, and a network chosen without them:
    ``P(true class in set) >= coverage`` over all photos; at 0 these are the sets of
    :func:`coverage`; at 1 ``P(true class in set | class) >= coverage`` for every class, with the
    rare ones in all sets, so that over all photos it is more.

    References:
        Ding, Fermanian and Salmon, "Conformal prediction for long-tailed classification",
        arXiv 2507.06867, for interpolation (Interp-Q) and for weights, there apart: sets that
        cover as many classes are smaller with both.
    """
    weights = class_weights(class_counts, macro_weight)
    summary = _summary(scores, labels, largest=min_size, min_size=min_size, class_weights=weights)
    return summary.class_coverage(coverage, macro_weight=macro_weight)


def class_weights(class_counts: ArrayLike, macro_weight: float = MACRO_WEIGHT) -> Floats:
    """Factor of each class's score in the balanced rules: ``1 - w + w / (classes * prior)``.

    With exact posteriors a threshold on ``p_j * factor_j`` maximises
    ``(1 - w) micro + w macro`` accuracy at a given mean set size (Neyman and Pearson).

    Args:
        class_counts: Training images per class, shape ``(classes,)``. 0 counts as 1, so that the
            factor stays finite.
        macro_weight: ``w`` in [0, 1]: at 0 all photos count equally, at 1 all classes do.

    Raises:
        ValueError: ``macro_weight`` out of range, or counts that are negative or not whole.

    Example:
        >>> class_weights([3, 1], 1.0).round(3)
        array([0.667, 2.   ])
    """
    if not 0 <= macro_weight <= 1:
        raise ValueError(f"macro_weight must be in [0, 1], got {macro_weight}")
    prior = class_prior(class_counts)
    weights: Floats = (1 - macro_weight) + macro_weight / (prior.size * prior)
    return weights


def class_prior(class_counts: ArrayLike) -> Floats:
    """Share of each class among the training images, ``(classes,)``; 0 counts as 1."""
    counts = np.maximum(as_counts(class_counts), 1)
    shares: Floats = counts / counts.sum()
    return shares


def _summary(
    scores: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    largest: RealNumber,
    min_size: int,
    **options: Any,
) -> ScoreSummary:
    """ScoreSummary of all rows at once, for mean sizes up to ``largest``."""
    array = as_scores(scores)
    rows, classes = array.shape
    summary = ScoreSummary(
        rows=rows, classes=classes, max_average_k=largest, min_size=min_size, **options
    )
    summary.update(array, labels)
    return summary


RuleName = Literal[
    "average_k", "top_k", "coverage", "balanced_average_k", "balanced_coverage", "class_coverage"
]


@dataclass(frozen=True, kw_only=True)
class RuleSpec:
    """The properties of a rule.

    ``choose`` takes the summary, the requested value, and ``rule``, the name of the rule. It is
    None for a rule without a threshold, or with a threshold for each class.
    """

    calibrate: Callable[..., SetRule]  # chooses the threshold on an array of scores
    choose: Callable[..., SetRule] | None = None  # chooses it on a summary
    takes: Literal["average_k", "k", "coverage"]  # the argument of `calibrate` that it needs
    balanced: bool = False  # whether scores are weighted in favour of rare classes
    by_class: bool = False  # whether each class has its own threshold

    @property
    def asks(self) -> Literal["k", "coverage"]:
        """What a request or a command specifies: a size or a coverage."""
        return "coverage" if self.takes == "coverage" else "k"

    @property
    def guarantee(self) -> Guarantee | None:
        """The usual guarantee; None for a size that is only measured."""
        return "mean" if self.asks == "coverage" else None


RULES: Mapping[str, RuleSpec] = {
    "average_k": RuleSpec(calibrate=average_k, choose=ScoreSummary.average_k, takes="average_k"),
    "top_k": RuleSpec(calibrate=top_k, takes="k"),
    "coverage": RuleSpec(calibrate=coverage, choose=ScoreSummary.coverage, takes="coverage"),
    "balanced_average_k": RuleSpec(
        calibrate=balanced_average_k,
        choose=ScoreSummary.average_k,
        takes="average_k",
        balanced=True,
    ),
    "balanced_coverage": RuleSpec(
        calibrate=balanced_coverage,
        choose=ScoreSummary.coverage,
        takes="coverage",
        balanced=True,
    ),
    "class_coverage": RuleSpec(
        calibrate=class_coverage, takes="coverage", balanced=True, by_class=True
    ),
}
"""Every rule by its name, a :data:`RuleName`. To add one, write its function in
this module and add an entry here."""


def usual_guarantee(rule: str) -> Guarantee | None:
    """:attr:`RuleSpec.guarantee` of the rule with this name; None for an unknown name."""
    return RULES[rule].guarantee if rule in RULES else None


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
    macro_weight: float = MACRO_WEIGHT,
    **options: Any,
) -> SetRule:
    """Calibrate the rule with the name ``rule``; its function documents its guarantee.

    Args:
        rule: A name in :data:`RULES`.
        scores: Calibration scores, shape ``(rows, classes)``.
        labels: True class indices, shape ``(rows,)``; for the coverage rules.
        average_k: Requested mean set size, for ``average_k`` and ``balanced_average_k``.
        k: Requested size of every set, for ``top_k``.
        coverage: Requested probability of holding the true class, in (0, 1), for coverage rules.
        min_size: 1 to keep the best class in every set, else 0.
        class_counts: Training images per class, for the rules for rare classes; by default how
            often each class occurs in ``labels``. These weigh a new row of a class a little more
            than a calibration row, so its set is a little too large: with 100 rows of 40 classes
            ``balanced_coverage`` covers .914 instead of .903 for a coverage of .9.
        macro_weight: For these rules, in [0, 1]: at 0 all photos count equally (marginal coverage,
            micro accuracy), at 1 all classes do (class-wise coverage, macro accuracy).
        options: Options of this rule only, such as ``guarantee`` or ``delta``; see its function.

    Raises:
        ValueError: An unknown rule, an argument that is missing or belongs to another rule, a
            value out of range, or a NaN or +inf among the scores.
        TypeError: An option that the rule does not take.

    Example:
        >>> scores = [[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]]
        >>> calibrate("average_k", scores, average_k=1.5).sets(scores)
        array([[ True, False, False],
               [ True,  True, False]])
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    spec = RULES[rule]
    if class_counts is None and labels is not None:
        rows, classes = as_scores(scores).shape
        true = as_labels(labels, rows=rows, classes=classes)
        class_counts = np.bincount(true, minlength=classes)
    sizes: dict[str, Any] = {"average_k": average_k, "k": k, "coverage": coverage}
    for name, value in sizes.items():
        if value is not None and name != spec.takes:
            raise ValueError(f"rule {rule} takes no {name}, got {value}")
    arguments = {"labels": labels} if spec.asks == "coverage" else {}
    arguments[spec.takes] = sizes[spec.takes]
    if spec.balanced:
        arguments |= {"class_counts": class_counts, "macro_weight": macro_weight}
    _check_given(rule, arguments)
    if rule != "top_k":
        arguments["min_size"] = min_size
    return spec.calibrate(scores, **arguments, **options)


def _check_given(rule: str, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if value is None:
            raise ValueError(f"rule {rule} needs {name}")

"""The set rules, each calibrated on scores, and what each of them promises.

A rule is calibrated with its ``min_size``: with 1, the default, every set holds its best class,
and the threshold allows for that. Adding the best class to empty sets afterwards would make the
sets larger than asked for: 1.10 classes instead of 1.00 at K = 1 on one of our data sets.

:data:`RULES` is the one table of them: everything else that depends on a rule looks there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.fusion import Fusion
from florilege.calibration.guarantees import DEFAULT_MAX_SIZE, Guarantee
from florilege.calibration.metrics import check_k
from florilege.calibration.rules.class_conditional import SmallClasses, class_coverage_of
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.sets import SetRule
from florilege.calibration.threshold import RealNumber
from florilege.calibration.validation import as_counts, as_labels, as_scores

RuleName = Literal[
    "average_k", "top_k", "coverage", "balanced_average_k", "balanced_coverage", "class_coverage"
]


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
    error of ``sd(size) sqrt(1/n + 1/n_new)``; with half of all calibrations it is larger. Nothing
    is promised about the share of sets that hold the true class, which is measured instead.

    With ``guarantee="mean"`` the expected size of a new photo's set is at most K, for photos
    exchangeable with the calibration rows (conformal risk control): on average over calibrations.
    With ``guarantee="probability"`` the mean size on new photos is at most K for all but a share
    ``delta`` of calibrations, for rows drawn independently. Both cut sets down to ``max_size``.

    Other arguments and errors are those of :func:`calibrate`.

    Args:
        scores: Shape ``(rows, classes)``; in [0, 1] for ``probability``.
        average_k: Wanted mean size, ``min_size <= average_k <= classes``.
        guarantee: None, ``mean`` or ``probability``.
        delta: For ``probability``: how often the mean size may exceed K, in (0, 1).
        max_size: With a guarantee: the largest set, ``average_k <= max_size <= classes``; by
            default 50, or the number of classes where there are fewer. The smaller it is, the
            nearer the mean size comes to K.
        seed: Of the order in which ``probability`` looks at the rows.
    """
    values = as_scores(scores)
    if guarantee is None:
        return _evidence(values, largest=average_k, min_size=min_size).average_k(average_k)
    if max_size is None:
        max_size = min(values.shape[1], DEFAULT_MAX_SIZE)
    evidence = _evidence(values, largest=average_k, min_size=min_size, max_size=max_size)
    rule = evidence.guaranteed_average_k(average_k, guarantee, delta=delta, seed=seed)
    return replace(rule, achieved=float(rule.sets(values).sum() / len(values)))


def top_k(scores: ArrayLike, *, k: int) -> SetRule:
    """The ``k`` best classes of every photo; among equal scores, the first classes.

    Promise: exactly ``k`` classes, nothing to calibrate; how often they hold the true class is
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
    """Sets that hold the true class with at least the asked probability (split conformal).

    Promise: for photos exchangeable with the calibration rows, and a network chosen without
    them, ``P(true class in set) >= coverage``, and at most ``coverage + 1/(n + 1)`` where scores
    do not tie and ``min_size`` is 0. The probability is over calibration and photo together: half
    of all calibrations cover a little less. With ``delta`` all but a share ``delta`` of
    calibrations cover at least the asked share of new photos, for rows drawn independently. With
    too few rows for a level (``1/(1 - coverage) - 1`` without ``delta``) every class is in every
    set.

    Arguments and errors are those of :func:`calibrate`; ``delta`` is in (0, 1), or None for a
    promise on average.
    """
    evidence = _evidence(scores, labels, largest=min_size, min_size=min_size)
    return evidence.coverage(coverage, delta=delta)


def balanced_average_k(
    scores: ArrayLike,
    *,
    average_k: RealNumber,
    class_counts: ArrayLike,
    micro_weight: float = 0.5,
    min_size: int = 1,
) -> SetRule:
    """Sets of ``average_k`` classes on average that give rare classes a better chance.

    Promise: the same size as ``average_k``. With exact posteriors no rule of this mean size has a
    higher ``w * micro + (1 - w) * macro`` accuracy (``min_size`` 0).

    Arguments and errors are those of :func:`calibrate`; the best class that ``min_size`` keeps
    is the best after weighting.
    """
    weights = class_weights(class_counts, micro_weight)
    evidence = _evidence(scores, largest=average_k, min_size=min_size, class_weights=weights)
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
    """Sets with a coverage promise over all photos that leave more of their room to rare classes.

    Promise: the same probability as :func:`coverage`, over all photos, not class by class.

    Arguments and errors are those of :func:`calibrate`; the best class that ``min_size`` keeps
    is the best after weighting.

    References:
        Ding, Fermanian and Salmon, "Conformal prediction for long-tailed classification",
        arXiv 2507.06867.
    """
    weights = class_weights(class_counts, micro_weight)
    evidence = _evidence(scores, labels, largest=min_size, min_size=min_size, class_weights=weights)
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
    """Sets with a coverage promise for each class, at one threshold per class.

    Promise: for photos of a class that are exchangeable with its calibration rows, and a network
    chosen without them, ``P(true class in set | class) >= coverage``. A class with fewer than
    ``1/(1 - coverage) - 1`` rows can only have it through a place in every set, which is what
    ``small_classes="always"`` gives; on a long tail that makes sets of half of all classes.
    ``marginal`` gives it the threshold of all rows, and ``group`` that of its group's rows: both
    keep the promise over all small classes (of a group) only as far as they resemble the rest.

    Other arguments and errors are those of :func:`calibrate`.

    Args:
        small_classes: ``always``, ``marginal`` or ``group``.
        groups: For ``group``: the group of each class, such as its genus, shape ``(classes,)``.

    Returns:
        The rule; its ``small_classes`` says how many classes had too few rows.
    """
    evidence = _evidence(scores, labels, largest=min_size, min_size=min_size)
    true = as_labels(labels, rows=evidence.rows, classes=evidence.classes)
    return class_coverage_of(evidence, true, coverage, small_classes=small_classes, groups=groups)


def class_weights(class_counts: ArrayLike, micro_weight: float = 0.5) -> NDArray[np.float64]:
    """Factor of each class's score in the balanced rules: ``w + (1 - w) / (classes * prior)``.

    With exact posteriors a threshold on ``p_j * factor_j`` maximises
    ``w * micro + (1 - w) * macro`` accuracy at a given mean set size (Neyman and Pearson).

    Args:
        class_counts: Training images per class, shape ``(classes,)``. A class with none counts as
            if it had one, so that its factor stays finite.
        micro_weight: ``w`` in [0, 1]: 1 is the rule without weights, 0 favours rare classes most.

    Raises:
        ValueError: ``micro_weight`` out of range, or counts that are negative or not whole.

    Example:
        >>> class_weights([3, 1], 0.0).round(3)
        array([0.667, 2.   ])
    """
    if not 0 <= micro_weight <= 1:
        raise ValueError(f"micro_weight must be in [0, 1], got {micro_weight}")
    counts = np.maximum(as_counts(class_counts), 1)
    prior = counts / counts.sum()
    weights: NDArray[np.float64] = micro_weight + (1 - micro_weight) / (counts.size * prior)
    return weights


@dataclass(frozen=True, kw_only=True)
class RuleSpec:
    """What there is to know about a rule.

    ``choose`` is None for a rule that needs no threshold, or more than evidence to choose one. With
    several photos ``top_k`` uses their marginals, the others their scores: that did best on
    simulated plants, with clean photos, noisy ones, and strangers among them. The marginals of a
    row sum to ``k``, which flattens the differences in ambiguity that a threshold depends on.
    """

    calibrate: Callable[..., SetRule]  # chooses its threshold from the scores of an array
    choose: Callable[[Evidence, RealNumber], SetRule] | None = None  # from evidence, in batches
    takes: Literal["average_k", "k", "coverage"]  # the argument of `calibrate` that it needs
    balanced: bool = False  # whether scores are weighted so that rare classes count
    by_class: bool = False  # whether each class has a threshold of its own
    promises: tuple[Guarantee, ...] = ()  # guarantees on offer, at least for one photo
    fusion: Fusion = "mean_score"  # how the scores of several photos become one row

    @property
    def asks(self) -> Literal["k", "coverage"]:
        """What a request or a command asks for: a size or a coverage."""
        return "coverage" if self.takes == "coverage" else "k"

    @property
    def guarantee(self) -> Guarantee | None:
        """What it promises where nothing else is asked for; None for a size that is measured."""
        return "mean" if self.asks == "coverage" else None

    @property
    def needs(self) -> tuple[str, ...]:
        """The arguments of :func:`calibrate` that it cannot do without."""
        labels = ("labels",) if self.asks == "coverage" else ()
        return (*labels, self.takes, *(("class_counts",) if self.balanced else ()))


RULES: Mapping[str, RuleSpec] = MappingProxyType(
    {
        "average_k": RuleSpec(
            calibrate=average_k,
            choose=Evidence.average_k,
            takes="average_k",
            promises=("mean", "probability"),
        ),
        "top_k": RuleSpec(calibrate=top_k, takes="k", fusion="mean_marginal"),
        "coverage": RuleSpec(
            calibrate=coverage,
            choose=Evidence.coverage,
            takes="coverage",
            promises=("mean", "probability"),
        ),
        "balanced_average_k": RuleSpec(
            calibrate=balanced_average_k,
            choose=partial(Evidence.average_k, rule="balanced_average_k"),
            takes="average_k",
            balanced=True,
        ),
        "balanced_coverage": RuleSpec(
            calibrate=balanced_coverage,
            choose=partial(Evidence.coverage, rule="balanced_coverage"),
            takes="coverage",
            balanced=True,
            promises=("mean",),
        ),
        "class_coverage": RuleSpec(
            calibrate=class_coverage, takes="coverage", by_class=True, promises=("mean",)
        ),
    }
)
"""Every rule by its name, a :data:`RuleName`: a new one is a function above and an entry here."""


def usual_guarantee(rule: str) -> Guarantee | None:
    """:attr:`RuleSpec.guarantee` of a rule by its name; None for a name that is not a rule."""
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
    micro_weight: float = 0.5,
    **options: Any,
) -> SetRule:
    """Calibrate the rule called ``rule``; its function says what it promises.

    Args:
        rule: A name in :data:`RULES`.
        scores: Calibration scores, shape ``(rows, classes)``.
        labels: True class indices, shape ``(rows,)``; for the coverage rules.
        average_k: Wanted mean set size, for ``average_k`` and ``balanced_average_k``.
        k: Wanted size of every set, for ``top_k``.
        coverage: Wanted probability of holding the true class, in (0, 1), for the coverage rules.
        min_size: 1 to keep the best class in every set, else 0.
        class_counts: Training images per class, for the balanced rules; by default how often each
            class occurs in ``labels``.
        micro_weight: For the balanced rules, from 0 (macro) to 1 (micro).
        options: What only that rule takes, such as ``guarantee``, ``delta`` or
            ``small_classes``; see its function.

    Returns:
        The rule, with ``lambda_val`` and ``sets(scores)``.

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
    sizes = {"average_k": average_k, "k": k, "coverage": coverage}
    given = {**sizes, "labels": labels, "class_counts": class_counts}
    for name in spec.needs:
        if given[name] is None:
            raise ValueError(f"rule {rule} needs {name}")
    for name, value in sizes.items():
        if value is not None and name != spec.takes:
            raise ValueError(f"rule {rule} takes no {name}, got {value}")
    arguments = {name: given[name] for name in spec.needs}
    if rule != "top_k":
        arguments["min_size"] = min_size
    if spec.balanced:
        arguments["micro_weight"] = micro_weight
    return spec.calibrate(scores, **arguments, **options)


def _evidence(
    scores: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    largest: RealNumber,
    min_size: int,
    **options: Any,
) -> Evidence:
    """Evidence of all rows at once, for mean sizes up to ``largest``."""
    array = as_scores(scores)
    rows, classes = array.shape
    evidence = Evidence(
        rows=rows, classes=classes, max_average_k=largest, min_size=min_size, **options
    )
    evidence.update(array, labels)
    return evidence

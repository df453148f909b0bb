"""The table of the set rules, which all code that depends on a rule uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.guarantees import Guarantee
from florilege.calibration.rules import rules
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.sets import SetRule
from florilege.calibration.threshold import RealNumber
from florilege.calibration.validation import as_labels, as_scores

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
    "average_k": RuleSpec(
        calibrate=rules.average_k, choose=ScoreSummary.average_k, takes="average_k"
    ),
    "top_k": RuleSpec(calibrate=rules.top_k, takes="k"),
    "coverage": RuleSpec(calibrate=rules.coverage, choose=ScoreSummary.coverage, takes="coverage"),
    "balanced_average_k": RuleSpec(
        calibrate=rules.balanced_average_k,
        choose=ScoreSummary.average_k,
        takes="average_k",
        balanced=True,
    ),
    "balanced_coverage": RuleSpec(
        calibrate=rules.balanced_coverage,
        choose=ScoreSummary.coverage,
        takes="coverage",
        balanced=True,
    ),
    "class_coverage": RuleSpec(
        calibrate=rules.class_coverage, takes="coverage", balanced=True, by_class=True
    ),
}
"""Every rule by its name, a :data:`RuleName`. To add one, write its function in
:mod:`florilege.calibration.rules.rules` and add an entry here."""


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
    macro_weight: float = rules.MACRO_WEIGHT,
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
            often each class occurs in ``labels``.
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

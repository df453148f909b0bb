"""Set rules with the methods of scikit-learn: ``fit``, ``predict_set``, ``score``.

    >>> scores = [[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]]
    >>> AverageK(1.5).fit(scores, [0, 1]).predict_set(scores)
    array([[ True, False, False],
           [ True,  True, False]])

They work in pipelines, in cross-validation and with ``clone``; scikit-learn is not needed. Scores
are those of any classifier, such as its ``predict_proba``. In a DataFrame, whose columns are the
classes, labels may be names, and sets keep index and columns.
"""

import importlib
import json
import os
import sys
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.rules import MACRO_WEIGHT, RULES, calibrate
from florilege.calibration.sets import Guarantee, SetRule, as_labels, as_scores
from florilege.calibration.threshold import RealNumber
from florilege.files import write_atomic


class NotFittedError(ValueError, AttributeError):
    """The rule has no threshold yet; scikit-learn's error of this name where it is imported."""


class _SetEstimator:
    """What all rules share; parameters are the fields of a dataclass.

    Attributes:
        rule_: The calibrated rule.
        classes_: The classes, shape ``(classes,)``: the columns of a DataFrame, else 0, 1, ...
    """

    _rule: ClassVar[str]
    rule_: SetRule
    classes_: NDArray[Any]

    @property
    def threshold_(self) -> float | None:
        """The score that a class needs to be in the set; None for :class:`TopK`."""
        return self._fitted().lambda_val

    def fit(self, scores: Any, labels: ArrayLike | None = None) -> Self:
        """Calibrate the rule.

        Args:
            scores: Shape ``(rows, classes)``; higher is likelier.
            labels: The true classes, shape ``(rows,)``: indices, or names among the columns.
                Rules for a mean size need none.

        Raises:
            ValueError: See :func:`florilege.calibration.rules.calibrate`.
        """
        values = as_scores(scores)
        classes = np.asarray(getattr(scores, "columns", np.arange(values.shape[1])))
        if len(set(classes.tolist())) < len(classes):
            raise ValueError("scores must have one column for each class; two have the same name")
        spec = RULES[self._rule]
        arguments = {name: value for name, value in self.get_params().items() if value is not None}
        # Estimators name a mean size `k`, as commands and requests do; `calibrate` names it
        # `average_k`.
        arguments[spec.takes] = arguments.pop(spec.asks, None)
        true = None if labels is None else _indices(labels, classes)
        self.rule_ = calibrate(self._rule, values, true, **arguments)
        _warn_of_ties(self.rule_, arguments.get("average_k"))
        self.classes_ = classes
        return self

    def predict_set(self, scores: Any) -> Any:
        """The prediction sets: True for a class in the set, in the form of the scores.

        These have the shape ``(rows, classes)``, with the classes in the order of the calibration.

        Raises:
            NotFittedError: The rule is not fitted.
            ValueError: A wrong shape or other classes, a NaN or +inf.
        """
        rule, values = self._fitted(), as_scores(scores)
        columns = getattr(scores, "columns", self.classes_)
        if values.shape[1] != len(self.classes_) or not np.array_equal(columns, self.classes_):
            raise ValueError(
                f"scores must have the {len(self.classes_)} classes of the calibration in its "
                f"order, got {values.shape[1]} columns"
            )
        sets = rule.sets(values)
        if not hasattr(scores, "index") or not hasattr(scores, "columns"):
            return sets
        return type(scores)(sets, index=scores.index, columns=scores.columns)

    predict = predict_set  # what a pipeline and ``cross_val_predict`` call

    def score(self, scores: Any, labels: ArrayLike) -> float:
        """The share of sets that hold the true class, higher is better.

        Raises:
            ValueError: As :meth:`fit` and :meth:`predict_set`.
        """
        sets = np.asarray(self.predict_set(scores))
        true = as_labels(_indices(labels, self.classes_), rows=len(sets), classes=sets.shape[1])
        return float(sets[np.arange(len(true)), true].mean())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; ``deep`` changes nothing."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]  # each subclass is a dataclass

    def set_params(self, **params: Any) -> Self:
        """Change parameters; they apply at the next :meth:`fit`.

        Raises:
            ValueError: A name that is no parameter.
        """
        if unknown := params.keys() - self.get_params().keys():
            allowed = ", ".join(self.get_params())
            raise ValueError(f"{type(self).__name__} has no {unknown.pop()}: it has {allowed}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted rule as JSON, with all digits.

        Raises:
            NotFittedError: The rule is not fitted.
            TypeError: A class is neither text nor a number.
        """
        rule = json.loads(self._fitted().to_json())
        content = {"rule": rule, "params": self.get_params(), "classes": self.classes_}
        text = json.dumps(content, default=_plain, allow_nan=False)
        write_atomic(Path(path), text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: It is no rule of this class.
        """
        try:
            content = json.loads(Path(path).read_bytes())
            if content["rule"]["rule"] != cls._rule:
                raise ValueError(f"it is of {content['rule']['rule']}")
            rule = cls(**content["params"])
            rule.rule_ = SetRule.from_json(json.dumps(content["rule"]))
            names = content["classes"]
            # As one array of text, the classes 1 and "1" would be the same.
            rule.classes_ = np.array(names, object if len({*map(type, names)}) > 1 else None)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} holds no rule of {cls.__name__}: {error}") from error
        return rule

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "rule_")

    def __sklearn_tags__(self) -> Any:
        utils: Any = importlib.import_module("sklearn.utils")  # it is scikit-learn that calls
        targets = utils.TargetTags(required=False)
        return utils.Tags(estimator_type=None, target_tags=targets, input_tags=utils.InputTags())

    def _fitted(self) -> SetRule:
        if not hasattr(self, "rule_"):
            of_sklearn = sys.modules.get("sklearn.exceptions")
            error = getattr(of_sklearn, "NotFittedError", NotFittedError)
            raise error(f"this {type(self).__name__} is not fitted: call fit(scores, labels) first")
        return self.rule_


@dataclass(eq=False)
class AverageK(_SetEstimator):
    """Sets of ``k`` classes on average, see :func:`.rules.average_k`."""

    _rule = "average_k"
    k: RealNumber = 3
    min_size: int = 1
    guarantee: Guarantee | None = None
    delta: float = 0.1
    max_size: int | None = None


@dataclass(eq=False)
class TopK(_SetEstimator):
    """The ``k`` best classes of every row, see :func:`.rules.top_k`."""

    _rule = "top_k"
    k: int = 3


@dataclass(eq=False)
class Coverage(_SetEstimator):
    """Sets that hold the true class with this probability, see :func:`.rules.coverage`."""

    _rule = "coverage"
    coverage: RealNumber = 0.9
    min_size: int = 1
    delta: float | None = None


@dataclass(eq=False)
class BalancedAverageK(_SetEstimator):
    """``k`` classes on average, fairer to rare ones, see :func:`.rules.balanced_average_k`."""

    _rule = "balanced_average_k"
    k: RealNumber = 3
    macro_weight: float = MACRO_WEIGHT
    class_counts: ArrayLike | None = None  # by default how often labels occur
    min_size: int = 1


@dataclass(eq=False)
class BalancedCoverage(_SetEstimator):
    """Coverage with more room for rare classes, see :func:`.rules.balanced_coverage`."""

    _rule = "balanced_coverage"
    coverage: RealNumber = 0.9
    macro_weight: float = MACRO_WEIGHT
    class_counts: ArrayLike | None = None
    min_size: int = 1


class ClassCoverage(BalancedCoverage):
    """Coverage with a threshold for each class, see :func:`.rules.class_coverage`."""

    _rule = "class_coverage"


def _warn_of_ties(rule: SetRule, average_k: RealNumber | None) -> None:
    """Warn if equal scores make sets much larger than requested: no threshold tells them apart."""
    if average_k is None or rule.achieved is None or rule.achieved <= 1.05 * float(average_k):
        return
    warnings.warn(
        f"many scores are equal, so sets hold {rule.achieved:.2f} classes on average instead of "
        f"{float(average_k):g}: fit on scores with more digits, such as probabilities instead of "
        "votes, or add a small random number to each score",
        stacklevel=3,
    )


def _plain(value: Any) -> Any:
    """A number or an array as JSON takes it."""
    return value.tolist() if hasattr(value, "tolist") else float(value)


def _indices(labels: ArrayLike, classes: NDArray[Any]) -> ArrayLike:
    """Labels as indices of classes."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels must have shape (rows,), got {array.shape}")
    if np.array_equal(classes, np.arange(len(classes))):
        if array.dtype.kind in "OUS":
            hint = "pd.DataFrame(scores, columns=classifier.classes_)"
            raise ValueError(f"labels are names, so scores must have named columns: {hint}")
        return array
    positions = {name: index for index, name in enumerate(classes.tolist())}
    names = array.tolist()
    if unknown := set(names) - positions.keys():
        raise ValueError(f"label {min(unknown, key=str)!r} is no column of the scores")
    return np.array([positions[name] for name in names], np.int64)

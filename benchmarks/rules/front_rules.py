"""The rules on the front: ours, published ones, and those of MAPIE and TorchCP.

A rule is calibrated on scores and labels and gives a function from scores to sets, boolean
``(rows, classes)``. None keeps the best class of a photo whatever its score (``min_size`` 0), which
the other libraries do not offer. The published ones are written here from their formulas;
``front_oracle`` compares them with the authors' code. MAPIE and TorchCP are imported when used.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.rules.front_scores import Floats, Labels, Problem
from florilege.calibration.conformal import (
    class_quantiles,
    conformal_rank,
    true_score_quantile,
)
from florilege.calibration.rules import calibrate, class_weights

Sets = NDArray[np.bool_]
Predictor = Callable[[Floats], Sets]
PEERS: Final = "MAPIE 1.6.0 and TorchCP 1.2.1: pip install mapie torchcp, in another environment"


class Task(NamedTuple):
    """What a rule is calibrated on."""

    scores: Floats
    labels: Labels
    coverage: float
    problem: Problem

    @property
    def true(self) -> Floats:
        """Score of the true class, ``(rows,)``."""
        scores: Floats = self.scores[np.arange(len(self.labels)), self.labels]
        return scores


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule and the values of its parameter."""

    name: str
    make: Callable[[Task, Any], Predictor]
    values: tuple[Any, ...] = ("",)
    peer: str | None = None  # the package that it needs
    sorts: bool = False  # all scores, which takes long for many classes


def ours(rule: str) -> Callable[[Task, Any], Predictor]:
    """A rule of ours; its parameter is ``macro_weight`` if it takes one.

    Thresholds are divided by the weights, which is many times faster than to multiply all scores;
    only a score that equals its threshold may differ, by rounding.
    """

    def make(task: Task, value: Any) -> Predictor:
        result = calibrate(
            rule,
            task.scores,
            task.labels,
            coverage=task.coverage,
            min_size=0,
            class_counts=task.problem.counts,
            **({} if value == "" else {"macro_weight": value}),
        )
        own = result.class_thresholds
        thresholds = np.float64(result.lambda_val or 0.0) if own is None else own
        weights = result.class_weights
        return at(thresholds if weights is None else thresholds / weights)

    return make


def at(thresholds: Floats | float) -> Predictor:
    """Sets of the classes that reach their threshold."""

    def sets(scores: Floats) -> Sets:
        inside: Sets = scores >= thresholds
        return inside

    return sets


def interpolated(task: Task, weight: float) -> Predictor:
    """Interp-Q: class and marginal quantiles of the scores themselves."""
    own, shared = class_quantiles(task.true, task.labels, task.scores.shape[1], task.coverage)
    return at(weight * np.maximum(own, 0) + (1 - weight) * max(shared, 0))


def weighted(task: Task, weight: float) -> Predictor:
    """``class_coverage`` without its factor: Interp-Q of scores weighted by prevalence."""
    factors = class_weights(task.problem.counts, weight)
    true, classes = task.true * factors[task.labels], task.scores.shape[1]
    own, shared = class_quantiles(true, task.labels, classes, task.coverage)
    return at((weight * np.maximum(own, 0) + (1 - weight) * max(shared, 0)) / factors)


def fuzzy(task: Task, weight_of: Callable[[int], Floats]) -> Floats:
    """Thresholds from the rows of all classes, weighted by how near their class is.

    Args:
        weight_of: Weights of all classes for the rows of which one borrows, ``(classes,)``.
    """
    order = np.argsort(task.true)
    true, labels = task.true[order], task.labels[order]
    thresholds = np.zeros(task.scores.shape[1])
    for place in range(thresholds.size):
        weights = weight_of(place)
        missed = np.cumsum(weights[labels]) + weights[place]  # the new photo counts as missed
        allowed = (1 - task.coverage) * missed[-1] * (1 + 1e-12)
        if weights[place] <= allowed:
            thresholds[place] = true[np.searchsorted(missed, allowed, "right")]
    return thresholds


def by_rarity(task: Task, bandwidth: float) -> Predictor:
    """Fuzzy classes as published: near are classes with as many training photos."""
    return at(rarity_thresholds(task, bandwidth))


def rarity_thresholds(task: Task, bandwidth: float) -> Floats:
    """The thresholds of :func:`by_rarity`, ``(classes,)``."""
    share = task.problem.counts / task.problem.counts.max()
    rows = np.bincount(task.labels, minlength=share.size)

    def weight_of(place: int) -> Floats:
        variance = bandwidth / (rows[place] + 1)
        weights: Floats = np.exp(-((share - share[place]) ** 2) / (2 * variance))
        return weights

    return fuzzy(task, weight_of)


def by_genus(task: Task, borrowed: float) -> Predictor:
    """Rows of the genus count ``borrowed``, those of other genera its square."""
    genus = task.problem.genus

    def weight_of(place: int) -> Floats:
        weights = np.where(genus == genus[place], borrowed, borrowed**2)
        weights[place] = 1
        return weights

    return at(fuzzy(task, weight_of))


def by_means(task: Task, bandwidth: float) -> Predictor:
    """Near are classes whose mean features are; more rows of its own narrow the circle."""
    means = task.problem.means / (task.problem.means.std(axis=0) + 1e-9)
    squares = (means**2).sum(axis=1)
    apart = np.maximum(squares[:, np.newaxis] + squares - 2 * means @ means.T, 0)
    np.fill_diagonal(apart, np.inf)
    typical = float(np.median(apart.min(axis=1)))
    np.fill_diagonal(apart, 0)
    rows = np.bincount(task.labels, minlength=len(means))

    def weight_of(place: int) -> Floats:
        nearness: Floats = np.exp(-apart[place] * np.sqrt(rows[place] + 1) / (typical * bandwidth))
        return nearness

    return at(fuzzy(task, weight_of))


def tail_aware(scores: Floats, counts: Labels, penalty: float) -> Floats:
    """Scores less a penalty for each rank of a common species beyond the first one.

    Our reading of Liu, Huang and Ong, "Conformal prediction meets long-tail classification", arXiv
    2508.11345 (TACP). Common is the tenth of the species with the most photos.
    """
    ranks = np.empty(scores.shape, dtype=np.int64)
    order, places = np.argsort(-scores, axis=1), np.arange(scores.shape[1])
    np.put_along_axis(ranks, order, places[np.newaxis], axis=1)
    lowered: Floats = scores - penalty * (counts >= np.quantile(counts, 1 - COMMON)) * ranks
    return lowered


def by_tail(task: Task, penalty: float) -> Predictor:
    """TACP: one threshold for scores that its penalty has lowered."""
    counts = task.problem.counts
    true = task._replace(scores=tail_aware(task.scores, counts, penalty)).true
    threshold = true_score_quantile(true, conformal_rank(task.coverage, true.size))
    return lambda scores: at(threshold)(tail_aware(scores, counts, penalty))


def lac_of_each_class(task: Task, _: Any) -> Predictor:
    """Class-wise thresholds, with a class of too few rows in every set."""
    return interpolated(task, 1.0)


def mapie(score: str) -> Callable[[Task, Any], Predictor]:
    """A conformity score of MAPIE."""

    def make(task: Task, _: Any) -> Predictor:
        from mapie.classification import SplitConformalClassifier

        classifier = SplitConformalClassifier(
            _Given(task.scores.shape[1]),
            confidence_level=task.coverage,
            conformity_score=score,
            prefit=True,
            random_state=0,
        ).conformalize(_normalised(task.scores), task.labels)
        return lambda scores: classifier.predict_set(_normalised(scores))[1][:, :, 0]

    return make


class _Given:
    """A classifier whose features are its probabilities."""

    def __init__(self, classes: int) -> None:
        self.classes_, self.n_features_in_ = np.arange(classes), classes

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, *_: Any) -> "_Given":
        """It is fitted."""
        return self

    def predict(self, scores: Floats) -> Labels:
        """The best class."""
        best: Labels = scores.argmax(axis=1)
        return best

    def predict_proba(self, scores: Floats) -> Floats:
        """The features."""
        return scores


def _normalised(scores: Floats) -> Floats:
    """Scores that sum to one in float64; they were stored as float32."""
    result: Floats = scores / scores.sum(axis=1, keepdims=True)
    return result


def torchcp(predictor: str, score: str, **options: Any) -> Callable[[Task, Any], Predictor]:
    """A predictor of TorchCP with one of its scores."""

    def make(task: Task, _: Any) -> Predictor:
        import torch
        from torchcp.classification import predictor as predictors
        from torchcp.classification import score as scorers

        torch.manual_seed(0)
        scorer = getattr(scorers, score)(**options)
        model = getattr(predictors, predictor)(score_function=scorer, alpha=1 - task.coverage)
        model.num_classes = task.scores.shape[1]  # which rc3p sets only for a network

        def logits(scores: Floats) -> Any:
            tensor: Any = torch.from_numpy(scores)
            return (tensor + 1e-30).log()

        labels: Any = torch.from_numpy(task.labels)
        model.calculate_threshold(logits(task.scores), labels, 1 - task.coverage)

        def sets(scores: Floats) -> Sets:
            result: Sets = model.predict_with_logits(logits(scores)).numpy().astype(bool)
            return result

        return sets

    return make


MACRO_WEIGHTS: Final = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)
PENALTIES: Final = (0.001, 0.01, 0.1)
COMMON: Final = 0.1  # share of the species that are called common, and as many rare
BANDWIDTHS: Final = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
RULES: Final = (
    Rule(name="coverage", make=ours("coverage")),
    Rule(name="balanced_coverage", make=ours("balanced_coverage"), values=MACRO_WEIGHTS),
    Rule(name="class_coverage", make=ours("class_coverage"), values=MACRO_WEIGHTS),
    Rule(name="Interp-Q", make=interpolated, values=(0.25, 0.5, 0.75, 0.9, 0.95, 0.99)),
    Rule(name="TACP", make=by_tail, values=PENALTIES),
    Rule(name="class-wise", make=lac_of_each_class),
    Rule(name="fuzzy, rarity", make=by_rarity, values=BANDWIDTHS),
    Rule(name="fuzzy, genus", make=by_genus, values=(0.03, 0.1, 0.2, 0.3, 0.5)),
    Rule(name="fuzzy, class means", make=by_means, values=(0.3, 1.0, 3.0, 10.0, 30.0)),
    Rule(name="MAPIE lac", make=mapie("lac"), peer="mapie"),
    Rule(name="MAPIE aps", make=mapie("aps"), peer="mapie", sorts=True),
    Rule(name="MAPIE raps", make=mapie("raps"), peer="mapie", sorts=True),
    Rule(name="MAPIE top_k", make=mapie("top_k"), peer="mapie", sorts=True),
    Rule(name="TorchCP class-conditional", make=torchcp("ClassConditionalPredictor", "LAC"),
         peer="torchcp"),
    Rule(name="TorchCP clustered", make=torchcp("ClusteredPredictor", "LAC"), peer="torchcp"),
    Rule(name="TorchCP rc3p", make=torchcp("RC3PPredictor", "LAC"), peer="torchcp", sorts=True),
    Rule(name="TorchCP saps", make=torchcp("SplitPredictor", "SAPS"), peer="torchcp", sorts=True),
    Rule(name="TorchCP raps", peer="torchcp", sorts=True,
         make=torchcp("SplitPredictor", "RAPS", penalty=0.01, kreg=2)),
    Rule(name="TorchCP margin", peer="torchcp", sorts=True,
         make=torchcp("SplitPredictor", "Margin")),
)  # fmt: skip
"""Every rule of the front; parameters of the rivals are those of their papers or defaults."""


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def figures(sets: Sets, labels: Labels) -> dict[str, float]:
    """What the front shows of the sets of some photos; classes without photos do not count."""
    sizes, inside = sets.sum(axis=1), sets[np.arange(len(labels)), labels]
    rows = np.bincount(labels)
    by_class = np.bincount(labels, inside)[rows > 0] / rows[rows > 0]
    return {
        "size": float(sizes.mean()),
        "size_90": float(np.quantile(sizes, 0.9)),
        "macro": float(by_class.mean()),
        "below_half": float((by_class < 0.5).mean()),
        "micro": float(inside.mean()),
    }

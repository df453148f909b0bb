"""The summary of calibration scores that the rules need, from one pass over batches."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.conformal import (
    Cut,
    check_coverage,
    class_quantiles,
    conformal_rank,
    interpolate,
    interpolated_thresholds,
    pac_rank,
    true_score_quantile,
)
from florilege.calibration.rules.label_noise import NoisyCoverage, NoisyLabels
from florilege.calibration.selection import TopScores
from florilege.calibration.sets import (
    FloatArray,
    Floats,
    Guarantee,
    SetRule,
    as_labels,
    as_scores,
    best_class,
    row_blocks,
)
from florilege.calibration.threshold import (
    BestOfRows,
    RealNumber,
    as_fraction,
    check_average_k,
    next_above,
)

_LOWEST = float(np.finfo(np.float64).min)


class ScoreSummary:
    """Largest scores and true-class scores, which suffice for all thresholds of a kind of score.

    With ``min_size=1`` the best class of each row is left out first: it is in the set whatever the
    threshold.

    Args:
        rows: Rows of the whole calibration data.
        classes: Number of classes.
        max_average_k: The largest mean set size to be requested.
        min_size: 1 where every set holds its best class, else 0.
        class_weights: Factor of each class's score, shape ``(classes,)``, or None.
        max_size: The largest set, for guaranteed mean sizes; others are then not available.
        candidates: How many scores these rows chose among; every promise allows for it. It also
            needs independent rows, so one of each observation, see
            :func:`florilege.calibration.photo_groups.one_of_each`.
        noise: The assumption about wrong labels, which :meth:`coverage` allows for; None where the
            labels are taken as they are.

    Raises:
        ValueError: ``min_size`` is not 0 or 1, ``max_average_k`` or ``max_size`` is out of range,
            or there is not one weight per class.
    """

    def __init__(
        self,
        *,
        rows: int,
        classes: int,
        max_average_k: RealNumber,
        min_size: int = 1,
        class_weights: NDArray[np.float64] | None = None,
        max_size: int | None = None,
        candidates: int = 1,
        noise: NoisyLabels | None = None,
    ) -> None:
        if min_size not in (0, 1):
            raise ValueError(f"min_size must be 0 or 1, got {min_size}")
        check_average_k(max_average_k, lowest=min_size, classes=classes)
        if class_weights is not None and class_weights.shape != (classes,):
            raise ValueError(
                f"class_weights must have shape ({classes},), got {class_weights.shape}: is there "
                "one count per class?"
            )
        if max_size is not None and not max_average_k <= max_size <= classes:
            raise ValueError(f"max_size must be in [{max_average_k}, {classes}], got {max_size}")
        self.classes, self.min_size, self.max_size = classes, min_size, max_size
        self.class_weights, self.candidates = class_weights, candidates
        free_k = as_fraction(max_average_k) - min_size  # scores per row above the threshold
        self._top = TopScores(rows, free_k if max_size is None else 0)
        self._best = None
        if max_size is not None:
            self._best = BestOfRows(rows, max_average_k, max_size=max_size, min_size=min_size)
        self._noisy = _noisy_coverage(noise, class_weights)
        self._true, self._labels = list[NDArray[np.float64]](), list[NDArray[np.int64]]()
        self._smallest = np.inf  # of all weighted scores
        self._largest = -np.inf
        self._largest_rest = -np.inf  # of the scores that the threshold applies to

    def update(self, scores: ArrayLike, labels: ArrayLike | None = None) -> None:
        """Add rows: scores ``(batch, classes)``, without weights, and labels ``(batch,)``.

        The labels are true class indices, which only coverage needs.

        Raises:
            ValueError: Wrong shapes, a NaN or +inf, or more rows than announced.
        """
        values = as_scores(scores)
        if values.shape[1] != self.classes:
            raise ValueError(f"scores must have {self.classes} classes, got {values.shape[1]}")
        true = None if labels is None else as_labels(labels, rows=len(values), classes=self.classes)
        for part in row_blocks(values):
            self._add(values[part], None if true is None else true[part])

    def _add(self, values: FloatArray, labels: NDArray[np.int64] | None) -> None:
        if self.class_weights is not None:
            values = values * self.class_weights
        best = best_class(values)[:, np.newaxis]  # (batch, 1)
        self._smallest = min(self._smallest, float(values.min()))
        self._largest = max(self._largest, float(np.take_along_axis(values, best, axis=1).max()))
        rest = values
        if self.min_size:
            rest = values.copy()
            np.put_along_axis(rest, best, -np.inf, axis=1)
        self._top.update(rest)
        if self._best is not None:
            self._best.add(rest)
        self._largest_rest = max(self._largest_rest, float(rest.max()))
        if labels is not None:
            true = values[np.arange(len(labels)), labels].astype(np.float64)
            if self.min_size:
                true[best[:, 0] == labels] = np.inf
            self._true.append(true)
            self._labels.append(labels)
            if self._noisy is not None:
                inside = values.copy()
                if self.min_size:
                    np.put_along_axis(inside, best, np.inf, axis=1)
                self._noisy.add(inside, labels)

    def average_k(self, average_k: RealNumber, *, rule: str = "average_k") -> SetRule:
        """Rule for sets of ``average_k`` classes on average; ValueError if it is out of range."""
        check_average_k(average_k, lowest=self.min_size, classes=self.classes)
        threshold = self._top.threshold(as_fraction(average_k) - self.min_size)
        members = round(threshold.achieved * threshold.rows) + self.min_size * threshold.rows
        # With a single class, which every set holds, no score is left that could choose a
        # threshold.
        lambda_val = self._smallest if self.classes == self.min_size else threshold.lambda_val
        return self._rule(rule, lambda_val, achieved=members / threshold.rows, ties=threshold.ties)

    def guaranteed_average_k(
        self, average_k: RealNumber, guarantee: Guarantee, *, delta: float, seed: int = 0
    ) -> SetRule:
        """Rule for sets of at most ``average_k`` classes on average, see :func:`.rules.average_k`.

        Raises:
            ValueError: A value out of range, no ``max_size``, or for ``probability`` scores outside
                [0, 1].
        """
        check_average_k(average_k, lowest=self.min_size, classes=self.classes)
        if self._best is None:
            raise ValueError("a guarantee needs a ScoreSummary with max_size")
        if guarantee == "mean":
            lambda_val = self._best.mean_threshold(average_k, candidates=self.candidates)
        elif guarantee == "probability":
            if not 0 < delta < 1:
                raise ValueError(f"delta must be in (0, 1), got {delta}")
            if self._largest > 1 or self._smallest < 0:
                raise ValueError(
                    "scores must be in [0, 1] for guarantee='probability', got "
                    f"{self._smallest} to {self._largest}"
                )
            share = delta / self.candidates
            lambda_val = self._best.probability_threshold(average_k, delta=share, seed=seed)
        else:
            raise ValueError(f"guarantee must be mean or probability, got {guarantee!r}")
        return self._rule("average_k", lambda_val, max_size=self.max_size)

    def coverage(
        self, coverage: RealNumber, *, delta: float | None = None, rule: str = "coverage"
    ) -> SetRule:
        """Rule for sets that hold the true class with a probability of at least ``coverage``.

        Raises:
            ValueError: A value out of range, or rows without labels.
        """
        true = self._true_scores()
        if self._noisy is not None:
            threshold = self._noisy_threshold(self._noisy, coverage, delta)
            return self._rule(rule, self._finite(threshold))
        if delta is None:
            rank = conformal_rank(coverage, true.size, candidates=self.candidates)
        else:
            rank = pac_rank(coverage, true.size, delta, candidates=self.candidates)
        return self._rule(rule, self._finite(true_score_quantile(true, rank)))

    def class_coverage(self, coverage: RealNumber, *, macro_weight: float) -> SetRule:
        """Rule with a threshold for each class, see :func:`.rules.class_coverage`; errors as above.

        ``class_weights`` must be those of ``macro_weight``.
        """
        true, labels = self._true_scores(), np.concatenate(self._labels)
        quantiles = partial(class_quantiles, true, labels, self.classes, coverage)
        # Here one quantile alone decides, and split conformal prediction covers it without a
        # factor.
        if macro_weight in (0, 1):
            own, shared = quantiles(candidates=self.candidates)
            thresholds = interpolate(self._all_finite(own), self._finite(shared), macro_weight)
        elif self._smallest < 0:
            raise ValueError(
                "scores must be 0 or more for class_coverage with a macro_weight between 0 and 1, "
                f"got {self._smallest}"
            )
        else:
            # Without `candidates`: the factor allows for them, once.
            (own, shared), (own_below, shared_below) = quantiles(), quantiles(below=1)
            cut = Cut(
                own=self._all_finite(own),
                shared=self._finite(shared),
                own_below=self._all_finite(own_below),
                shared_below=self._finite(shared_below),
            )
            mixed = interpolated_thresholds(
                true, labels, cut, coverage, macro_weight, candidates=self.candidates
            )
            thresholds = self._all_finite(mixed)
        return self._rule(
            "class_coverage", 0.0, class_thresholds=thresholds, macro_weight=macro_weight
        )

    def _noisy_threshold(
        self, noisy: NoisyCoverage, coverage: RealNumber, delta: float | None
    ) -> float:
        """The threshold of a coverage that allows for wrong labels."""
        check_coverage(coverage)
        if self._smallest < 0 or (self.class_weights is None and self._largest > 1):
            raise ValueError(
                "scores must be in [0, 1] where labels are wrong, got "
                f"{self._smallest} to {self._largest}"
            )
        if delta is None:
            return noisy.mean_threshold(coverage, candidates=self.candidates)
        return noisy.probability_threshold(coverage, delta=delta, candidates=self.candidates)

    def _true_scores(self) -> NDArray[np.float64]:
        """Score of each row's true class, ``(rows,)``; ``+inf`` where it is always in the set."""
        true = np.concatenate([np.empty(0), *self._true])
        if true.size != self._top.rows_seen or not true.size:
            raise ValueError("coverage needs the labels of every row, but some rows have none")
        return true

    def _finite(self, quantile: float) -> float:
        """A finite threshold that keeps the same classes as a quantile of true scores."""
        if quantile == -np.inf:  # too few rows for this level: every class is in every set
            return 0.0 if self._smallest >= 0 else _LOWEST
        if quantile == np.inf:  # the best class suffices
            return self._smallest if self.classes == 1 else next_above(self._largest_rest)
        return quantile

    def _all_finite(self, quantiles: Floats) -> Floats:
        return np.array([self._finite(quantile) for quantile in quantiles])

    def _rule(self, rule: str, lambda_val: float, **fields: Any) -> SetRule:
        return SetRule(
            rule=rule,
            lambda_val=lambda_val,
            min_size=self.min_size,
            class_weights=self.class_weights,
            rows=self._top.rows_seen,
            **fields,
        )


def _noisy_coverage(noise: NoisyLabels | None, weights: Floats | None) -> NoisyCoverage | None:
    """What chooses thresholds where labels are wrong; None where nothing is allowed for."""
    if noise is None or not noise.noise.low:
        return None
    return NoisyCoverage(noise, highest=1.0 if weights is None else float(weights.max()))

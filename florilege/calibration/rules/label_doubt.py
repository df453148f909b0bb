"""Which labels are probably wrong, by heads on features that did not learn from their photos.

A wrong label is taken as drawn evenly from all classes, as likely for one photo as for another. The
rate of wrong labels is the one under which the labels that there are are most probable, so that
nobody has to guess it: where all are right, it is about 0.

Where people have confirmed or corrected labels, these are certain. The heads learn from them as
they are now, but the rate is that of the labels before: after a review of the most doubtful ones,
few of the others are far from what the heads say, and yet they are as doubtful as before.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.comparison import FOLDS, folds_of
from florilege.calibration.sets import Bools, Floats, Ints

# Share of the identity in the covariance. With twenty photos of a class, of which two in five are
# wrong, heads at .99 tell wrong labels best.
_SHRINKAGES: Final = (0.1, 0.3, 0.6, 0.9, 0.97, 0.99)
# In many dimensions a discriminant is far too sure: the logits are divided by one of these.
_TEMPERATURES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_ROUNDING: Final = 1e-9
_ROWS_AT_ONCE: Final = 4096
_RATES: Final = (0.0, 0.005, *(step / 100 for step in range(1, 91)))
# Heads that learned a class from a handful of photos doubt more than half of its right labels. With
# ten or more they doubted 1 or 2 of 100, and where that leaves few of a class, some stay anyway.
_JUDGED_FROM: Final = 10
_KEPT_AT_LEAST: Final = 5
# In nats. Where features say nothing, 19 of 20 best heads are ahead of frequencies by less.
_LUCK: Final = 3.0
# Of people's answers, where heads are judged by them. Else a few slips refuse the best heads: with
# three in a hundred, 85 instead of 94 % of the other wrong labels of grocery-plants were found.
_MISTAKES: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class _LabelDoubt:
    """What heads that did not learn from a photo say of its label."""

    labels: Ints  # class indices, (photos,)
    probabilities: Floats  # of the labels, (photos,); NaN where no other photo has the label
    wrong_rate: float  # the share of labels, before any answers, that are drawn from all classes
    answers: Ints  # of people, as `label_doubt` takes them, (photos,)

    @property
    def right(self) -> Floats:
        """The probability that each label is right, ``(photos,)``.

        1 for labels that people have decided on, and for those that fewer than ten photos have,
        which say little of each other.
        """
        chance = self.wrong_rate / len(np.unique(self.labels))
        # A label drawn from all classes is by `chance` the right one, and then counts as right.
        if_right = (1 - self.wrong_rate + chance) * self.probabilities
        if_wrong = chance * (1 - self.probabilities)
        doubted = _can_be_judged(self.labels, self.probabilities) & (self.answers == 0)
        doubted &= self.wrong_rate > 0
        share: Floats = np.ones(len(self.labels))
        return np.divide(if_right, if_right + if_wrong, out=share, where=doubted)

    @property
    def wrong_now(self) -> float:
        """The share of labels that are wrong after all answers, where labels can be judged."""
        rows = _can_be_judged(self.labels, self.probabilities)
        return float(1 - self.right[rows].mean()) if rows.any() else 0.0

    def believed(self) -> Bools:
        """Which labels are more probably right than wrong, and at least five of every class."""
        right = self.right
        best_first = np.lexsort((-right, self.labels))
        _, starts, counts = np.unique(
            self.labels[best_first], return_index=True, return_counts=True
        )
        place = np.empty(len(right), dtype=np.int64)  # within the class
        place[best_first] = np.arange(len(right)) - np.repeat(starts, counts)
        return (right >= 0.5) | (place < _KEPT_AT_LEAST)


def label_doubt(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    observations: ArrayLike | None = None,
    answers: ArrayLike = 0,
    seed: int = 0,
) -> _LabelDoubt:
    """Judge each label by heads that did not learn from its photo, nor from others of its plant.

    The heads are linear discriminants. Their shrinkage and temperature and the rate of wrong labels
    are those under which the labels are most probable.

    Args:
        features: Shape ``(photos, dimensions)``, finite.
        labels: Class indices, shape ``(photos,)``, some of them perhaps wrong.
        observations: The observation of each photo, ``(photos,)``; None where all differ.
        answers: What people said of each label, ``(photos,)``: 1 if they confirmed it, -1 if it is
            the one that they corrected it to, 0 for nothing.
        seed: Draws the five folds.

    Raises:
        ValueError: The shapes do not fit, or there is no photo.

    References:
        Patrini et al., "Making deep neural networks robust to label noise: a loss correction
        approach", CVPR 2017, for the mixture; Northcutt, Jiang and Chuang, "Confident learning",
        JAIR 2021, for judging labels out of their fold.
    """
    values, classes = np.asarray(features, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    if values.ndim != 2 or len(values) == 0 or classes.shape != (len(values),):
        raise ValueError(
            "features must have shape (photos, dimensions) and labels (photos,), with a photo at "
            f"least, got {values.shape} and {classes.shape}"
        )
    replies = np.broadcast_to(np.asarray(answers, dtype=np.int64), classes.shape)
    deviation = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    grid = np.full((len(_SHRINKAGES), len(_TEMPERATURES), len(values)), np.nan)
    for fold in folds_of(len(values), observations, FOLDS, seed):
        grid[..., fold] = _log_probabilities(values, classes, fold)
    rows, rates = _can_be_judged(classes, grid[0, 0]), _RATES
    # Nothing is known of the rate, but something of the order.
    if not rows.any():
        rows, rates = ~np.isnan(grid[0, 0]), (0.0,)
    number, replied = len(np.unique(classes)), replies[rows]
    best = (-np.inf, 0.0, grid[0, 0])
    for heads in grid.reshape(-1, len(values)) if rows.any() else ():
        likelihood, rate = _most_probable(np.exp(heads[rows]), replied, number, rates)
        best = max(best, (likelihood, rate, heads), key=lambda item: item[0])
    likelihood, rate, heads = best
    # Heads that foretell labels no better than frequencies do cannot judge them.
    share = np.bincount(classes)[classes[rows]] / len(classes)
    without_heads, rate_without = _most_probable(share, replied, number, rates)
    if (likelihood - without_heads) * len(replied) <= _LUCK:
        rate = rate_without
    return _LabelDoubt(
        labels=classes, probabilities=np.exp(heads), wrong_rate=rate, answers=replies
    )


def _can_be_judged(labels: Ints, probabilities: Floats) -> Bools:
    """Labels that enough photos have, and other folds know."""
    counts = np.bincount(labels)[labels]
    enough: Bools = (counts >= _JUDGED_FROM) & ~np.isnan(probabilities)
    return enough


def _most_probable(
    probabilities: Floats, answers: Ints, classes: int, rates: tuple[float, ...]
) -> tuple[float, float]:
    """The mean log-likelihood of labels and answers at the best rate of wrong ones, and that rate.

    A corrected label was drawn from all classes. A head is judged by the right one.
    """
    others, decided = probabilities[answers == 0], probabilities[answers != 0]
    of_decided = _log((1 - _MISTAKES) * decided + _MISTAKES / classes).sum()
    confirmed, corrected = np.sum(answers > 0), np.sum(answers < 0)
    likelihoods = []
    for rate in rates:
        chance = rate / classes
        of_answers = confirmed * _log(1 - rate + chance) + corrected * _log(chance)
        of_others = _log((1 - rate) * others + chance).sum()
        likelihoods.append(float(of_decided + of_answers + of_others) / max(1, len(probabilities)))
    # Rounded, so that of rates that are level the smallest is taken.
    best = int(np.argmax(np.round(likelihoods, 9)))
    return likelihoods[best], rates[best]


def _log(values: ArrayLike) -> Floats:
    """Logarithms that are finite where a value is 0."""
    result: Floats = np.log(np.maximum(values, np.finfo(np.float64).tiny))
    return result


def _log_probabilities(values: NDArray[np.float32], labels: Ints, fold: Bools) -> Floats:
    """Of the labels of a fold by the other photos, ``(shrinkages, temperatures, fold)``."""
    counts = np.bincount(labels[~fold], minlength=labels.max() + 1)
    result = np.full((len(_SHRINKAGES), len(_TEMPERATURES), int(fold.sum())), np.nan)
    if not counts.any():
        return result
    classes = np.flatnonzero(counts)
    place = np.full(len(counts), -1)
    place[classes] = np.arange(len(classes))
    own, rows = place[labels[fold]], np.flatnonzero(fold)
    means, covariance = _moments(values[~fold], place[labels[~fold]], counts[classes])
    # Standardised features vary by 1, so a variance this small within classes is rounding, and may
    # be negative: that of copies of one photo of each class. Only the identity remains then.
    spread = float(np.trace(covariance)) / len(covariance)
    scale = spread if spread > _ROUNDING else 1.0
    for index, shrinkage in enumerate(_SHRINKAGES):
        shrunk = (1 - shrinkage) * covariance + shrinkage * scale * np.eye(len(covariance))
        weights = np.linalg.solve(shrunk, means.T)  # (dimensions, classes)
        bias = np.log(counts[classes] / counts.sum()) - (means * weights.T).sum(axis=1) / 2
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            logits = values[rows[block]] @ weights + bias
            for at, temperature in enumerate(_TEMPERATURES):
                result[index, at, block] = _of_labels(logits / temperature, own[block])
    return result


def _moments(values: NDArray[np.float32], labels: Ints, counts: Ints) -> tuple[Floats, Floats]:
    """Mean of each class, ``(classes, dimensions)``, and the covariance within classes."""
    sums = np.zeros((len(counts), values.shape[1]))
    products = np.zeros((values.shape[1], values.shape[1]))
    for start in range(0, len(values), _ROWS_AT_ONCE):
        block = values[start : start + _ROWS_AT_ONCE].astype(np.float64)
        np.add.at(sums, labels[start : start + _ROWS_AT_ONCE], block)
        products += block.T @ block
    means = sums / counts[:, np.newaxis]
    return means, (products - sums.T @ means) / len(values)


def _of_labels(logits: Floats, labels: Ints) -> Floats:
    """Log-probability of each row's label; NaN where it is -1."""
    largest = logits.max(axis=1)
    total = np.log(np.exp(logits - largest[:, np.newaxis]).sum(axis=1)) + largest
    result: Floats = np.where(labels < 0, np.nan, logits[np.arange(len(labels)), labels] - total)
    return result

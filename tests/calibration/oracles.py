"""Slow and plain versions of what the package computes: sorts, loops and lists."""

import itertools
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.scores import EDGES


class Cut(NamedTuple):
    """A threshold with the number of scores that reach it."""

    lambda_val: float
    kept: int


def cut_at_rank(values: list[float], rank: int) -> Cut:
    """Threshold after a full sort of ``values``, finite ones only."""
    ordered = sorted((value for value in values if value > -math.inf), reverse=True)
    if rank == 0:
        top = ordered[0] if ordered else -math.inf
        return Cut(math.nextafter(top, math.inf), 0)
    if rank >= len(ordered):
        lowest = ordered[-1] if ordered else math.nextafter(-math.inf, math.inf)
        return Cut(lowest, len(ordered))
    above, below = ordered[rank - 1], ordered[rank]
    middle = (above + below) / 2
    if math.isinf(middle):
        middle = above / 2 + below / 2
    if middle <= below:
        middle = above
    return Cut(middle, sum(value >= middle for value in ordered))


def average_k_cut(scores: NDArray[np.floating], average_k: float) -> Cut:
    """Algorithm 1 by a sort of Python floats."""
    rank = math.floor(Fraction(str(average_k)) * len(scores))
    return cut_at_rank([float(value) for row in scores for value in row], rank)


def rest_of(row: list[float]) -> list[float]:
    """A row without its first largest value."""
    best = row.index(max(row))
    return row[:best] + row[best + 1 :]


def best_plus_cut(scores: NDArray[np.floating], average_k: float) -> Cut:
    """Algorithm 1 on what is left when each row's best class is set aside."""
    rank = math.floor((Fraction(str(average_k)) - 1) * len(scores))
    return cut_at_rank([value for row in scores.tolist() for value in rest_of(row)], rank)


def sets(scores: NDArray[np.floating], lambda_val: float, min_size: int) -> list[set[int]]:
    """Prediction sets by loops."""
    result = []
    for row in scores.tolist():
        members = {index for index, value in enumerate(row) if value >= lambda_val}
        if min_size:
            members.add(row.index(max(row)))
        result.append(members)
    return result


def top_k_sets(scores: NDArray[np.floating], k: int) -> list[set[int]]:
    """The k best classes by Python's stable sort, the first of equal ones."""
    return [
        set(sorted(range(len(row)), key=lambda index: -row[index])[:k]) for row in scores.tolist()
    ]


def marginals(logits: list[float], k: int) -> list[float]:
    """Probability of each class to be in the top k, from all subsets of k classes."""
    weights = [math.exp(value - max(logits)) for value in logits]
    inside, total = [0.0] * len(logits), 0.0
    for subset in itertools.combinations(range(len(logits)), k):
        weight = math.prod(weights[index] for index in subset)
        total += weight
        for index in subset:
            inside[index] += weight
    return [value / total for value in inside]


def in_bins(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many scores lie in each bin of a stored histogram."""
    return np.histogram(scores, bins=[*EDGES, np.inf])[0]

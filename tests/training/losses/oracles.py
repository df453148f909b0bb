"""The losses from the papers' formulas, in float64, by plain loops and enumeration.

They share nothing with the implementation: they take lists of floats and return a float.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

Row = Sequence[float]
Matrix = Sequence[Row]


def log_sum_exp(values: Row) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value)) if value >= 0 else value - math.log1p(math.exp(value))


def sigmoid(value: float) -> float:
    return math.exp(log_sigmoid(value))


def descending(values: Row) -> list[float]:
    return sorted(values, reverse=True)


def cross_entropy(s: Row, y: int) -> float:
    return log_sum_exp([value - s[y] for value in s])  # of large scores the difference is exact


def smoothed_cross_entropy(s: Row, y: int, smoothing: float) -> float:
    even = sum(cross_entropy(s, c) for c in range(len(s))) / len(s)
    return (1 - smoothing) * cross_entropy(s, y) + smoothing * even


def focal(s: Row, y: int, gamma: float) -> float:
    below = [value - max(s) for value in s]
    others = [value for j, value in enumerate(below) if j != y]
    return math.exp(gamma * (log_sum_exp(others) - log_sum_exp(below))) * cross_entropy(s, y)


def generalised_cross_entropy(s: Row, y: int, q: float) -> float:
    return -math.expm1(-q * cross_entropy(s, y)) / q


def margin(counts: Sequence[int], y: int, max_margin: float) -> float:
    largest = max(1 / n**0.25 for n in counts)
    lead: float = max_margin / largest / counts[y] ** 0.25
    return lead


def ldam(s: Row, y: int, counts: Sequence[int], max_margin: float, scale: float) -> float:
    lead = margin(counts, y, max_margin)
    return cross_entropy([scale * (v - lead if j == y else v) for j, v in enumerate(s)], y)


def top_k_hinge(s: Row, y: int, k: int) -> float:
    others = [value for j, value in enumerate(s) if j != y]
    return max(0.0, 1 + descending(others)[k - 1] - s[y])


def convex_top_k_hinge(s: Row, y: int, k: int) -> float:
    raised = [value + (0 if j == y else 1) for j, value in enumerate(s)]
    return max(0.0, sum(descending(raised)[:k]) / k - s[y])


def calibrated_top_k_hinge(s: Row, y: int, k: int) -> float:
    return max(0.0, 1 + descending(s)[k] - s[y])


def smooth_top_k(s: Row, y: int, k: int, tau: float, alpha: float = 1.0) -> float:
    all_sets, with_label = [], []
    for choice in itertools.combinations(range(len(s)), k):
        mean = sum(s[j] for j in choice) / k
        all_sets.append((mean + alpha * (y not in choice)) / tau)
        if y in choice:
            with_label.append(mean / tau)
    return tau * (log_sum_exp(all_sets) - log_sum_exp(with_label))


def log_subset_sums(s: Row, k: int, rate: float) -> Sequence[float]:
    """Logarithms of the sums over all subsets of 0 to k classes, class by class."""
    logs = np.array([0.0] + [-math.inf] * k)
    for value in s:
        logs[1:] = np.logaddexp(logs[1:], rate * value + logs[:-1])
    return [float(value) for value in logs]


def smooth_top_k_of_many(s: Row, y: int, k: int, tau: float) -> float:
    """`smooth_top_k` for any number of classes, with a margin of 1."""
    logs = log_subset_sums([*s[:y], *s[y + 1 :]], k, 1 / (k * tau))
    lead = (1 - s[y] / k) / tau + logs[k] - logs[k - 1]
    return -tau * log_sigmoid(-lead)


def smooth_top_k_gradient(s: Row, y: int, k: int, tau: float, j: int) -> float:
    """The derivative by the score of class ``j``, not the label."""
    rate, others = 1 / (k * tau), [*s[:y], *s[y + 1 :]]
    without = [value for i, value in enumerate(s) if i not in (y, j)]
    logs, logs_without = log_subset_sums(others, k, rate), log_subset_sums(without, k, rate)
    of_k, of_fewer = (
        math.exp(rate * s[j] + logs_without[size - 1] - logs[size]) if size else 0.0
        for size in (k, k - 1)
    )
    lead = (1 - s[y] / k) / tau + logs[k] - logs[k - 1]
    return sigmoid(lead) / k * (of_k - of_fewer)


def noised_kth_largest(s: Row, k: int, epsilon: float, noise: Matrix) -> float:
    """Mean over the noise vectors of top-Sigma_k minus top-Sigma_(k-1), [N] eq. 11."""
    total = 0.0
    for z in noise:
        moved = descending([value + epsilon * n for value, n in zip(s, z, strict=True)])
        total += sum(moved[:k]) - sum(moved[: k - 1])
    return total / len(noise)


def noised_kth_gradient(s: Row, k: int, epsilon: float, noise: Matrix) -> list[float]:
    """Share of the noise vectors for which each class comes k-th, [N] eq. 12."""
    gradient = [0.0] * len(s)
    for z in noise:
        moved = [value + epsilon * n for value, n in zip(s, z, strict=True)]
        order = sorted(range(len(s)), key=lambda j, m=moved: -m[j])  # type: ignore[misc]
        gradient[order[k - 1]] += 1 / len(noise)
    return gradient


def noised_top_k(
    s: Row, y: int, k: int, epsilon: float, noise: Matrix, lead: float = 1.0, scale: float = 1.0
) -> float:
    return scale * max(0.0, lead + noised_kth_largest(s, k + 1, epsilon, noise) - s[y])


def assume_negative(z: Row, y: int) -> float:
    negatives = sum(log_sigmoid(-value) for j, value in enumerate(z) if j != y)
    return -log_sigmoid(z[y]) - negatives / (len(z) - 1)


def positive_bce(z: Row, y: int) -> float:
    return -log_sigmoid(z[y])


def mixture(loss: Callable[[Row, int], float], s: Row, targets: Row) -> float:
    """The loss of a soft target: ``sum_c t_c loss(., c)``."""
    return sum(t * loss(s, c) for c, t in enumerate(targets) if t)


def expected_size(z: Matrix) -> float:
    return sum(sigmoid(value) for row in z for value in row) / len(z)


def label_mean(
    z: Matrix, targets: Matrix, weight: Row, *, soft: bool, loss: Callable[[Row, int], float]
) -> float:
    """Weighted mean of a label's loss; integer labels are given as one-hot rows."""
    pairs = [(i, c, t * weight[c]) for i, row in enumerate(targets) for c, t in enumerate(row) if t]
    total = sum(share * loss(z[i], c) for i, c, share in pairs)
    return total / (len(z) if soft else sum(share for _, _, share in pairs))


def expected_positive(
    z: Matrix, targets: Matrix, average_k: float, beta: float, weight: Row, *, soft: bool = False
) -> float:
    observed = label_mean(z, targets, weight, soft=soft, loss=positive_bce)
    return observed + beta * (expected_size(z) - average_k) ** 2


def role(
    z: Matrix,
    theta: Matrix,
    targets: Matrix,
    average_k: float,
    reg_weight: float,
    weight: Row,
    *,
    soft: bool = False,
) -> float:
    rest = (targets, average_k, reg_weight, weight)
    return role_half(z, theta, *rest, soft=soft) + role_half(theta, z, *rest, soft=soft)


def role_half(
    own: Matrix,
    other: Matrix,
    targets: Matrix,
    average_k: float,
    reg_weight: float,
    weight: Row,
    *,
    soft: bool = False,
) -> float:
    """What one side learns, with the other one held still."""
    agreement = 0.0
    for a, b in zip(itertools.chain(*own), itertools.chain(*other), strict=True):
        p = sigmoid(b)
        agreement -= p * log_sigmoid(a) + (1 - p) * log_sigmoid(-a)
    beta = reg_weight / len(own[0])
    expected = expected_positive(own, targets, average_k, beta, weight, soft=soft)
    return (expected + agreement / len(own)) / 2


def round_half_up(value: float) -> int:
    return math.floor(value + 0.5)


def candidates(log_p: Matrix, targets: Matrix, count: int) -> set[tuple[int, int]]:
    """The ``count`` largest log-softmax entries beside the labels, ties by row and class."""
    entries = [
        (-v, i, c) for i, row in enumerate(log_p) for c, v in enumerate(row) if not targets[i][c]
    ]
    return {(i, c) for _, i, c in sorted(entries)[:count]}


def two_head_average_k(
    z: Matrix,
    sccp: Matrix,
    targets: Matrix,
    average_k: float,
    alpha: float,
    weight: Row,
    *,
    soft: bool = False,
    chosen: set[tuple[int, int]] | None = None,
) -> float:
    if chosen is None:
        log_p = [[v - log_sum_exp(row) for v in row] for row in sccp]
        chosen = candidates(log_p, targets, round_half_up((average_k - 1) * len(z)))
    negatives = [
        (i, c)
        for i, row in enumerate(targets)
        for c, t in enumerate(row)
        if not t and (i, c) not in chosen
    ]
    loss = label_mean(sccp, targets, weight, soft=soft, loss=cross_entropy)
    loss += label_mean(z, targets, weight, soft=soft, loss=positive_bce)
    if chosen:
        loss -= alpha * sum(log_sigmoid(z[i][c]) for i, c in chosen) / len(chosen)
    if negatives:
        loss -= alpha * sum(log_sigmoid(-z[i][c]) for i, c in negatives) / len(negatives)
    return loss

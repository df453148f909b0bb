"""Thresholds for a coverage with wrong labels: a slow oracle, and what they promise by simulation.

``python -m benchmarks.rules.label_noise`` simulates the same more often, in larger worlds.
"""

from dataclasses import replace
from functools import cache
from math import comb

import numpy as np
import pytest

from benchmarks.rules.label_noise import LEVEL, World, simulated, world
from florilege.calibration.conformal import _largest_expected_miss
from florilege.calibration.rules import class_weights
from florilege.calibration.rules.label_noise import (
    LabelNoise,
    NoiseKind,
    NoisyCoverage,
    NoisyLabels,
    _highest_mean,
)
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.threshold import THRESHOLDS
from tests.calibration.rules.test_label_noise import COUNTS, EVERYONE, GENERA, noisy, replaced
from tests.calibration.simulation import CLASSES, draw

CALIBRATIONS = 200
UNEVEN = np.repeat([0, 1, 2, 3], [1, 4, 10, 15])
GROUPS = pytest.mark.parametrize("groups", [EVERYONE, UNEVEN], ids=["uniform", "uneven groups"])


def on_thresholds(scores: np.ndarray) -> np.ndarray:
    """Scores that equal thresholds, so that it matters that a score reaches its own."""
    rounded: np.ndarray = 2.0 ** np.round(np.log2(scores))
    return rounded


def summary_of(
    scores: np.ndarray, labels: np.ndarray, model: NoisyLabels | None, **options: object
) -> ScoreSummary:
    arguments = {"min_size": 0, "max_average_k": 1, **options}
    summary = ScoreSummary(rows=len(labels), classes=CLASSES, noise=model, **arguments)  # type: ignore[arg-type]
    for part in np.array_split(np.arange(len(labels)), 3):
        summary.update(scores[part], labels[part])
    return summary


def counts(
    scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, threshold: float
) -> tuple[int, float]:
    """Misses, and the mean chance, straight from the definition."""
    inside, group = scores >= threshold, groups == groups[labels][:, np.newaxis]
    misses = int((~inside[np.arange(len(labels)), labels]).sum())
    return misses, float(((inside & group).sum(axis=1) / group.sum(axis=1)).mean())


@GROUPS
@pytest.mark.parametrize(
    ("ties", "min_size", "level"),
    [(False, 0, 0.8), (True, 0, 0.8), (False, 1, 0.8), (False, 0, 0.97), (False, 1, 0.97)],
)
def test_up_to_the_threshold_on_average_there_is_room_for_one_more_photo(
    groups: np.ndarray, ties: bool, min_size: int, level: float
) -> None:
    random, rate = np.random.default_rng(0), 0.1
    sample = draw(random, 90)
    sample = sample._replace(scores=on_thresholds(sample.scores)) if ties else sample
    labels = replaced(random, sample.labels, groups, rate)
    summary = summary_of(sample.scores, labels, noisy(groups, rate), min_size=min_size)
    result, inside = summary.coverage(level).lambda_val, sample.scores.copy()
    if min_size:
        inside[np.arange(90), inside.argmax(axis=1)] = np.inf
    expected, allowed = 0.0, (1 - rate) * (1 - level)
    for threshold in THRESHOLDS[:800][::-1]:  # down to 1 / 4,000
        misses, chance = counts(inside, labels, groups, threshold)
        if misses + 1 - allowed > 90 * (allowed + rate * (1 - chance)):
            break
        expected = threshold
    assert result == expected


@GROUPS
@pytest.mark.parametrize("delta", [0.05, 0.1, 0.2, 0.3])
def test_the_threshold_with_probability_is_the_last_that_passes_every_test(
    groups: np.ndarray, delta: float
) -> None:
    random, rate, level = np.random.default_rng(1), 0.1, 0.8
    sample = draw(random, 90)
    labels = replaced(random, sample.labels, groups, rate)
    rule = summary_of(sample.scores, labels, noisy(groups, rate)).coverage(level, delta=delta)
    expected, ascending = 0.0, THRESHOLDS[:2000][::-1]
    counted = [counts(sample.scores, labels, groups, threshold) for threshold in ascending]
    chances = np.array([chance for _, chance in counted])
    highest = _highest_mean(chances, np.log(1 / (0.1 * delta)) / 90)
    for threshold, (misses, _), most in zip(ascending, counted, highest, strict=True):
        bound = (1 - rate) * (1 - level) + rate * (1 - most)
        at_most = sum(comb(90, k) * bound**k * (1 - bound) ** (90 - k) for k in range(misses + 1))
        if at_most > 0.9 * delta:
            break
        expected = threshold
    assert rule.lambda_val == expected
    assert 0 < expected < 0.3


def test_a_least_rate_of_0_gives_the_very_thresholds_of_right_labels() -> None:
    sample = draw(np.random.default_rng(2), 300)
    plain = summary_of(sample.scores, sample.labels, None)
    model = noisy(EVERYONE, 0.1)  # a review that leaves 0 possible allows for nothing
    zero = summary_of(
        sample.scores, sample.labels, replace(model, noise=replace(model.noise, low=0.0))
    )
    for delta in (None, 0.1):
        assert (
            plain.coverage(0.9, delta=delta).lambda_val
            == zero.coverage(0.9, delta=delta).lambda_val
        )


def test_a_tiny_rate_gives_the_thresholds_of_right_labels_but_for_the_grid() -> None:
    sample = draw(np.random.default_rng(2), 3000)
    plain = summary_of(sample.scores, sample.labels, None)
    tiny = summary_of(sample.scores, sample.labels, noisy(EVERYONE, 1e-9))
    for delta in (None, 0.1):
        right = plain.coverage(0.9, delta=delta).lambda_val or 0.0
        threshold = tiny.coverage(0.9, delta=delta).lambda_val or 0.0
        assert 0.96 * right < threshold <= right


@pytest.mark.parametrize("min_size", [0, 1])
def test_weights_and_the_best_class_are_part_of_what_is_calibrated(min_size: int) -> None:
    random, rate = np.random.default_rng(4), 0.2
    sample, weights = draw(random, 4000), class_weights(COUNTS, 1.0)
    labels = replaced(random, sample.labels, GENERA, rate)
    summary = summary_of(
        sample.scores, labels, noisy(GENERA, rate), min_size=min_size, class_weights=weights
    )
    sets = summary.coverage(0.9).sets(sample.scores)
    assert sets[np.arange(4000), sample.labels].mean() == pytest.approx(0.9, abs=0.015)
    plain = summary_of(sample.scores, labels, None, min_size=min_size, class_weights=weights)
    assert plain.coverage(0.9).sets(sample.scores).sum() > 1.15 * sets.sum()


def test_scores_above_1_have_thresholds_where_weights_made_them() -> None:
    labels = np.arange(300) % CLASSES
    scores = np.where(np.eye(CLASSES)[labels] > 0, 0.7, 0.3 / (CLASSES - 1))
    scores[:60] = scores[:60].mean()
    model, weights = noisy(GENERA, 0.01), np.full(CLASSES, 8.0)
    plain = summary_of(scores, labels, model).coverage(0.7)
    eight = summary_of(scores, labels, model, class_weights=weights).coverage(0.7)
    assert eight.lambda_val == 8 * (plain.lambda_val or 0.0) > 5


def test_where_the_best_class_suffices_sets_hold_it_alone() -> None:
    labels = np.arange(300) % CLASSES
    scores = np.where(np.eye(CLASSES)[labels] > 0, 0.9, 0.1 / (CLASSES - 1))
    rule = summary_of(scores, labels, noisy(GENERA, 0.01), min_size=1).coverage(0.9)
    assert (rule.sets(scores).sum(axis=1) == 1).all()
    assert (rule.lambda_val or 0.0) < 0.01  # the next float above the other scores


def test_too_few_photos_give_every_class() -> None:
    sample = draw(np.random.default_rng(0), 8)
    summary = summary_of(sample.scores, sample.labels, noisy(EVERYONE, 0.05))
    assert summary.coverage(0.95).lambda_val == 0
    assert summary.coverage(0.95, delta=0.1).lambda_val == 0


def test_scores_outside_0_to_1_are_refused() -> None:
    sample = draw(np.random.default_rng(0), 50)
    summary = summary_of(np.log(sample.scores), sample.labels, noisy(EVERYONE, 0.05))
    with pytest.raises(ValueError, match="where labels are wrong"):
        summary.coverage(0.9)
    with pytest.raises(ValueError, match="coverage must be"):
        summary_of(sample.scores, sample.labels, noisy(EVERYONE, 0.05)).coverage(1.0)


def test_more_candidates_and_a_smaller_delta_lower_the_threshold() -> None:
    sample = draw(np.random.default_rng(0), 2000)
    model = noisy(GENERA, 0.1)
    one, eight = (
        summary_of(sample.scores, sample.labels, model, candidates=candidates)
        for candidates in (1, 8)
    )
    assert (eight.coverage(0.8).lambda_val or 0) < (one.coverage(0.8).lambda_val or 0)
    likely = [one.coverage(0.8, delta=delta).lambda_val or 0 for delta in (0.1, 0.1 / 8)]
    assert likely[1] < likely[0]
    assert eight.coverage(0.8, delta=0.1).lambda_val == likely[1]


def test_the_room_for_candidates_is_that_of_photos_with_right_labels() -> None:
    """With a rate near 0 the level rises as ``conformal_rank`` makes it rise."""
    labels = NoisyLabels(noise=LabelNoise.of("uniform", 1e-9), groups=EVERYONE)
    sample, covered = draw(np.random.default_rng(8), 2000), []
    for candidates in (1, 8):
        counted = NoisyCoverage(labels)
        counted.add(sample.scores, sample.labels)
        threshold = counted.mean_threshold(0.9, candidates=candidates)
        covered.append((sample.scores[np.arange(2000), sample.labels] >= threshold).mean())
    expected = _largest_expected_miss(200, 2000, 8) - 0.1
    assert covered[1] - covered[0] == pytest.approx(expected, abs=0.003)


@cache
def small_world(*, ties: bool = False) -> World:
    sample = draw(np.random.default_rng(1), 20_000)
    scores = np.round(sample.scores * 16) / 16 if ties else sample.scores
    return world("simulation", scores, sample.labels, GENERA)


@pytest.mark.parametrize(
    ("kind", "rate", "photos"),
    [("uniform", 0.05, 300), ("uniform", 0.2, 1000), ("genus", 0.05, 1000), ("genus", 0.2, 300)],
)
def test_a_coverage_holds_on_average_and_with_probability(
    kind: NoiseKind, rate: float, photos: int
) -> None:
    mean, likely, ignored = simulated(small_world(), kind, rate, photos, CALIBRATIONS)
    error = mean.coverage.std() / np.sqrt(CALIBRATIONS)
    assert LEVEL - 2 * error <= mean.coverage.mean() <= LEVEL + 0.015
    assert (likely.coverage < LEVEL).mean() <= 0.1 + 2 * np.sqrt(0.09 / CALIBRATIONS)
    if rate * photos <= 50:
        assert likely.coverage.mean() <= LEVEL + 0.03
    assert ignored.coverage.mean() > mean.coverage.mean() + 0.01
    assert ignored.size.mean() > 1.05 * mean.size.mean()


def test_a_coverage_holds_where_scores_tie() -> None:
    mean, likely, _ = simulated(small_world(ties=True), "uniform", 0.05, 300, CALIBRATIONS)
    assert mean.coverage.mean() >= LEVEL - 2 * mean.coverage.std() / np.sqrt(CALIBRATIONS)
    assert (likely.coverage < LEVEL).mean() <= 0.1 + 2 * np.sqrt(0.09 / CALIBRATIONS)


def test_few_misses_among_many_wrong_labels_are_promised_too() -> None:
    """At the last threshold that leaves room by chance, .985 would be covered for .99."""
    random, rate, level = np.random.default_rng(11), 0.2, 0.99
    pool = draw(random, 20_000)
    true = np.sort(pool.scores[np.arange(20_000), pool.labels])
    coverages = []
    for _ in range(150):
        rows = random.integers(20_000, size=300)
        labels = replaced(random, pool.labels[rows], GENERA, rate)
        cut = summary_of(pool.scores[rows], labels, noisy(GENERA, rate)).coverage(level).lambda_val
        coverages.append(1 - np.searchsorted(true, cut or 0.0) / true.size)
    assert np.mean(coverages) >= level - 2 * np.std(coverages) / np.sqrt(150)

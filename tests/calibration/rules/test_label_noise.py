"""Figures that allow for wrong labels: against slow loops, and against the true labels."""

from dataclasses import replace

import numpy as np
import pytest

from florilege.calibration.record.measurement import Measurement
from florilege.calibration.rules import class_weights
from florilege.calibration.rules.label_noise import LabelNoise, NoiseKind, NoisyLabels
from florilege.calibration.sets import SetRule
from tests.calibration.simulation import CLASSES, PRIOR, draw

GENERA = np.arange(CLASSES) // 5
COUNTS = np.round(PRIOR * 1000).astype(np.int64)
EVERYONE = np.zeros(CLASSES, dtype=np.int64)


def noisy(groups: np.ndarray, rate: float = 0.2) -> NoisyLabels:
    kind: NoiseKind = "genus" if groups.any() else "uniform"
    return NoisyLabels(noise=LabelNoise.of(kind, rate), groups=groups)


def replaced(
    random: np.random.Generator, labels: np.ndarray, groups: np.ndarray, rate: float
) -> np.ndarray:
    """Labels, a share of which is drawn anew from the group, one by one."""
    return np.array(
        [
            random.choice(np.flatnonzero(groups == groups[label]))
            if random.random() < rate
            else label
            for label in labels
        ]
    )


RULES = {
    "threshold": SetRule(rule="average_k", lambda_val=0.05, min_size=0, rows=1),
    "lower": SetRule(rule="average_k", lambda_val=0.004, min_size=0, rows=1),
    "best class": SetRule(rule="average_k", lambda_val=0.3, min_size=1, rows=1),
    "largest": SetRule(rule="average_k", lambda_val=0.001, min_size=1, max_size=4, rows=1),
    "top k": SetRule(rule="top_k", lambda_val=None, min_size=1, top_k=3, rows=1),
    "weighted": SetRule(
        rule="balanced_coverage", lambda_val=0.1, min_size=1, rows=1,
        class_weights=class_weights(COUNTS, 0.5),
    ),
    "by class": SetRule(
        rule="class_coverage", lambda_val=0.0, min_size=0, rows=1,
        class_thresholds=np.linspace(0.01, 0.3, CLASSES),
    ),
    "by class, best class": SetRule(
        rule="class_coverage", lambda_val=0.0, min_size=1, rows=1,
        class_thresholds=np.linspace(0.9, 0.1, CLASSES),
    ),
}  # fmt: skip


@pytest.mark.parametrize("groups", [EVERYONE, GENERA], ids=["uniform", "genus"])
def test_the_chance_of_a_label_is_that_of_a_slow_loop(groups: np.ndarray) -> None:
    sample = draw(np.random.default_rng(0), 120)
    rules = list(RULES.values())
    measured = Measurement(rules, CLASSES, noise=noisy(groups))
    for part in np.array_split(np.arange(120), 7):
        measured.update(sample.scores[part], sample.labels[part])
    for index, rule in enumerate(rules):
        sets, expected = rule.sets(sample.scores), np.zeros(measured.histogram.shape[1])
        for row, label in enumerate(sample.labels):
            group = np.flatnonzero(groups == groups[label])
            size = int(sets[row].sum())
            place = int(np.flatnonzero(measured._bins <= size)[-1])
            expected[place] += sum(bool(sets[row, each]) for each in group) / len(group)
        np.testing.assert_allclose(measured.chance[index], expected, rtol=1e-12)
    assert measured.macro_hit_rate(0) is None


@pytest.mark.parametrize("groups", [EVERYONE, GENERA], ids=["uniform", "genus"])
def test_corrected_hits_are_those_of_the_true_labels(groups: np.ndarray) -> None:
    random, rate = np.random.default_rng(3), 0.3
    sample = draw(random, 20_000)
    labels, model = replaced(random, sample.labels, groups, rate), noisy(groups, rate)
    rules = list(RULES.values())
    measured, true = Measurement(rules, CLASSES, noise=model), Measurement(rules, CLASSES)
    measured.update(sample.scores, labels)
    true.update(sample.scores, sample.labels)
    for index in range(len(rules)):
        share, chance = measured.hits[index] / 20_000, measured.chance[index].sum() / 20_000
        clean = true.hits[index] / 20_000
        assert model.noise.corrected(share, chance) == pytest.approx(clean, abs=0.012)
        assert share < clean - 0.01


def test_among_the_photos_of_a_list_as_many_labels_are_wrong_as_fall_into_it() -> None:
    random, rate, listed = np.random.default_rng(5), 0.3, np.arange(3, 12)
    labels = random.choice(CLASSES, 40_000, p=PRIOR)
    for groups in (EVERYONE, GENERA):
        anew = random.random(40_000) < rate
        drawn_labels = replaced(random, labels, groups, 1.0)
        noised = np.where(anew, drawn_labels, labels)
        in_list = np.isin(noised, listed)
        among = noisy(groups, rate).among(listed, noised)
        assert among.noise.rate == pytest.approx(anew[in_list].mean(), abs=0.01)
        assert among.noise.crosses_list
        assert among.groups.size == 9


def test_a_list_of_whole_groups_has_the_rate_of_all_photos() -> None:
    model = noisy(GENERA, 0.3)
    among = model.among(np.arange(5, 15), np.arange(CLASSES))
    assert among.noise == model.noise
    assert among.groups.tolist() == [0] * 5 + [1] * 5


def test_an_interval_uses_both_ends_of_the_rate() -> None:
    noise = replace(LabelNoise.of("uniform", 0.1), low=0.05, high=0.2)
    low, high = noise.interval(0.8, 0.9, 0.1)
    assert low == pytest.approx((0.8 - 0.005) / 0.95)
    assert high == 1.0  # (.9 - .02) / .8 is more
    assert low < noise.corrected(0.85, 0.1) < high


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_outside_0_to_1_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="must be in"):
        LabelNoise.of("uniform", rate)

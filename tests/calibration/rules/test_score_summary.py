"""ScoreSummary gathered in batches gives the rules of one call."""

import numpy as np
import pytest

from florilege.calibration.rules import LabelNoise, NoisyLabels, calibrate, class_weights
from florilege.calibration.rules.score_summary import ScoreSummary


@pytest.mark.parametrize("min_size", [0, 1])
@pytest.mark.parametrize("balanced", [False, True])
def test_batches_give_the_very_rules_of_one_call(min_size: int, balanced: bool) -> None:
    random = np.random.default_rng(min_size)
    scores = random.dirichlet(np.ones(7), 300).astype(np.float32)
    labels = random.integers(0, 7, 300)
    counts = [1, 2, 4, 8, 16, 32, 64]
    weights = class_weights(counts) if balanced else None
    summary = ScoreSummary(
        rows=300, classes=7, max_average_k=5, min_size=min_size, class_weights=weights
    )
    for part in np.array_split(np.arange(300), 11):
        summary.update(scores[part], labels[part])
    name = "balanced_" if balanced else ""
    for average_k in (1, 2.3, 5):
        expected = calibrate(
            f"{name}average_k", scores, average_k=average_k, min_size=min_size, class_counts=counts
        )
        result = summary.average_k(average_k)
        assert result.lambda_val == expected.lambda_val
        assert result.achieved == expected.achieved
    for level in (0.5, 0.9, 0.999):
        expected = calibrate(
            f"{name}coverage", scores, labels, coverage=level, min_size=min_size,
            class_counts=counts,
        )  # fmt: skip
        assert summary.coverage(level).lambda_val == expected.lambda_val


@pytest.mark.parametrize("noise", [None, LabelNoise.of("uniform", 0.05)])
def test_every_promise_allows_for_the_scores_that_the_rows_compared(
    noise: LabelNoise | None,
) -> None:
    random = np.random.default_rng(4)
    scores, labels = random.dirichlet(np.full(7, 0.3), 800), random.integers(0, 7, 800)
    labels[:600] = scores[:600].argmax(axis=1)
    thresholds = dict[int, list[float]]()
    for candidates in (1, 8):
        summary = ScoreSummary(
            rows=800, classes=7, max_average_k=3, max_size=5, min_size=0, candidates=candidates,
            noise=None if noise is None else NoisyLabels(noise=noise, groups=np.zeros(7, int)),
        )  # fmt: skip
        summary.update(scores, labels)
        rules = [
            summary.coverage(0.8),
            summary.coverage(0.8, delta=0.1),
            *(summary.class_coverage(0.8, macro_weight=weight) for weight in (0.0, 0.5, 1.0)),
            summary.guaranteed_average_k(3, "mean", delta=0.1),
            summary.guaranteed_average_k(3, "probability", delta=0.1),
        ]
        thresholds[candidates] = [
            (rule.lambda_val or 0.0)
            + (0.0 if rule.class_thresholds is None else rule.class_thresholds.mean())
            for rule in rules
        ]
    *of_coverage, of_mean, of_probability = np.sign(np.subtract(thresholds[8], thresholds[1]))
    assert of_coverage == [-1] * 5  # lower, for larger sets
    assert (of_mean, of_probability) == (1, 1)


def test_coverage_needs_the_labels_of_every_row() -> None:
    summary = ScoreSummary(rows=2, classes=2, max_average_k=1)
    summary.update([[0.6, 0.4]], [0])
    summary.update([[0.6, 0.4]])
    with pytest.raises(ValueError, match="labels"):
        summary.coverage(0.5)


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="3 classes, got 2"):
        ScoreSummary(rows=1, classes=3, max_average_k=1).update([[0.6, 0.4]])

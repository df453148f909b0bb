"""How familiar a photo looks, and the threshold below which it is suspect."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.rejection.ood_scores import (
    ENTROPY_CLASSES,
    generalised_entropy,
    suspect_threshold,
    unseen_threshold,
)
from florilege.calibration.scores import SCORE_KINDS, ScoreKind, scores


def test_the_generalised_entropy_is_its_formula() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (20, 7))
    for row in range(20):
        soft, hard = scores(logits, "softmax")[row], scores(logits, "sigmoid")[row]
        for kind, values in (("softmax", soft), ("sigmoid", hard)):
            expected = -((values * (1 - values)) ** 0.1).sum()
            assert generalised_entropy(logits, kind)[row] == pytest.approx(expected)  # type: ignore[arg-type]  # a kind


@pytest.mark.parametrize(
    "classes", [ENTROPY_CLASSES - 1, ENTROPY_CLASSES, ENTROPY_CLASSES + 1, 400]
)
def test_the_generalised_entropy_looks_at_the_best_hundred_only(classes: int) -> None:
    logits = np.random.default_rng(5).normal(size=(1, classes))
    best = np.sort(scores(logits, "softmax")[0])[::-1][:100]
    expected = -((best * (1 - best)) ** 0.1).sum()
    assert generalised_entropy(logits, "softmax") == pytest.approx([expected])


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_a_clear_photo_is_more_familiar_than_an_empty_one(kind: ScoreKind) -> None:
    logits = np.full((3, 50), -2.0)
    logits[0, 4] = 9.0
    logits[2, :2] = [3.0, -np.inf]
    result = generalised_entropy(logits, kind)
    assert result.shape == (3,)
    assert np.isfinite(result).all()
    assert result[0] > result[1]
    assert generalised_entropy(logits[2:], kind)[0] == result[2]


def test_a_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1"):
        generalised_entropy(np.array([[0.0, 1.0], [np.nan, 0.0]]), "softmax")


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([0.1, float(np.nextafter(0.1, 1)), 0.5, -np.inf, 3.0]) | st.floats(0, 1),
        min_size=1,
        max_size=30,
    ),
    share=st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.29, 0.5, 0.9]),
)
def test_the_share_lies_below_and_ties_never_add_to_it(values: list[float], share: float) -> None:
    threshold = suspect_threshold(values, share)
    rank = floor(Fraction(str(share)) * len(values))
    below = sum(value < threshold for value in values)
    assert threshold in values
    assert below <= rank
    assert sum(value <= threshold for value in values) > rank
    if len(set(values)) == len(values):
        assert below == rank


def test_the_share_is_taken_as_it_is_written() -> None:
    assert suspect_threshold(np.arange(100.0), 0.29) == 29.0  # in floating point 0.29 * 100 < 29


def test_a_new_photo_is_suspect_as_rarely_as_promised() -> None:
    random, shares, rows = np.random.default_rng(2), [], 250
    for _ in range(2000):
        threshold = suspect_threshold(random.normal(size=rows), 0.02)
        shares.append((random.normal(size=200) < threshold).mean())
    error = np.std(shares) / np.sqrt(2000)
    assert np.mean(shares) == pytest.approx((floor(0.02 * rows) + 1) / (rows + 1), abs=3 * error)


def test_wrong_arguments_are_named() -> None:
    for wrong in ([], [[0.1]], [0.1, np.nan]):
        with pytest.raises(ValueError, match="familiarity must be"):
            suspect_threshold(wrong)
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"share must be in \[0, 1\)"):
            suspect_threshold([0.1], share)
    with pytest.raises(ValueError, match="kind must be"):
        generalised_entropy([[0.1]], "logit")  # type: ignore[arg-type]


def slow_unseen(values: list[float], labels: list[int], coverage: Fraction) -> float | None:
    """The least value up to which the classes and the unknown one leave ``coverage``."""
    classes = set(labels)
    for threshold in sorted(values):
        shares = [
            Fraction(
                sum(v <= threshold for v, other in zip(values, labels, strict=True) if other == c),
                labels.count(c),
            )
            for c in classes
        ]
        if sum(shares) / (len(classes) + 1) >= coverage:
            return threshold
    return None


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.7]) | st.floats(-1, 1),
                       st.integers(3, 8)), min_size=1, max_size=40),
    st.sampled_from(["0.1", "0.5", "0.75", "0.8", "0.9"]),
)  # fmt: skip
def test_the_threshold_of_unseen_classes_counts_each_class_alike(
    photos: list[tuple[float, int]], coverage: str
) -> None:
    values, labels = map(list, zip(*photos, strict=True))
    expected = slow_unseen(values, labels, Fraction(coverage))
    assert unseen_threshold(values, labels, float(coverage)) == expected


@pytest.mark.parametrize(("coverage", "classes"), [(0.5, 1), (0.9, 9), (0.95, 19)])
def test_a_coverage_of_unseen_classes_needs_so_many_classes(coverage: float, classes: int) -> None:
    values, labels = np.arange(2.0 * classes), np.arange(2 * classes) // 2
    assert unseen_threshold(values, labels, coverage) == values[-1]
    assert unseen_threshold(values[:-2], labels[:-2], coverage) is None if classes > 1 else True


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_unseen_classes_are_covered_as_promised(coverage: float) -> None:
    """Classes differ in their mean and in the number of their photos, which depend on it."""
    random, rates = np.random.default_rng(3), []
    for _ in range(2000):
        means = random.standard_t(3, size=26)
        photos = np.where(means > 0, 2, 9)
        labels = np.repeat(np.arange(26), photos)
        values = means[labels] + 0.5 * random.normal(size=labels.size)
        threshold = unseen_threshold(values[labels < 25], labels[labels < 25], coverage)
        assert threshold is not None
        rates.append((values[labels == 25] <= threshold).mean())
    error = np.std(rates) / np.sqrt(2000)
    assert coverage - 3 * error < np.mean(rates) < coverage + 1 / 26 + 3 * error

"""How familiar a photo looks; judging requests: suspect or not."""

from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.reference import Reference
from florilege.calibration.rejection import (
    ENTROPY_CLASSES,
    RejectionRule,
    UnseenThreshold,
    generalised_entropy,
    parts,
    suspect_threshold,
    unseen_threshold,
)
from florilege.calibration.scores import SCORE_KINDS, ScoreKind, scores

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(0, 2, (400, 12)).astype(np.float32)


def rejection(method: str = "generalised_entropy", threshold: float = 0.5) -> RejectionRule:
    return RejectionRule(
        method=method, threshold=threshold, share=0.1, rows=400, head="h", score_kind="softmax"
    )


def test_a_request_is_suspect_only_where_every_photo_is() -> None:
    values = generalised_entropy(LOGITS, "softmax")
    judge = rejection(threshold=float(np.median(values)))
    order = np.argsort(values)
    low, high = LOGITS[order[:3]], LOGITS[order[-1:]]
    assert judge.verdict(low) == (values[order[2]], True)
    assert judge.verdict(np.concatenate([low, high])) == (values[order[-1]], False)


def test_a_photo_at_the_threshold_is_not_suspect() -> None:
    value = float(generalised_entropy(LOGITS[:1], "softmax")[0])
    assert rejection(threshold=value).verdict(LOGITS[:1]) == (value, False)


@pytest.mark.parametrize(
    ("method", "threshold", "message"),
    [("guess", 0.5, "method"), ("generalised_entropy", float("nan"), "threshold")],
)
def test_what_cannot_judge_is_refused(method: str, threshold: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rejection(method, threshold)


FEATURES = RANDOM.normal(1, 1, (400, 8)).astype(np.float32)
REFERENCE = Reference.of(RANDOM.normal(1, 1, (50, 8)))


def fitted(*, share: float = 0.1, rows: slice = slice(None)) -> RejectionRule:
    result = parts(LOGITS[rows], "softmax", FEATURES[rows], REFERENCE)
    return RejectionRule.fit(
        share, result, head="h", score_kind="softmax", reference_sha256=REFERENCE.sha256
    )


def test_combined_adds_up_what_each_part_says_in_its_own_standard_deviations() -> None:
    columns = [
        REFERENCE.compare(FEATURES)[0].tolist(),
        REFERENCE.compare(FEATURES)[1].tolist(),
        generalised_entropy(LOGITS, "softmax").tolist(),
    ]
    expected = [0.0] * 400
    for column in columns:
        mean = sum(column) / 400
        deviation = (sum((value - mean) ** 2 for value in column) / 400) ** 0.5
        for row, value in enumerate(column):
            expected[row] += (value - mean) / deviation
    judge = fitted()
    result = judge.familiarity(LOGITS, FEATURES, REFERENCE)
    assert result == pytest.approx(expected)
    assert judge.threshold == sorted(result)[40]


def test_the_share_of_the_calibration_photos_is_suspect_one_by_one() -> None:
    judge = fitted()
    verdicts = [
        judge.verdict(LOGITS[row : row + 1], FEATURES[row : row + 1], REFERENCE)
        for row in range(400)
    ]
    together = judge.familiarity(LOGITS, FEATURES, REFERENCE)
    assert [value for value, _ in verdicts] == together.tolist()
    assert sum(suspect for _, suspect in verdicts) == 40
    order = np.argsort(together)
    mixed = [order[0], order[-1]]
    value, suspect = judge.verdict(LOGITS[mixed], FEATURES[mixed], REFERENCE)
    assert (value, suspect) == (together[order[-1]], False)


def test_where_only_logits_are_at_hand_they_have_a_threshold_of_their_own() -> None:
    judge = fitted()
    with pytest.raises(ValueError, match="reference"):
        judge.verdict(LOGITS)
    by_logits = judge.from_logits
    assert by_logits is not None
    assert (by_logits.method, by_logits.reference_sha256) == ("generalised_entropy", None)
    assert sum(by_logits.verdict(row[np.newaxis])[1] for row in LOGITS) == 40
    assert by_logits.from_logits == by_logits


def test_a_part_that_never_changes_says_nothing() -> None:
    result = np.stack([np.full(20, 0.7), np.arange(20.0), -(np.arange(20.0) ** 2)], axis=1)
    judge = RejectionRule.fit(0.1, result, head="h", score_kind="softmax")
    assert judge.scales[0] == 1.0
    assert np.isfinite(judge.threshold)


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_combined_keeps_its_promise_up_to_what_vanishes_with_the_photos(share: float) -> None:
    random, rows, rates = np.random.default_rng(11), 200, []
    for _ in range(1000):
        result = random.standard_t(4, (rows + 200, 3)) @ [[1, 0.5, 0], [0, 1, 0.3], [0.2, 0, 4]]
        judge = RejectionRule.fit(share, result[:rows], head="h", score_kind="softmax")
        fresh = ((result[rows:] - judge.centres) / judge.scales).sum(axis=1)
        rates.append((fresh < judge.threshold).mean())
    error = np.std(rates) / np.sqrt(len(rates))
    promised = (int(share * rows) + 1) / (rows + 1)
    assert abs(np.mean(rates) - promised) < 4 * error + 1 / rows * promised**0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"centres": (0.0, 0.0)},
        {"scales": ()},
        {"scales": (1.0, 0.0, 1.0)},
        {"scales": (1.0, 1.0, -1.0)},
        {"scales": (1.0, float("inf"), 1.0)},
        {"method": "generalised_entropy"},
    ],
)
def test_parts_that_do_not_go_with_the_method_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"centres"):
        replace(fitted(), **changes)  # type: ignore[arg-type]  # that is the point


def test_the_least_familiar_photo_decides_on_none_of_these_at_the_coverage_asked_for() -> None:
    nearest = REFERENCE.compare(FEATURES)[0]
    low, high = np.sort(nearest)[[99, 299]]
    unseen = tuple(
        UnseenThreshold(coverage=coverage, threshold=float(value), known_share=0.5)
        for coverage, value in ((0.9, low), (0.95, high))
    )
    rule = replace(fitted(), unseen=unseen)
    for coverage, threshold in ((None, low), (0.9, low), (0.95, high)):
        for row in range(400):
            expected = nearest[row] <= threshold
            assert rule.none_of_these(FEATURES[[row]], REFERENCE, coverage) is bool(expected)
    order = np.argsort(nearest)
    assert rule.none_of_these(FEATURES[order[[0, -1]]], REFERENCE) is True
    for missing in ((FEATURES, REFERENCE, 0.8), (None, REFERENCE), (FEATURES, None)):
        assert rule.none_of_these(*missing) is None
    assert fitted().none_of_these(FEATURES, REFERENCE) is None


def test_thresholds_of_unseen_classes_are_those_that_the_classes_allow() -> None:
    values, labels = np.arange(20.0), np.arange(20) // 2
    (threshold,) = UnseenThreshold.fit(values, values + 5, labels, (0.9, 0.95))
    assert threshold == UnseenThreshold(coverage=0.9, threshold=19.0, known_share=0.75)


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


@settings(max_examples=200)
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
    with pytest.raises(ValueError, match="row 1"):
        generalised_entropy(np.array([[0.0, 1.0], [np.nan, 0.0]]), "softmax")
    with pytest.raises(ValueError, match="least"):
        rejection().verdict(LOGITS[:0])


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

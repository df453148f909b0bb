"""Radix selection gives the bits of one call on everything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.radix import RadixScores, bits_of, radix_thresholds, score_of
from calibration.threshold import average_k_threshold
from tests.calibration.strategies import DTYPES, Scores, average_ks, score_arrays


@settings(max_examples=100, deadline=None)
@given(data=st.data(), scores=score_arrays())
def test_any_split_into_workers_and_batches_gives_the_same_bits(
    data: st.DataObject, scores: Scores
) -> None:
    rows, classes = scores.shape
    wanted = data.draw(st.lists(average_ks(classes), min_size=1, max_size=3, unique=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))
    batches = [part for part in np.split(scores, cuts) if len(part)]
    radix = RadixScores(wanted, scores.dtype)
    while radix.unfinished:
        workers = [radix.worker() for _ in range(data.draw(st.integers(1, 3)))]
        for batch in data.draw(st.permutations(batches)):
            data.draw(st.sampled_from([radix, *workers])).update(batch)
        for worker in data.draw(st.permutations(workers)):
            radix.merge(worker)
        radix.finish_pass()
    for average_k in wanted:
        assert radix.threshold(average_k) == average_k_threshold(scores, average_k)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_grid_of_thresholds_equals_the_sort(dtype: type) -> None:
    scores: Scores = np.random.default_rng(0).dirichlet(np.full(40, 0.3), 200).astype(dtype)
    wanted = [step / 10 for step in range(0, 401, 20)]
    found = radix_thresholds(lambda: np.array_split(scores, 7), wanted, dtype)
    assert found == [average_k_threshold(scores, average_k) for average_k in wanted]


@pytest.mark.parametrize("dtype", DTYPES)
def test_negative_scores_that_begin_alike_are_told_apart(dtype: type) -> None:
    scores: Scores = (-1 - np.random.default_rng(1).random((200, 30)) / 50).astype(dtype)
    found = radix_thresholds(lambda: [scores], [1, 7.7, 29], dtype)
    assert found == [average_k_threshold(scores, average_k) for average_k in (1, 7.7, 29)]


@settings(max_examples=100, deadline=None)
@given(value=st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324]))
def test_bits_give_their_number_back(value: float) -> None:
    assert score_of(int(bits_of(np.array([value]))[0]), np.dtype(np.float64)) == value


def test_lower_precision_is_fine_and_higher_refused() -> None:
    scores = np.array([[0.25, 0.5]], dtype=np.float16)
    assert radix_thresholds(lambda: [scores], [1], np.float32) == [average_k_threshold(scores, 1)]
    with pytest.raises(ValueError, match="float16 or less precise, got float64"):
        RadixScores([1], np.float16).update([[0.5, 0.25]])


def test_passes_must_see_the_same_rows() -> None:
    radix = RadixScores([1], np.float32)
    radix.update(np.array([[0.25, 0.5]], dtype=np.float32))
    radix.finish_pass()
    with pytest.raises(ValueError, match="this pass saw 0 rows, the first 1"):
        radix.finish_pass()


def test_what_it_was_not_made_for_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype"):
        RadixScores([1], np.int32)
    with pytest.raises(ValueError, match="at least one"):
        RadixScores([])
    radix = RadixScores([1], np.float16)
    with pytest.raises(ValueError, match="no rows"):
        radix.finish_pass()
    radix.update(np.array([[0.25, 0.5]], dtype=np.float16))
    with pytest.raises(ValueError, match="1 passes"):
        radix.threshold(1)
    with pytest.raises(ValueError, match="2 classes"):
        radix.update(np.array([[0.25]], dtype=np.float16))
    with pytest.raises(ValueError, match="same selection and pass"):
        radix.merge(RadixScores([1], np.float32))
    radix.finish_pass()
    with pytest.raises(ValueError, match="must be one of"):
        radix.threshold(1.5)
    with pytest.raises(ValueError, match="nothing is left"):
        radix.update(np.array([[0.25, 0.5]], dtype=np.float16))


def test_a_mean_size_above_the_classes_is_refused() -> None:
    radix = RadixScores([3], np.float16)
    radix.update(np.array([[0.25, 0.5]], dtype=np.float16))
    with pytest.raises(ValueError, match=r"average_k must be in \[0, 2\]"):
        radix.finish_pass()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused_with_their_row(bad: float) -> None:
    radix = RadixScores([1])
    radix.update([[0.5, 0.5]])
    with pytest.raises(ValueError, match="row 1, class 0"):
        radix.update([[bad, 0.5]])

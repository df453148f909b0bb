"""Streams of batches and workers give the bits of one call on everything."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import florilege.calibration.threshold
from florilege.calibration.selection import TopScores
from florilege.calibration.threshold import average_k_threshold
from tests.calibration.strategies import Scores, average_ks, score_arrays


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 5 scores, so that small arrays forget and compact often."""
    monkeypatch.setattr(florilege.calibration.threshold, "BLOCK", 5)


@settings(max_examples=200)
@given(data=st.data(), scores=score_arrays())
def test_any_split_into_workers_gives_the_same_bits(data: st.DataObject, scores: Scores) -> None:
    rows, classes = scores.shape
    largest = data.draw(average_ks(classes))
    workers = [TopScores(rows, largest) for _ in range(data.draw(st.integers(1, 4)))]
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=6)))
    for start, stop in zip([0, *cuts], [*cuts, rows], strict=True):
        if stop > start:
            data.draw(st.sampled_from(workers)).update(scores[start:stop])
    order = data.draw(st.permutations(workers))
    for worker in order[1:]:
        order[0].merge(worker)
    for average_k in (largest, largest / 2, 0):
        assert order[0].threshold(average_k) == average_k_threshold(scores, average_k)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    average_k=st.sampled_from([0.3, 0.5, 1.0, 2.5]),
    largest=st.sampled_from([0.5, 2.5]),  # full workers forget scores that tie
)
def test_a_tree_of_merges_of_tied_scores_is_exact(
    seed: int, average_k: float, largest: float
) -> None:
    random, average_k = np.random.default_rng(seed), min(average_k, largest)
    scores = random.integers(0, 3, (48, 5)) / 4
    workers = []
    for part in np.array_split(scores, random.integers(1, 9)):
        workers.append(TopScores(48, largest))
        workers[-1].update(part)
    while len(workers) > 1:
        first = workers.pop(random.integers(len(workers)))
        workers[random.integers(len(workers))].merge(first)
    assert workers[0].threshold(average_k) == average_k_threshold(scores, average_k)


def test_batches_of_different_precision_are_exact_together() -> None:
    random = np.random.default_rng(3)
    parts = [random.random((6, 4)).astype(t) for t in (np.float16, np.float64, np.float32) * 3]
    everything = np.concatenate([part.astype(np.float64) for part in parts])
    top = TopScores(len(everything), 1.5)
    for part in parts:
        top.update(part)
    assert top.threshold(1.5) == average_k_threshold(everything, 1.5)


def test_merging_a_worker_with_only_small_scores_keeps_the_order() -> None:
    top, low = TopScores(9, 0.25), TopScores(9, 0.25)
    top.update([[4.0], [5.0], [6.0], [7.0]])
    assert top.threshold(0.25).lambda_val == 6.5
    low.update([[-np.inf]])
    top.merge(low)
    assert top.threshold(0.25) == average_k_threshold([[4.0], [5.0], [6.0], [7.0], [-np.inf]], 0.25)
    assert top.threshold(0.25).lambda_val == 6.5


@pytest.mark.parametrize("keep", [3, 40])
def test_what_is_held_may_be_added_to_itself(monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    monkeypatch.setattr(florilege.calibration.threshold, "BLOCK", 4)
    values = np.random.default_rng(0).permutation(50).astype(np.float64)
    largest = florilege.calibration.threshold.Largest(keep)
    largest.add(values)
    largest.merge(largest)
    expected = np.sort(np.concatenate([values, values]))[-keep:]
    assert largest.ascending[-keep:].tolist() == expected.tolist()
    assert largest.reaching(expected[0]) == (np.concatenate([values, values]) >= expected[0]).sum()


def test_a_worker_is_sent_without_its_room_and_goes_on() -> None:
    scores = np.random.default_rng(0).random((3000, 30)).astype(np.float32)
    top = TopScores(3000, 2)
    top.update(scores[:2000])
    payload = pickle.dumps(top)
    assert len(payload) < 4 * 6001 + 1000  # at most K scores a photo
    for worker in (pickle.loads(payload), copy.deepcopy(top), top):
        worker.update(scores[2000:])
        assert worker.threshold(2) == average_k_threshold(scores, 2)


def test_memory_stays_at_the_scores_that_can_matter() -> None:
    largest = florilege.calibration.threshold.Largest(2001)  # of TopScores(1000, 2)
    random = np.random.default_rng(0)
    for _ in range(100):
        largest.add(random.random(500))
    assert largest.ascending.size <= 1.5 * 2001 + 5


def test_neither_an_argument_nor_another_worker_is_changed_or_kept() -> None:
    scores = np.array([[0.9, 0.1]])
    first, second = TopScores(2, 1), TopScores(2, 1)
    first.update(scores)
    scores[:] = 0
    second.update([[0.6, 0.2]])
    first.merge(second)
    first.merge(TopScores(2, 1))  # without rows
    assert (first.rows_seen, second.rows_seen) == (2, 1)
    assert (first.threshold(1).lambda_val, second.threshold(1).lambda_val) == (0.4, 0.4)


def filled(*rows: list[float], max_average_k: float = 1) -> TopScores:
    top = TopScores(2, max_average_k)
    top.update(rows)
    return top


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: filled([0.9, 0.1], [0.6, 0.2]).update([[0.5, 0.5]]), r"3 rows .* only 2"),
        (lambda: filled([0.5, 0.5]).merge(filled([0.9, 0.1], [0.6, 0.2])), r"3 rows .* only 2"),
        (lambda: filled([0.9, 0.1], max_average_k=1.5).threshold(1.6), r"= 1\.5, got 1\.6"),
        (lambda: filled([0.9, 0.1]).update([[0.9, 0.1, 0.0]]), "2 classes"),
        (lambda: TopScores(2, 1).merge(TopScores(3, 1)), "same rows and max_average_k"),
        (lambda: TopScores(2, 1).merge(TopScores(2, 1.5)), "same rows and max_average_k"),
        (lambda: TopScores(2, 1).threshold(1), "no rows"),
        (lambda: TopScores(0, 1), "rows must be"),
        (lambda: TopScores(1, -1), "max_average_k must be"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused_with_their_row(bad: float) -> None:
    top = TopScores(9, 1)
    top.update(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="row 3, class 1"):
        top.update([[0.0, 0.0], [0.0, bad]])
    assert top.rows_seen == 2

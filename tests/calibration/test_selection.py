"""Streams of batches and workers give the bits of one call on everything."""

import copy
import pickle

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


@settings(max_examples=200, deadline=None)
@given(data=st.data(), scores=score_arrays())
def test_any_split_into_workers_and_batches_gives_the_same_bits(
    data: st.DataObject, scores: Scores
) -> None:
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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), average_k=st.sampled_from([0.3, 1.0, 2.5]))
def test_a_tree_of_merges_of_tied_scores_is_exact(seed: int, average_k: float) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 4, (48, 5)) / 4
    workers = []
    for part in np.array_split(scores, random.integers(1, 9)):
        workers.append(TopScores(48, 2.5))
        workers[-1].update(part)
    while len(workers) > 1:
        first = workers.pop(random.integers(len(workers)))
        workers[random.integers(len(workers))].merge(first)
    assert workers[0].threshold(average_k) == average_k_threshold(scores, average_k)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_ties_forgotten_by_full_workers_are_still_counted(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 3, (48, 5)) / 4
    first, second = TopScores(48, 0.5), TopScores(48, 0.5)
    cut = int(random.integers(8, 40))
    first.update(scores[:cut])
    second.update(scores[cut:])
    first.merge(second)
    assert first.threshold(0.5) == average_k_threshold(scores, 0.5)


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


def test_the_argument_of_update_may_be_changed_afterwards() -> None:
    scores = np.array([[0.9, 0.1], [0.6, 0.2]])
    top = TopScores(2, 2)
    top.update(scores)
    scores[:] = 0
    assert top.threshold(1).lambda_val == 0.4


def test_merging_leaves_the_other_worker_as_it_was() -> None:
    first, second = TopScores(2, 1), TopScores(2, 1)
    first.update([[0.9, 0.1]])
    second.update([[0.6, 0.2]])
    first.merge(second)
    assert second.rows_seen == 1
    assert second.threshold(1).lambda_val == 0.4
    assert first.rows_seen == 2


def test_a_worker_without_rows_merges_as_nothing() -> None:
    first = TopScores(1, 1)
    first.update([[0.9, 0.1]])
    first.merge(TopScores(1, 1))
    assert first.threshold(1).lambda_val == 0.5


def test_more_rows_than_announced_are_refused() -> None:
    top = TopScores(2, 1)
    top.update([[0.9, 0.1], [0.6, 0.2]])
    with pytest.raises(ValueError, match=r"3 rows .* only 2"):
        top.update([[0.5, 0.5]])
    other = TopScores(2, 1)
    other.update([[0.5, 0.5]])
    with pytest.raises(ValueError, match=r"3 rows .* only 2"):
        other.merge(top)


def test_a_k_above_the_announced_one_is_refused() -> None:
    top = TopScores(1, 1.5)
    top.update([[0.9, 0.1]])
    with pytest.raises(ValueError, match=r"max_average_k = 1\.5, got 1\.6"):
        top.threshold(1.6)


def test_workers_made_for_different_data_do_not_merge() -> None:
    with pytest.raises(ValueError, match="same rows and max_average_k"):
        TopScores(2, 1).merge(TopScores(3, 1))
    with pytest.raises(ValueError, match="same rows and max_average_k"):
        TopScores(2, 1).merge(TopScores(2, 1.5))


def test_another_number_of_classes_is_refused() -> None:
    top = TopScores(2, 1)
    top.update([[0.9, 0.1]])
    with pytest.raises(ValueError, match="2 classes"):
        top.update([[0.9, 0.1, 0.0]])


def test_a_threshold_needs_rows_and_a_selection_sensible_numbers() -> None:
    with pytest.raises(ValueError, match="no rows"):
        TopScores(2, 1).threshold(1)
    with pytest.raises(ValueError, match="rows"):
        TopScores(0, 1)
    with pytest.raises(ValueError, match="max_average_k"):
        TopScores(1, -1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused_with_their_row(bad: float) -> None:
    top = TopScores(9, 1)
    top.update(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="row 3, class 1"):
        top.update([[0.0, 0.0], [0.0, bad]])
    assert top.rows_seen == 2

"""The tracker keeps its bound on every stream, even one made to defeat it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.tracker import SizeTracker
from tests.calibration.simulation import CLASSES, PRIOR, draw

REST = 1e-9  # rounding


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    classes=st.integers(1, 30),
    min_size=st.integers(0, 1),
    step=st.sampled_from([0.001, 0.1, 1.0, 5.0]),
    start=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 7.0]),
)
def test_whatever_sizes_come_the_mean_stays_within_the_bound(
    data: st.DataObject, classes: int, min_size: int, step: float, start: float
) -> None:
    average_k = data.draw(st.floats(min_size, classes))
    tracker = SizeTracker(
        average_k=average_k, classes=classes, min_size=min_size, step=step, lambda_val=start,
    )  # fmt: skip
    assert tracker.bound == float("inf")
    for choice in data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=60)):
        fewest = classes if tracker.lambda_val == 0 else min_size
        most = min_size if tracker.lambda_val > 1 else classes
        tracker.update(fewest + round(choice * (most - fewest)))
        assert tracker.mean_size is not None
        assert abs(tracker.mean_size - average_k) <= tracker.bound + REST


@pytest.mark.parametrize("greedy", [True, False])
def test_a_stream_made_to_defeat_it_comes_close_to_the_bound_and_not_beyond(greedy: bool) -> None:
    """Always the largest, or the smallest, set that the threshold allows."""
    tracker = SizeTracker(average_k=3, classes=10, min_size=0, step=0.1,
                          lambda_val=0.0 if greedy else 1.0)  # fmt: skip
    nearest = 1.0
    for _ in range(2000):
        fewest = 10 if tracker.lambda_val == 0 else 0
        most = 0 if tracker.lambda_val > 1 else 10
        tracker.update(most if greedy else fewest)
        assert tracker.mean_size is not None
        gap = abs(tracker.mean_size - 3)
        assert gap <= tracker.bound + REST
        nearest = min(nearest, 1 - gap / tracker.bound)
    assert nearest < 0.1
    assert tracker.bound < 0.1


def test_it_follows_three_kinds_of_traffic_and_keeps_k_in_each() -> None:
    random = np.random.default_rng(0)
    tracker = SizeTracker(average_k=3, classes=CLASSES, min_size=0, lambda_val=0.05)
    thresholds = []
    for power in (1.0, 0.4, 3.0):  # as it is, unsure, too sure
        total = tracker.total
        raised = draw(random, 6000).scores ** power
        for row in raised / raised.sum(axis=1, keepdims=True):
            tracker.update(int((row >= tracker.lambda_val).sum()))
        assert (tracker.total - total) / 6000 == pytest.approx(3.0, abs=0.1)
        thresholds.append(tracker.lambda_val)
    assert max(thresholds) > 2 * min(thresholds)
    assert PRIOR.size == CLASSES


def test_sizes_move_the_threshold_in_the_right_direction() -> None:
    tracker = SizeTracker(average_k=2, classes=10, lambda_val=0.1, step=0.01)
    tracker.update(2)
    assert tracker.lambda_val == pytest.approx(0.1)
    tracker.update(5)
    assert tracker.lambda_val == pytest.approx(0.1 * np.exp(0.03))
    tracker.update(1)
    assert tracker.lambda_val == pytest.approx(0.1 * np.exp(0.02))


def test_impossible_sizes_are_refused() -> None:
    tracker = SizeTracker(average_k=2, classes=4, lambda_val=0.0)
    assert tracker.lambda_val == 0.0
    with pytest.raises(ValueError, match=r"\[4, 4\] at lambda_val 0, got 3"):
        tracker.update(3)
    tracker = SizeTracker(average_k=2, classes=4, lambda_val=1.0)
    tracker.update(4)
    with pytest.raises(ValueError, match=r"\[1, 1\] at lambda_val 1.02, got 2"):
        tracker.update(2)
    with pytest.raises(ValueError, match="got 5"):
        SizeTracker(average_k=2, classes=4).update(5)
    assert tracker.rows == 1


def test_the_state_goes_on_where_it_was_and_another_is_refused() -> None:
    first = SizeTracker(average_k=2.5, classes=9)
    second = SizeTracker(average_k=2.5, classes=9)
    assert first.to_plain()["rows"] == 0
    for size in (1, 4, 9, 2):
        first.update(size)
    second.restore(first.to_plain())
    second.update(3)
    first.update(3)
    assert second.to_plain() == first.to_plain()
    assert (second.mean_size, second.bound) == (first.mean_size, first.bound)
    for wrong in ({"theta": 9.0}, {"theta": float("nan")}, {"rows": -1}, {"total": 99}):
        with pytest.raises(ValueError, match="does not fit"):
            second.restore({**first.to_plain(), **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"average_k": 0.5},
        {"average_k": 11},
        {"min_size": 2},
        {"step": 0.0},
        {"lowest": 1.0},
        {"lambda_val": float("nan")},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        SizeTracker(**{"average_k": 2.0, "classes": 10, **wrong})  # type: ignore[arg-type]

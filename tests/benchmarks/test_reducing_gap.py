"""The comparison of gaps: what counts as equal, nested, lost and won."""

import numpy as np

from benchmarks.sets.reducing_gap import Comparison, Outcome


def outcome(*sets: str, seconds: float) -> Outcome:
    rows = np.array([[letter == "1" for letter in row] for row in sets])
    return Outcome(scores=rows / 2, sets=rows, seconds=seconds)


def test_sets_hits_and_time_are_compared_with_those_of_the_first_gap() -> None:
    first = outcome("110", "110", "100", "001", seconds=4.0)
    other = outcome("110", "100", "010", "011", seconds=1.0)
    labels = np.array([0, 1, 1, 2])
    comparison = Comparison.of(other, first, labels)
    assert (comparison.equal, comparison.nested) == (0.25, 0.75)
    assert (comparison.hits, comparison.lost, comparison.won) == (0.75, 1, 1)
    assert (comparison.size, comparison.difference, comparison.time) == (1.5, 0.5, 0.25)
    same = Comparison.of(first, first, labels)
    assert (same.equal, same.nested, same.lost, same.won, same.time) == (1.0, 1.0, 0, 0, 1.0)

"""Exactly the largest entries, ties in order, and fair shares between groups."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.losses.batches import TOUCHY
from training.losses.candidates import candidate_count, largest, select, share

values = st.lists(st.sampled_from(TOUCHY) | st.floats(-3, 3), min_size=1, max_size=60)


def by_hand(keys: Sequence[float], count: int) -> list[int]:
    order = sorted(range(len(keys)), key=lambda i: (-keys[i], i))
    return [i for i in order if keys[i] > -torch.inf][:count]


@given(values, st.integers(0, 70))
@settings(max_examples=150, deadline=None)
def test_the_largest_are_those_of_a_full_sort_with_ties_in_order(
    keys: list[float], count: int
) -> None:
    found = largest(torch.tensor(keys, dtype=torch.float64), count)
    assert found.tolist() == by_hand(keys, count)


@pytest.mark.parametrize("count", [1, 3, 17, 200])
@pytest.mark.parametrize("levels", [1, 2, 50, 100_000])
def test_many_keys_with_few_levels_are_chosen_in_order(count: int, levels: int) -> None:
    keys = torch.randint(levels, (5003,), generator=torch.Generator().manual_seed(1)).float()
    keys[::7] = -torch.inf
    assert largest(keys, count).tolist() == by_hand(keys.tolist(), count)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_largest_are_found_where_no_other_comes_near(count: int) -> None:
    keys = torch.zeros(40 * count)
    keys[:count] = torch.arange(1.0, count + 1)  # each in a chunk of its own
    assert largest(keys, count).tolist() == list(range(count))[::-1]


def test_what_is_minus_infinite_is_never_chosen() -> None:
    keys = torch.tensor([-torch.inf, 1.0, -torch.inf])
    assert largest(keys, 3).tolist() == [1]
    assert select(keys, 3).indices.tolist() == [1]
    assert select(keys, 3).total == 1


@given(st.lists(values, min_size=1, max_size=4), st.integers(0, 80))
@settings(max_examples=100, deadline=None)
def test_shares_are_those_of_one_sort_over_all_groups(
    groups: list[list[float]], count: int
) -> None:
    everything = [(-value, g) for g, group in enumerate(groups) for value in sorted(group)[::-1]]
    chosen = sorted(everything)[:count]
    expected = [sum(g == group for _, group in chosen) for g in range(len(groups))]
    tensors = [torch.tensor(group, dtype=torch.float64) for group in groups]
    assert share(tensors, count) == expected


@pytest.mark.parametrize(
    ("average_k", "rows", "count"),
    [(1, 7, 0), (5, 256, 1024), (2.3, 5, 7), (1.1, 5, 1), (1.1, 4, 0), (1.5, 1, 1), (2.1, 15, 17)],
)
def test_the_count_is_rounded_half_up_in_decimals(average_k: float, rows: int, count: int) -> None:
    assert candidate_count(average_k, rows) == count


def test_recent_values_compete_and_are_counted_first_in_a_tie() -> None:
    keys = torch.tensor([3.0, 1.0, 2.0])
    chosen = select(keys, 3, recent=[torch.tensor([5.0, 2.0])])
    assert chosen.indices.tolist() == [0]
    assert chosen.total == 1

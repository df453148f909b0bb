"""Exactly the largest entries are chosen, ties in order, also across groups."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from florilege.training.losses import two_heads
from florilege.training.losses.two_heads import (
    _candidate_count,
    _choose,
    _largest,
    _nearby,
    _reaching,
    _select,
)
from tests.training.losses.batches import TOUCHY

values = st.lists(st.sampled_from(TOUCHY) | st.floats(-3, 3), min_size=1, max_size=60)


def by_hand(keys: Sequence[float], count: int) -> list[int]:
    return sorted(sorted(range(len(keys)), key=lambda i: (-keys[i], i))[:count])


def chosen(keys: Tensor, count: int, at_most: int | None = None, **given: Any) -> list[int]:
    result = _select(keys, torch.tensor(count), count if at_most is None else at_most, **given)
    return sorted(result.indices[result.mask].tolist())


@given(values, st.integers(0, 70))
@settings(max_examples=150)
def test_the_largest_are_those_of_a_full_sort_with_ties_in_order(
    keys: list[float], count: int
) -> None:
    positions, ranked = _largest(torch.tensor(keys, dtype=torch.float64), count)
    assert sorted(positions[:count].tolist()) == by_hand(keys, count)
    assert ranked.tolist() == [keys[position] for position in positions.tolist()]


@pytest.mark.parametrize("count", [1, 3, 17, 200])
@pytest.mark.parametrize("levels", [1, 2, 50, 100_000])
@pytest.mark.parametrize("way", [_reaching, _nearby])
def test_many_keys_with_few_levels_are_chosen_in_order(
    count: int,
    levels: int,
    way: Callable[[Tensor, int], Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(two_heads, "_reaching", way)  # a CPU supports both ways
    keys = torch.randint(levels, (5003,), generator=torch.Generator().manual_seed(1)).float()
    keys[::7], keys[-1] = -torch.inf, levels  # the last is after the last whole chunk
    assert sorted(_largest(keys, count)[0][:count].tolist()) == by_hand(keys.tolist(), count)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_largest_are_found_where_no_other_comes_near(count: int) -> None:
    keys = torch.zeros(40 * count)
    keys[:count] = torch.arange(1.0, count + 1)  # each in a chunk of its own
    assert sorted(_largest(keys, count)[0][:count].tolist()) == list(range(count))


def test_what_is_minus_infinite_is_never_chosen() -> None:
    keys = torch.tensor([-torch.inf, 1.0, -torch.inf])
    assert chosen(keys, 3) == [1]
    assert _select(keys, torch.tensor(3), 3).total == 1


@given(values, st.integers(0, 70), st.integers(0, 20))
@settings(max_examples=150)
def test_fewer_may_be_chosen_than_were_looked_at(keys: list[float], count: int, more: int) -> None:
    expected = [i for i in by_hand(keys, count) if keys[i] > -torch.inf]
    assert chosen(torch.tensor(keys, dtype=torch.float64), count, count + more) == expected


@given(st.lists(values, min_size=1, max_size=4), st.integers(0, 80))
@settings(max_examples=100)
def test_groups_are_chosen_from_as_one_sort_over_all_would(
    groups: list[list[float]], count: int
) -> None:
    everything = [(-value, g) for g, group in enumerate(groups) for value in sorted(group)[::-1]]
    remaining = [entry for entry in sorted(everything)[:count] if entry[0] < torch.inf]
    expected = [sum(g == group for _, group in remaining) for g in range(len(groups))]
    ranked = [torch.tensor(sorted(group)[::-1], dtype=torch.float64) for group in groups]
    masks = _choose(ranked, torch.tensor(count))
    assert [int(mask.sum()) for mask in masks] == expected
    assert all(mask.equal(mask.sort(descending=True).values) for mask in masks)  # the largest


@pytest.mark.parametrize(
    ("average_k", "rows", "count"),
    [(1, 7, 0), (5, 256, 1024), (2.3, 5, 7), (1.1, 5, 1), (1.1, 4, 0), (1.5, 1, 1), (2.1, 15, 17)],
)
def test_the_count_is_rounded_half_up_in_decimals(average_k: float, rows: int, count: int) -> None:
    assert _candidate_count(average_k, rows) == count


def test_recent_values_compete_and_are_counted_first_in_a_tie() -> None:
    keys, recent = torch.tensor([3.0, 1.0, 2.0]), [torch.tensor([5.0, 2.0])]
    assert chosen(keys, 3, recent=recent) == [0]
    assert _select(keys, torch.tensor(3), 3, recent=recent).total == 1

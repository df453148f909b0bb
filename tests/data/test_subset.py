"""Subsets of the training pictures, by share and with a long tail."""

import pickle
from collections import Counter

import pytest

from florilege.data.records import Records
from florilege.data.split_parts import read_row
from florilege.data.subset import sample_rows, sample_sizes, select_records

CLASSES = [f"c{number:02d}" for number in range(20)]
IDS = [CLASSES[row % 20] for row in range(2000)]
NAMES = [f"{row}.png" for row in range(2000)]


def kept(fraction: float = 1.0, imbalance: float = 1.0, seed: int = 0) -> list[int]:
    return sample_rows(IDS, NAMES, fraction=fraction, imbalance=imbalance, seed=seed)


def photo(row: int) -> bytes:
    return str(row).encode()


@pytest.mark.parametrize("fraction", [0.004, 0.1, 0.5, 1.0])
def test_the_same_share_of_each_class_is_kept_and_at_least_one(fraction: float) -> None:
    rows = kept(fraction)
    assert rows == sorted(rows)
    assert set(Counter(IDS[row] for row in rows).values()) == {max(1, round(100 * fraction))}
    assert len({IDS[row] for row in rows}) == 20


def test_a_number_of_each_class_is_kept_after_its_share_and_before_the_tail() -> None:
    counts = {"a": 100, "b": 40, "c": 6}
    few = sample_sizes(counts, fraction=1, per_class=10, imbalance=1, seed=0)
    assert few == {"a": 10, "b": 10, "c": 6}
    assert sample_sizes(counts, fraction=0.5, per_class=25, imbalance=1, seed=0) == {
        "a": 25,
        "b": 20,
        "c": 3,
    }
    tail = sample_sizes(
        dict.fromkeys(CLASSES, 500), fraction=1, per_class=100, imbalance=10, seed=0
    )
    assert (max(tail.values()), min(tail.values())) == (100, 10)
    rows = sample_rows(IDS, NAMES, fraction=1, per_class=7, imbalance=1, seed=0)
    assert set(Counter(IDS[row] for row in rows).values()) == {7}
    assert set(rows) < set(sample_rows(IDS, NAMES, fraction=1, per_class=8, imbalance=1, seed=0))


def test_a_smaller_share_is_part_of_a_larger_one_and_a_seed_draws_another() -> None:
    assert set(kept(0.2)) < set(kept(0.5))
    assert kept(0.5, seed=1) != kept(0.5, seed=2)
    backwards = sample_rows(IDS[::-1], NAMES[::-1], fraction=0.5, imbalance=1, seed=0)
    assert {1999 - row for row in backwards} == set(kept(0.5))


@pytest.mark.parametrize("imbalance", [10.0, 100.0])
def test_a_long_tail_falls_by_the_same_factor_from_class_to_class(imbalance: float) -> None:
    counts = sample_sizes(dict.fromkeys(CLASSES, 500), fraction=1, imbalance=imbalance, seed=0)
    sizes = sorted(counts.values(), reverse=True)
    assert sizes == [round(500 * imbalance ** (-place / 19)) for place in range(20)]
    assert sizes[0] == 500
    assert sizes[-1] == 500 / imbalance


def test_which_class_is_where_in_the_tail_is_drawn_by_the_seed() -> None:
    orders = {
        seed: sample_sizes(dict.fromkeys(CLASSES, 500), fraction=1, imbalance=100, seed=seed)
        for seed in (0, 1)
    }
    assert list(orders[0].values()) == list(orders[1].values())
    assert list(orders[0]) != list(orders[1])
    assert list(orders[0]) != CLASSES


def test_a_class_with_fewer_pictures_than_its_place_allows_keeps_them_all() -> None:
    counts = {"a": 400, "b": 3, "c": 90, "d": 1}
    tail = sample_sizes(counts, fraction=1, imbalance=4, seed=0)
    assert (tail["b"], tail["d"]) == (3, 1)
    assert all(tail[name] >= 400 / 4 or tail[name] == counts[name] for name in counts)
    assert sample_sizes({"a": 7}, fraction=1, imbalance=100, seed=0) == {"a": 7}
    assert sample_sizes({}, fraction=1, imbalance=100, seed=0) == {}


def test_the_rarest_class_keeps_one_picture_whatever_the_tail() -> None:
    few = sample_sizes(dict.fromkeys(CLASSES, 10), fraction=0.5, imbalance=1000, seed=0)
    assert (max(few.values()), min(few.values())) == (5, 1)


def test_the_tail_begins_at_what_the_share_leaves() -> None:
    both = sample_sizes(dict.fromkeys("abc", 100), fraction=0.5, imbalance=25, seed=0)
    assert sorted(both.values()) == [2, 10, 50]


def test_kept_pictures_bring_their_columns_and_bytes() -> None:
    records = Records(class_ids=["a", "b", "c"], names=NAMES[:3], observations="xyz", read=photo)
    choice = select_records(records, [2, 0])
    assert choice.class_ids == ["c", "a"]
    assert choice.names == ["2.png", "0.png"]
    assert choice.observations == ["z", "x"]
    assert pickle.loads(pickle.dumps(choice.read))(0) == b"2"
    assert read_row(photo, (5, 6), 1) == b"6"

"""Parts of a split."""

import pickle

import numpy as np
import pytest

from florilege.data.records import Part, Split
from florilege.errors import DataError, UsageError


def photo(row: int) -> bytes:
    return bytes([row])


def make_split(rows: int, *, photos_a_plant: int | None = None) -> Split:
    plants = None if photos_a_plant is None else [str(row // photos_a_plant) for row in range(rows)]
    return Split(
        name="test",
        labels=np.arange(rows) % 7,
        names=[f"{row}.png" for row in range(rows)],
        observations=plants,
        read=photo,
    )


def test_parts_of_a_split_never_overlap_and_leave_nothing_out() -> None:
    split = make_split(101)
    shares = ["test:0-0.3", "test:0.3-0.35", "test:0.35-1"]
    parts = [Part.parse(share).of(split) for share in shares]
    names = [name for part in parts for name in part.names]
    assert sorted(names) == sorted(split.names)
    assert [len(part) for part in parts] == [31, 5, 65]
    assert parts[0].name == "test:0-0.3"


def test_rows_keep_their_label_name_and_bytes() -> None:
    part = Part.parse("test:0.2-0.6").of(make_split(50))
    reread = pickle.loads(pickle.dumps(part))
    for row in range(len(part)):
        original = int(part.names[row].removesuffix(".png"))
        assert part.labels[row] == original % 7
        assert reread.read(row) == bytes([original])


def test_a_part_is_dealt_at_random_but_always_the_same() -> None:
    first = Part.parse("test:0-0.5").of(make_split(60))
    assert first.names == Part.parse("test:0-0.5").of(make_split(60)).names
    assert first.names != [f"{row}.png" for row in range(30)]


def test_photos_of_one_plant_stay_together() -> None:
    split = make_split(60, photos_a_plant=3)
    first = Part.parse("test:0-0.5").of(split)
    rest = Part.parse("test:0.5-1").of(split)
    assert first.observations is not None
    assert rest.observations is not None
    assert not set(first.observations) & set(rest.observations)
    assert len(first) == len(rest) == 30


def test_a_whole_split_is_itself() -> None:
    split = make_split(5)
    assert Part.parse("test").of(split) is split
    assert Part.parse("test:0-1").of(split) is split


@pytest.mark.parametrize(
    "text", ["", ":0-1", "test:", "test:0.5", "test:0.5-0.5", "test:0.6-0.5", "test:0-1.1",
             "test:a-b", "test:0..1-1"],
)  # fmt: skip
def test_what_is_no_part_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="FROM-TO"):
        Part.parse(text)


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(DataError, match="larger part"):
        Part.parse("test:0.1-0.2").of(make_split(1))

"""Subsets of the training pictures: by share, with a long tail, and held out as val."""

import pickle
from collections import Counter
from pathlib import Path

import pytest

from florilege.data.records import Records
from florilege.data.sources import open_dataset
from florilege.data.split_parts import read_row
from florilege.data.subset import sample_rows, select_records
from florilege.errors import DataError
from tests.data.pictures import write_folder

CLASSES = [f"c{number:02d}" for number in range(20)]
IDS = [CLASSES[row % 20] for row in range(2000)]
NAMES = [f"{row}.png" for row in range(2000)]


def kept(fraction: float = 1.0, imbalance: float = 1.0, seed: int = 0) -> list[int]:
    return sample_rows(IDS, NAMES, fraction=fraction, imbalance=imbalance, seed=seed)


def sizes(
    counts: dict[str, int],
    *,
    fraction: float,
    per_class: int | None = None,
    imbalance: float,
    seed: int,
) -> Counter[str]:
    """How many of each class are kept."""
    ids = list(Counter(counts).elements())
    rows = sample_rows(
        ids,
        list(map(str, range(len(ids)))),
        fraction=fraction,
        per_class=per_class,
        imbalance=imbalance,
        seed=seed,
    )
    return Counter(ids[row] for row in rows)


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
    few = sizes(counts, fraction=1, per_class=10, imbalance=1, seed=0)
    assert few == {"a": 10, "b": 10, "c": 6}
    assert sizes(counts, fraction=0.5, per_class=25, imbalance=1, seed=0) == {
        "a": 25,
        "b": 20,
        "c": 3,
    }
    tail = sizes(dict.fromkeys(CLASSES, 500), fraction=1, per_class=100, imbalance=10, seed=0)
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
    counts = sizes(dict.fromkeys(CLASSES, 500), fraction=1, imbalance=imbalance, seed=0)
    falling = sorted(counts.values(), reverse=True)
    assert falling == [round(500 * imbalance ** (-place / 19)) for place in range(20)]
    assert falling[0] == 500
    assert falling[-1] == 500 / imbalance


def test_which_class_is_where_in_the_tail_is_drawn_by_the_seed() -> None:
    first, second = (
        sizes(dict.fromkeys(CLASSES, 500), fraction=1, imbalance=100, seed=seed).most_common()
        for seed in (0, 1)
    )
    assert [count for _, count in first] == [count for _, count in second]
    assert [name for name, _ in first] != [name for name, _ in second]
    assert [name for name, _ in first] != CLASSES


def test_a_class_with_fewer_pictures_than_its_place_allows_keeps_them_all() -> None:
    counts = {"a": 400, "b": 3, "c": 90, "d": 1}
    tail = sizes(counts, fraction=1, imbalance=4, seed=0)
    assert (tail["b"], tail["d"]) == (3, 1)
    assert all(tail[name] >= 400 / 4 or tail[name] == counts[name] for name in counts)
    assert sizes({"a": 7}, fraction=1, imbalance=100, seed=0) == {"a": 7}
    assert sizes({}, fraction=1, imbalance=100, seed=0) == {}


def test_the_rarest_class_keeps_one_picture_whatever_the_tail() -> None:
    few = sizes(dict.fromkeys(CLASSES, 10), fraction=0.5, imbalance=1000, seed=0)
    assert (max(few.values()), min(few.values())) == (5, 1)


def test_the_tail_begins_at_what_the_share_leaves() -> None:
    both = sizes(dict.fromkeys("abc", 100), fraction=0.5, imbalance=25, seed=0)
    assert sorted(both.values()) == [2, 10, 50]


def test_kept_pictures_bring_their_columns_and_bytes() -> None:
    records = Records(class_ids=["a", "b", "c"], names=NAMES[:3], observations="xyz", read=photo)
    choice = select_records(records, [2, 0])
    assert choice.class_ids == ["c", "a"]
    assert choice.names == ["2.png", "0.png"]
    assert choice.observations == ["z", "x"]
    assert pickle.loads(pickle.dumps(choice.read))(0) == b"2"
    assert read_row(photo, (5, 6), 1) == b"6"


COUNTS = {"train": {"a": 30, "b": 20, "c": 12}, "val": {"a": 2, "b": 2, "c": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), COUNTS)


def test_val_is_a_balanced_part_of_train_and_the_val_there_was_is_test(folder: Path) -> None:
    whole, cut = open_dataset(str(folder)), open_dataset(f"{folder}:hold_out=5")
    train, val = cut.split("train"), cut.split("val")
    assert Counter(val.labels.tolist()) == {0: 5, 1: 5, 2: 5}
    assert Counter(train.labels.tolist()) == {0: 25, 1: 15, 2: 7}
    assert sorted([*train.names, *val.names]) == sorted(whole.split("train").names)
    assert [name for name in val.names if name < "train/a/005"] != val.names[:5]  # not the first
    assert cut.split("test").names == whole.split("val").names
    assert [each.training_count for each in cut.classes] == [25, 15, 7]
    for split in (train, val):
        assert split.read(3) == (folder / split.names[3]).read_bytes()


def test_subsets_have_as_many_of_each_class_and_the_same_val(folder: Path) -> None:
    whole = open_dataset(f"{folder}:hold_out=2")
    small, large = (open_dataset(f"{folder}:hold_out=2,per_class={n}") for n in (4, 12))
    assert Counter(small.split("train").labels.tolist()) == {0: 4, 1: 4, 2: 4}
    assert Counter(large.split("train").labels.tolist()) == {0: 12, 1: 12, 2: 10}
    assert set(small.split("train").names) < set(large.split("train").names)
    other = open_dataset(f"{folder}:hold_out=2,per_class=4,sample_seed=1")
    assert other.split("train").names != small.split("train").names
    for cut in (small, large, other):
        assert cut.split("val").names == whole.split("val").names
        assert cut.split("test").names == whole.split("test").names


def test_test_photos_are_found_where_there_are_no_others(tmp_path: Path) -> None:
    write_folder(tmp_path, {"val": {"a": 2, "b": 2}})
    assert len(open_dataset(f"{tmp_path}:hold_out=5", splits=["test"]).split("test")) == 4


def test_only_the_photos_that_wanted_splits_come_from_must_be_there(tmp_path: Path) -> None:
    write_folder(tmp_path, COUNTS)
    lines = [
        f"{file.relative_to(tmp_path)},{file.parent.name},{file.parts[-3]}"
        for file in sorted(tmp_path.rglob("*.png"))
    ]
    manifest = tmp_path / "m.csv"
    manifest.write_text("\n".join(["path,class_id,split", *lines]))
    source = f"{manifest}:hold_out=5"
    (tmp_path / "train/a/000.png").unlink()
    assert len(open_dataset(source, splits=["test"]).split("test")) == 6
    with pytest.raises(DataError, match="missing files"):
        open_dataset(source, splits=["valid"])


def test_what_cannot_be_held_out_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"hold_out=12 leaves no training picture in 1 class: 'c'"):
        open_dataset(f"{folder}:hold_out=12")
    with pytest.raises(DataError, match="already has val and test"):
        open_dataset("flora:train=9,val=9,test=9,hold_out=1")
    with pytest.raises(DataError, match="hold_out must be a whole number of 1 or more, got '0'"):
        open_dataset(f"{folder}:hold_out=0")
    manifest = tmp_path / "m.csv"
    manifest.write_text("path,class_id,split,observation_id\n1,a,train,x\n2,b,train,y\n")
    for name in "12":
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"photos of one plant .* `florilege data split`"):
        open_dataset(f"{manifest}:hold_out=1")

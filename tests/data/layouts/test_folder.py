from pathlib import Path

import pytest

from florilege.data.layouts.folder import list_classes, list_folder
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from tests.data.pictures import png, write_folder

COUNTS = {"train": {"rosa": 3, "acer": 2}, "validation": {"acer": 1}, "test": {"rosa": 2}}


def test_labels_follow_the_sorted_folder_names_and_bytes_the_rows(tmp_path: Path) -> None:
    dataset = open_dataset(str(write_folder(tmp_path, COUNTS)))
    assert dataset.classes.ids == ("acer", "rosa")
    assert [item.training_count for item in dataset.classes] == [2, 3]
    assert list(dataset.splits) == ["train", "val", "test"]
    train = dataset.split("train")
    assert train.labels.tolist() == [0, 0, 1, 1, 1]
    assert train.names[2] == "train/rosa/000.png"
    for row, name in enumerate(train.names):
        assert train.read(row) == (tmp_path / name).read_bytes()


def test_nothing_is_opened_before_it_is_read(tmp_path: Path) -> None:
    root = write_folder(tmp_path, COUNTS)
    dataset = open_dataset(str(root))
    (root / "train/acer/000.png").write_bytes(b"changed")
    assert dataset.split("train").read(0) == b"changed"


def test_labels_do_not_depend_on_the_splits_asked_for(tmp_path: Path) -> None:
    dataset = open_dataset(str(write_folder(tmp_path, COUNTS)), splits=["test"])
    assert list(dataset.splits) == ["test"]
    assert dataset.split("test").labels.tolist() == [1, 1]


def test_hidden_entries_are_passed_over_and_stray_ones_listed(tmp_path: Path) -> None:
    root = write_folder(tmp_path, COUNTS)
    (root / "train/.thumbs").mkdir()
    (root / "train/.thumbs/a.png").write_bytes(png(1))
    (root / "train/acer/.DS_Store").write_bytes(b"x")
    (root / "train/acer/notes.txt").write_text("x")
    (root / "train/readme.md").write_text("x")
    (root / "train/empty").mkdir()
    (root / "licence").write_text("x")
    (root / "train/acer/deeper").mkdir()
    (root / "train/acer/deeper/B.JPG").write_bytes(png(2))
    listing = list_folder(root, str(root))
    assert listing.splits["train"].names[-4:-3] == ["train/acer/deeper/B.JPG"]
    assert set(listing.splits["train"].class_ids) == {"acer", "rosa"}
    assert sorted(listing.ignored) == [
        "licence",
        "train/acer/notes.txt",
        "train/empty/",
        "train/readme.md",
    ]


def test_whole_numbers_sort_by_value(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {"100": 1, "9": 1, "10": 1}})
    assert open_dataset(str(root)).classes.ids == ("9", "10", "100")


def test_two_folders_for_one_split_are_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {"a": 1, "b": 1}, "val": {"a": 1}, "cal": {"a": 1}})
    with pytest.raises(DataError, match="'cal' and 'val' both mean the split 'val'"):
        open_dataset(str(root))


def test_class_folders_without_splits_are_listed_for_splitting(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"": {"a": 2, "b": 1}})
    assert list_classes(root).class_ids == ["a", "a", "b"]

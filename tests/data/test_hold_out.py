"""Val held out from train, in the protocol of Berrada et al. 2018 for ImageNet."""

from collections import Counter
from pathlib import Path

import pytest

from florilege.data.sources import open_dataset
from florilege.errors import DataError
from tests.data.pictures import write_folder

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

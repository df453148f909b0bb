from pathlib import Path

import pytest

from florilege.data.sources import open_dataset
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, ClassTable
from tests.data.pictures import write_folder


def _table(*ids: str) -> ClassTable:
    return ClassTable(tuple(ClassInfo(id=name, scientific_name=name) for name in ids))


def test_a_class_of_val_that_train_lacks_is_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {"a": 1, "b": 1}, "val": {"a": 1, "q": 1, "c": 1}})
    with pytest.raises(DataError, match=r"2 classes of val without a picture in train: 'c', 'q'"):
        open_dataset(str(root))
    assert open_dataset(str(root), splits=["val"]).classes.ids == ("a", "b", "c", "q")


@pytest.mark.parametrize(
    ("classes", "message"),
    [({"a": 2}, r"has 1 class \('a'\)"), ({}, r"has 0 classes \(none\)")],
)
def test_fewer_than_two_classes_are_refused(
    tmp_path: Path, classes: dict[str, int], message: str
) -> None:
    (tmp_path / "train").mkdir()
    for class_id, number in classes.items():
        write_folder(tmp_path, {"train": {class_id: number}})
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path))


def test_an_empty_or_missing_split_is_refused_by_name(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"train": {"a": 1, "b": 1}})
    (root / "val").mkdir()
    with pytest.raises(DataError, match="picture"):
        open_dataset(str(root))
    assert len(open_dataset(str(root), splits=["train"]).split("train")) == 2
    with pytest.raises(DataError, match="it has: train, val; draw splits with"):
        open_dataset(str(root), splits=["test"])


def test_a_given_class_table_rules_the_labels_and_must_have_every_class(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"val": {"a": 1, "b": 2}, "test": {"b": 2}})
    dataset = open_dataset(str(root), splits=["val"], classes=_table("z", "b", "a"))
    assert dataset.split("val").labels.tolist() == [2, 1, 1]
    assert dataset.classes.ids == ("z", "b", "a")
    one_class = open_dataset(str(root), splits=["test"], classes=_table("a", "b"))
    assert one_class.split("test").labels.tolist() == [1, 1]
    with pytest.raises(DataError, match=r"1 class id of val missing from the model's .*: 'b'"):
        open_dataset(str(root), splits=["val"], classes=_table("a", "z"))

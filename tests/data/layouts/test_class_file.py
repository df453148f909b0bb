from pathlib import Path

import pytest

from data.layouts.class_file import read_class_file
from data.sources import list_source, open_dataset
from models.errors import DataError
from tests.data.pictures import write_folder

TEXT = (
    "class_id,scientific_name,genus,family,gbif,common_name_en,common_name_fr,group,link\n"
    "a,Rosa canina,Rosa,Rosaceae,8395064,dog rose|briar,églantier,pink,x\n"
    "b,Acer rubrum,,,,,,pink,\n"
    "other,,,,,,,white,\n"
)


def _folder(root: Path, text: str | None = TEXT) -> Path:
    write_folder(root, {"train": {"a": 30, "b": 30, "other": 1}})
    if text is not None:
        (root / "classes.csv").write_text(text, encoding="utf-8")
    return root


def test_a_table_beside_the_splits_names_the_classes(tmp_path: Path) -> None:
    root = _folder(tmp_path)
    listing = list_source(str(root))
    assert listing.ignored == []
    assert listing.groups == {"a": ["pink"], "b": ["pink"], "other": ["white"]}
    first, second, third = open_dataset(str(root)).classes
    assert (first.scientific_name, first.genus, first.family) == ("Rosa canina", "Rosa", "Rosaceae")
    assert first.gbif == "8395064"
    assert first.common_names == {"en": ("dog rose", "briar"), "fr": ("églantier",)}
    assert (second.scientific_name, second.genus) == ("Acer rubrum", None)
    assert third.scientific_name == "other"


def test_its_groups_are_those_of_label_noise(tmp_path: Path) -> None:
    labels = open_dataset(f"{_folder(tmp_path)}:noise=1").split("train").labels
    assert set(labels[:30].tolist()) == set(labels[30:60].tolist()) == {0, 1}
    assert labels[60] == 2


def test_without_one_or_with_another_table_of_that_name_nothing_changes(tmp_path: Path) -> None:
    assert read_class_file(_folder(tmp_path / "none", None)) is None
    root = _folder(tmp_path / "other", "number,name\n1,a\n")
    listing = list_source(str(root))
    assert listing.ignored == ["classes.csv"]
    assert not listing.groups
    assert not listing.known


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class_id,group\na,x\na,y\n", "class ids stand there twice: 'a'"),
        ("class_id,group\na,x\n ,y\n", "row 2 has no class id"),
        ("class_id,group\na\n", "cells"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list_source(str(_folder(tmp_path, text)))

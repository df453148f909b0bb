from pathlib import Path

import pytest

from florilege.data.layouts import read_classes
from florilege.data.sources import list_source, open_dataset
from florilege.errors import DataError
from florilege.models.classes import Thumbnail
from tests.data.pictures import write_folder

TEXT = (
    "class_id,scientific_name,genus,family,gbif,common_name_en,common_name_fr,group,link,"
    "thumbnail,thumbnail_author,thumbnail_licence\n"
    "a,Rosa canina,Rosa,Rosaceae,8395064,dog rose|briar|,églantier,pink,https://x.org/a,"
    "train/a/000.png,A. B.,CC0\n"
    "b,Acer rubrum,,,,,,pink,,pictures/b.png,,\n"
    "other,,,,,,,white,HTTP://x.org,,A. B.,CC0\n"
)


def _folder(root: Path, text: str | None = TEXT) -> Path:
    write_folder(root, {"train": {"a": 3, "b": 3, "other": 1}})
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
    assert (first.link, second.link, third.link) == ("https://x.org/a", None, "HTTP://x.org")
    assert first.thumbnail == Thumbnail(author="A. B.", licence="CC0")
    assert (second.thumbnail, third.thumbnail) == (Thumbnail(), None)


def test_pictures_are_looked_for_from_the_folder_of_the_table_but_not_opened(
    tmp_path: Path,
) -> None:
    root = _folder(tmp_path / "data")
    (root / "pictures").mkdir()  # not a stray folder, since the table names it
    (root / "stray").mkdir()
    assert list_source(str(root)).ignored == ["stray"]
    files = {"a": root / "train/a/000.png", "b": root / "pictures/b.png"}
    assert open_dataset(str(root)).thumbnails == files
    text = f"class_id,thumbnail\na,../x.png\nb,{tmp_path}/y.png\n"
    (tmp_path / "names.csv").write_text(text)
    outcome = read_classes(tmp_path / "names.csv")
    assert outcome.thumbnails == {"a": tmp_path / "../x.png", "b": tmp_path / "y.png"}


def test_without_one_or_with_another_table_of_that_name_nothing_changes(tmp_path: Path) -> None:
    for name, text in (("none", None), ("other", "number,name\n1,a\n")):
        listing = list_source(str(_folder(tmp_path / name, text)))
        assert listing.ignored == ([] if text is None else ["classes.csv"])
        assert not listing.groups
        assert not listing.class_infos


def test_columns_that_say_nothing_are_told(tmp_path: Path) -> None:
    path = tmp_path / "names.csv"
    path.write_text("class_id,common_name,thumbnail_license,group,common_name_pt_BR,common_name:de\n"
                    "a,rose,CC0,x,rosa,Rose\n")  # fmt: skip
    outcome = read_classes(path)
    assert outcome.ignored == ["common_name", "thumbnail_license"]
    assert outcome.classes["a"].common_names == {"pt-BR": ("rosa",), "de": ("Rose",)}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("class_id,group\na,x\na,y\nb,\nb,\nb,\n", ["a: 2 rows", "b: 3 rows"]),
        ("class_id,group\na,x\n ,y\n,z\n", ["row 2: no class id", "row 3: no class id"]),
        (
            "class_id,link\na,gbif.org\nb,https://x.org\nc,javascript:alert(1)\n,https://x.org\n",
            ["row 4: no class id", "a: the link gbif.org", "c: the link javascript:alert(1)"],
        ),
    ],
)
def test_all_mistakes_are_listed(tmp_path: Path, text: str, faults: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        list_source(str(_folder(tmp_path, text)))
    headline, *result = str(caught.value).splitlines()
    assert headline == f"{tmp_path / 'classes.csv'} has faults:"
    assert len(result) == len(faults)
    assert all(line.strip().startswith(fault) for line, fault in zip(result, faults, strict=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"class_id,group\na\n", "cells"),
        (b"id,genus\na,Rosa\n", "class_id"),
        (None, "cannot be read"),
        (b"class_id,group\n", "names no class"),
        (b"", "is empty"),
        (
            "class_id,genus\na,Rosa\nb,Säge\nc,x\nd,é\n".encode("latin1"),
            r"not a CSV file in UTF-8: .* 0xe4: '3', '5'; save it as UTF-8",
        ),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "classes.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_classes(path)

"""A table of reference pictures, which a manifest is too."""

from pathlib import Path

import pytest

from florilege.data.layouts import read_pictures
from florilege.errors import DataError
from florilege.models.reference_pictures import Credit


def test_each_row_is_a_picture_with_what_is_known_of_it(tmp_path: Path) -> None:
    table = tmp_path / "pictures.csv"
    table.write_text(
        "class_id,path,organ,licence\nRosa  canina,a/1.jpg,flower,CC0\n2,b.jpg,,\n"
        "Rosa canina,c.jpg,leaf,\n2,,,\n"
    )
    pictures = read_pictures(table)
    assert [each.path for each in pictures["Rosa canina"]] == [
        tmp_path / "a" / "1.jpg",
        tmp_path / "c.jpg",
    ]
    assert pictures["Rosa canina"][0].credit == Credit(None, "CC0", "flower")
    assert pictures["2"][0].credit == Credit()
    assert len(pictures["2"]) == 1


def test_of_a_manifest_only_the_training_photos_count(tmp_path: Path) -> None:
    table = tmp_path / "photos.csv"
    table.write_text("path,class_id,split\na.jpg,1,test\nb.jpg,1,train\nc.jpg,2,val\n")
    assert {name: len(row) for name, row in read_pictures(table).items()} == {"1": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [("class_id,file\n1,a.jpg\n", "path"), ("class_id,path\n1,\n", "names no picture")],
)
def test_a_table_without_pictures_says_what_to_add(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "pictures.csv"
    table.write_text(text)
    with pytest.raises(DataError, match=message):
        read_pictures(table)

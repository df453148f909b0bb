"""The places of a manifest's photos."""

from pathlib import Path

import pytest

from florilege.data.layouts import photo_places
from florilege.errors import DataError
from florilege.models.regions import Place


def manifest(folder: Path, header: str, *rows: str) -> str:
    path = folder / "photos.csv"
    lines = [
        f"path,class_id,split,{header}",
        *(f"{i}.jpg,a,val,{row}" for i, row in enumerate(rows)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("header", "row", "degrees", "place"),
    [
        ("region,month", "hills,6", None, Place("hills", 6)),
        ("region,month", "hills,", None, Place("hills")),
        ("region,date", "hills,2026-06-30", None, Place("hills", 6)),
        ("region,month,date", "hills,,2026-06-30", None, Place("hills", 6)),
        ("region", "hills", None, Place("hills")),
        ("region,month", ",6", None, None),
        ("latitude,longitude,month", "43.6,3.9,6", 1.0, Place("cell1_43_3", 6)),
        ("latitude,longitude", "43.6,", 1.0, None),
        ("latitude,longitude", "0,0.0", 1.0, None),  # what a device without a fix writes
        ("latitude,longitude", "0,3.9", 1.0, Place("cell1_0_3")),
        ("region,latitude,longitude", "cell1_0_0,43.6,3.9", 1.0, Place("cell1_0_0")),
    ],
)
def test_columns_name_the_place(
    tmp_path: Path, header: str, row: str, degrees: float | None, place: Place | None
) -> None:
    source = manifest(tmp_path, header, row)
    assert photo_places(source, ["0.jpg", "9.jpg"], degrees) == [place, None]
    assert photo_places(f"{source}:noise=0.1", ["0.jpg"], degrees) == [place]


@pytest.mark.parametrize(
    ("header", "degrees"), [("month", None), ("latitude,longitude", None), ("latitude", 1.0)]
)
def test_without_the_columns_nothing_is_known(
    tmp_path: Path, header: str, degrees: float | None
) -> None:
    source = manifest(tmp_path, header, ",".join("1" for _ in header.split(",")))
    assert photo_places(source, ["0.jpg"], degrees) is None


@pytest.mark.parametrize("source", ["flora", "flora:val=10", "folder"])
def test_other_data_have_no_places(source: str) -> None:
    assert photo_places(source, ["0.jpg"], None) is None


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("region,month", "hills,13", "0.jpg: a month must be"),
        ("latitude,longitude", "95,3", "0.jpg: latitude must be"),
        ("latitude,longitude", "north,3", "0.jpg: could not convert"),
    ],
)
def test_a_place_that_is_none_names_its_photo(
    tmp_path: Path, header: str, row: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        photo_places(manifest(tmp_path, header, row), ["0.jpg"], 1.0)

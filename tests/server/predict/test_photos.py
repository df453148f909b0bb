"""Which photos a command line names, and which of them show one plant."""

from pathlib import Path

import pytest

from florilege.errors import DataError, UsageError
from florilege.server.predict.prediction import Observation, find_photos
from florilege.tables import write_table


def one(*photos: str | Path, name: str | None = None) -> Observation:
    return Observation(tuple(map(Path, photos)), name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two plants in folders, and a photo beside them."""
    for name in ("a/2.jpg", "a/1.jpg", "b/1.jpg", "0.jpg", "b/notes.txt", "b/list.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def test_photos_are_alone_where_nothing_is_grouped(folder: Path) -> None:
    result, skipped = find_photos([str(folder), "x.txt"], [])
    names = ("0.jpg", "a/1.jpg", "a/2.jpg", "b/1.jpg")
    assert result == [*(one(folder / name) for name in names), one("x.txt")]
    assert skipped == [folder / "b/list.csv", folder / "b/notes.txt"]


def test_photos_of_a_folder_are_one_plant_wherever_they_are_named(folder: Path) -> None:
    words = [str(folder / "b"), str(folder), str(folder / "b" / "9.jpg")]
    assert find_photos(words, [], "folder")[0] == [
        one(folder / "b/1.jpg", folder / "b/1.jpg", folder / "b/9.jpg", name=str(folder / "b")),
        one(folder / "0.jpg", name=str(folder)),
        one(folder / "a/1.jpg", folder / "a/2.jpg", name=str(folder / "a")),
    ]


@pytest.mark.parametrize("ending", [".csv", ".CSV", ".tsv", ".parquet"])
def test_a_manifest_names_photos_relative_to_itself(tmp_path: Path, ending: str) -> None:
    manifest = tmp_path / f"m{ending}"
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
        write_table(manifest, {"plant": ["7", "", "7"], "path": ["a.jpg", "b.jpg", "/c.jpg"]})
    else:
        manifest.write_text("plant;path\n7;a.jpg\n;b.jpg\n7; /c.jpg\n")
    a, b, c = tmp_path / "a.jpg", tmp_path / "b.jpg", "/c.jpg"
    assert find_photos([str(manifest)], [])[0] == [one(a), one(b), one(c)]
    assert find_photos(["-"], [f"\ufeff{manifest}\r\n", "\r\n"])[0] == [one(a), one(b), one(c)]
    assert find_photos([str(manifest)], [], "plant")[0] == [one(a, c, name="7"), one(b)]


def test_plants_of_two_manifests_are_not_the_same(tmp_path: Path) -> None:
    for name in ("m.csv", "n.csv"):
        (tmp_path / name).write_text("path,plant\na.jpg,7\n")
    result, _ = find_photos([str(tmp_path / "m.csv"), str(tmp_path / "n.csv")], [], "plant")
    assert result == [one(tmp_path / "a.jpg", name="7")] * 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"file,plant\na.jpg,7\n", "has no column 'path'; it has: file, plant"),
        (b"path,tree\na.jpg,7\n", "has no column 'plant'; it has: path, tree"),
        (b"path,plant\na.jpg,7\n ,7\n", "empty paths: 'row 2'"),
        (b"path,plant\na.jpg\n", "do not have the header's 2 cells"),
        (b"path,plant\n\xe9.jpg,7\n", "is not a CSV file in UTF-8"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "m.csv").write_bytes(content)
    with pytest.raises(DataError, match=f"m.csv.*{said}"):
        find_photos([str(tmp_path / "m.csv")], [], "plant")


def test_a_column_groups_no_photos_outside_a_manifest(folder: Path) -> None:
    with pytest.raises(UsageError, match="group-by"):
        find_photos(["x.jpg"], [], "plant")

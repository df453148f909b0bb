"""Thumbnails are small, upright and without metadata; packed by position; faults are listed."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilege.errors import BundleError, DataError
from florilege.models.classes import ClassInfo, ClassTable, Thumbnail
from florilege.models.reference_pictures import THUMBNAIL_SIDE as SIDE
from florilege.models.reference_pictures import (
    pack_thumbnails,
    read_thumbnails,
    unpack_thumbnails,
)
from tests.models.pictures import encode, scene, stored_for, thumbnail

CLASSES = ClassTable(
    tuple(
        ClassInfo(id=name, scientific_name=name, thumbnail=Thumbnail() if figure else None)
        for name, figure in (("x", True), ("bare", False), ("y", True))
    )
)


def opened(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (3 * SIDE, 4 * SIDE, (SIDE * 3 // 4, SIDE)),
        (10 * SIDE, 2 * SIDE, (SIDE, SIDE // 5)),
        (SIDE, SIDE, (SIDE, SIDE)),
        (SIDE // 2, SIDE // 4, (SIDE // 2, SIDE // 4)),
        (5 * SIDE, 1, (SIDE, 1)),
    ],
)
def test_the_longer_side_shrinks_to_the_limit_and_a_small_picture_stays(
    width: int, height: int, expected: tuple[int, int]
) -> None:
    image = opened(thumbnail(encode(scene(width, height), "png")))
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", expected)


def test_it_stands_upright_and_nothing_but_pixels_is_kept() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x8825] = 6, {1: "N", 2: (48.0, 51.0, 30.0)}  # orientation, GPS
    metadata = {"exif": exif.tobytes(), "comment": b"where I live", "icc_profile": b"profile" * 30}
    stored = encode(stored_for(scene(400, 300), 6), "jpeg", **metadata)
    assert all(word in stored for word in (b"Exif", b"where I live", b"profile"))
    content = thumbnail(stored)
    assert not [word for word in (b"Exif", b"where I live", b"profile") if word in content]
    assert set(opened(content).info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    pixels = np.asarray(opened(content), dtype=float)
    assert np.abs(pixels - np.asarray(scene(SIDE, SIDE * 3 // 4), dtype=float)).mean() < 4


@pytest.mark.timeout(10)
def test_every_file_that_cannot_be_used_is_listed(tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(encode(scene(9, 9), "png"))
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "cut.jpg").write_bytes(encode(scene(40, 40), "jpeg")[:-30])
    names = {
        "a": "good.png",
        "b": "text.jpg",
        "c": "gone.jpg",
        "d": ".",
        "e": "nu\0l",
        "f": "cut.jpg",
        "g": "pipe.jpg",
    }
    os.mkfifo(tmp_path / "pipe.jpg")
    files = {name: tmp_path / path for name, path in names.items()}
    with pytest.raises(DataError) as caught:
        read_thumbnails("classes.csv", files)
    headline, *faults = str(caught.value).splitlines()
    assert headline.startswith("classes.csv: 6 of 7 thumbnails cannot be used;")
    assert [fault.split(":")[0].strip() for fault in faults] == [*"bcdefg"]
    assert "not a picture" in faults[0]
    assert faults[1].endswith("gone.jpg: No such file or directory")
    assert "ends before its last row" in faults[4]
    assert "not a regular file" in faults[5]
    assert list(read_thumbnails("classes.csv", {"a": files["a"]})) == ["a"]


def test_pictures_are_packed_into_the_same_bytes_by_the_position_of_their_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pictures = {"y": b"of y", "x": b"of x", "bare": b"not announced", "other": b"?"}
    content = pack_thumbnails(CLASSES, pictures)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["0.jpg", "2.jpg"]
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    assert unpack_thumbnails(CLASSES, content) == {"x": b"of x", "y": b"of y"}
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert pack_thumbnails(CLASSES, {"x": b"of x", "y": b"of y"}) == content
    with pytest.raises(BundleError, match="thumbnails that are missing: 'y'"):
        pack_thumbnails(CLASSES, {"x": b"of x"})


def _archive(kind: int, *, flags: int = 0, method: int | None = None) -> bytes:
    """A complete archive, of which one entry says something else of itself."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name in ("0.jpg", "2.jpg"):
            archive.writestr(name, bytes(1000))
    content = bytearray(file.getvalue())
    entry = content.index(b"PK\x01\x02")
    for start in (6, entry + 8):  # of the flags and the method
        content[start] |= flags
        content[start + 2] = content[start + 2] if method is None else method
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        pack_thumbnails(ClassTable(CLASSES.items[:2]), {"x": b""}),
        _archive(zipfile.ZIP_DEFLATED),  # a bomb may be no larger than this
        _archive(zipfile.ZIP_STORED, flags=1),  # encrypted
        _archive(zipfile.ZIP_STORED, method=99),
    ],
)
def test_a_file_that_does_not_fit_the_classes_is_damage(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"thumbnails\.zip is damaged"):
        unpack_thumbnails(CLASSES, content)

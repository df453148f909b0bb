"""Time and place of a photo, as cameras, phones and editors really write them."""

import struct
from datetime import datetime
from pathlib import Path
from typing import Any

import pillow_heif
import pytest
from PIL import ExifTags, Image

from florilege.plugins.exchange.exchange import _Capture, read_capture

GPS = ExifTags.GPS
ASCII, BYTE, RATIONAL, UNDEFINED, SIGNED = 2, 1, 5, 7, 10
TIME = (0x9003, ASCII, b"2026:06:30 09:15:00\0")
LOCAL = datetime(2026, 6, 30, 9, 15)
Entry = tuple[int, int, bytes]


def directory(entries: list[Entry], at: int) -> bytes:
    """A little-endian TIFF directory that begins at byte ``at``, with the values behind it."""
    table, values = struct.pack("<H", len(entries)), b""
    behind = at + 2 + 12 * len(entries) + 4
    for tag, kind, value in sorted(entries):
        size = {RATIONAL: 8, SIGNED: 8, 4: 4}.get(kind, 1)
        place = value.ljust(4, b"\0")
        if len(value) > 4:
            place = struct.pack("<I", behind + len(values))
            values += value + b"\0" * (len(value) % 2)
        table += struct.pack("<HHI", tag, kind, len(value) // size) + place
    return table + b"\0\0\0\0" + values


def photo(path: Path, camera: list[Entry] = [], position: list[Entry] = [], main: Any = ()) -> Path:  # noqa: B006  # never changed
    """A photo whose EXIF block holds these entries byte for byte."""
    size = 2 + 12 * (2 + len(main)) + 4 + sum(len(each[2]) + 1 for each in main)
    first = 8 + size
    camera_part = directory(camera, first)
    links = [
        (ExifTags.IFD.Exif, 4, struct.pack("<I", first)),
        (ExifTags.IFD.GPSInfo, 4, struct.pack("<I", first + len(camera_part))),
    ]
    block = b"II*\0\x08\0\0\0" + directory([*main, *links], 8).ljust(size, b"\0")
    block += camera_part + directory(position, first + len(camera_part))
    Image.new("RGB", (16, 16)).save(path, "JPEG", exif=b"Exif\0\0" + block)
    return path


def rationals(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<ii", *pair) for pair in pairs)


def place(latitude: Entry, latitude_of: Entry | None, east: bytes = b"E\0") -> list[Entry]:
    entries = [latitude, (4, RATIONAL, rationals((8, 1), (15, 1), (0, 1))), (3, ASCII, east)]
    return entries if latitude_of is None else [*entries, latitude_of]


SOUTH = (2, RATIONAL, rationals((47, 1), (30, 1), (18, 1)))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF", "HEIF"])
def test_time_and_place_are_read_of_every_type(tmp_path: Path, form: str) -> None:
    exif, path = Image.Exif(), tmp_path / "photo"
    exif[ExifTags.IFD.Exif] = {0x9003: "2026:06:30 09:15:00", 0x9011: "-03:00"}
    exif[ExifTags.IFD.GPSInfo] = {1: "S", 2: (47.0, 30.0, 18.0), 3: "E", 4: (8.0, 15.0, 0.0)}
    image = Image.new("RGB", (64, 64))
    if form == "HEIF":
        pillow_heif.from_pillow(image).save(path, exif=exif.tobytes())
    else:
        image.save(path, form, exif=exif)
    taken = datetime.fromisoformat("2026-06-30T09:15:00-03:00")
    assert read_capture(path) == _Capture(taken, -47.505, 8.25)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (ASCII, b"2026:06:30 09:15:00\0", "2026-06-30T09:15:00"),
        (ASCII, b"2026:06:30 09:15:00", "2026-06-30T09:15:00"),  # 19 bytes, no NUL
        (ASCII, b"2026:06:30 09:15:00\0\0", "2026-06-30T09:15:00"),
        (ASCII, b"2026:06:30 09:15:00\0123456", "2026-06-30T09:15:00"),  # rubbish behind the NUL
        (ASCII, b"2026:06:30 09:15:00 \0", "2026-06-30T09:15:00"),
        (ASCII, b" 2026:06:30  09:15:00\0", "2026-06-30T09:15:00"),
        (UNDEFINED, b"2026:06:30 09:15:00\0", "2026-06-30T09:15:00"),
        (BYTE, b"2026:06:30 09:15:00\0", "2026-06-30T09:15:00"),
        (UNDEFINED, "2026:06:30 09:15:00".encode("utf-16"), "2026-06-30T09:15:00"),
        (ASCII, "2026:06:30 09:15:00\0".encode("utf-16-be"), "2026-06-30T09:15:00"),
        (ASCII, b"2026-06-30 09:15:00\0", "2026-06-30T09:15:00"),
        (ASCII, b"2026/06/30 09:15:00\0", "2026-06-30T09:15:00"),
        (ASCII, b"2026-06-30T09:15:00\0", "2026-06-30T09:15:00"),
        (ASCII, b"2026-06-30T09:15:00Z\0", "2026-06-30T09:15:00+00:00"),
        (ASCII, b"2026:06:30 09:15:00.25+02:00\0", "2026-06-30T09:15:00+02:00"),
        (ASCII, b"2026:06:30 09:15\0", "2026-06-30T09:15:00"),
        (ASCII, b"2026: 6:30  9: 5: 7\0", "2026-06-30T09:05:07"),
        (ASCII, b"2026:06:30 09:15:00 PM\0", "2026-06-30T21:15:00"),
        (ASCII, b"2026:06:30 12:15:00 a.m.\0", "2026-06-30T00:15:00"),
        (ASCII, b"2026:06:30 24:00:00\0", "2026-07-01T00:00:00"),
        (ASCII, b"2026:06:30 23:59:60\0", "2026-07-01T00:00:00"),
        *(
            (ASCII, text, None)
            for text in (
                b"0000:00:00 00:00:00\0", b"    :  :     :  :  \0", b"2026:02:30 09:15:00\0",
                b"2026:06:30 24:00:01\0", b"2026:06:30 25:00:00\0", b"2026:06:30 09:60:00\0",
                b"2026:06:30 09:15:61\0", b"9999:12:31 24:00:00\0", b"2026:06:30\0", b"unknown\0",
                b"\0", b"\xff\xff\xff\xff\0",
            )
        ),
    ],
)  # fmt: skip
def test_times_are_read_as_cameras_write_them(
    tmp_path: Path, kind: int, text: bytes, expected: str | None
) -> None:
    path = photo(tmp_path / "a.jpg", [(0x9003, kind, text)])
    assert read_capture(path).time == (expected and datetime.fromisoformat(expected))


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (b"-03:00\0", "-03:00"), (b"-0330\0", "-03:30"), (b"+3\0", "+03:00"),
        (b"+14:00\0", "+14:00"),
        (b"Z\0", "+00:00"), (b"+03:00\0\0\0", "+03:00"), (b" +03:00 \0", "+03:00"),
        ("+03:00".encode("utf-16"), "+03:00"),
        (b"   :  \0", ""), (b"+15:00\0", ""), (b"03:00\0", ""), (b"\0", ""), (b"local\0", ""),
    ],
)  # fmt: skip
def test_offsets_from_utc_are_read_as_cameras_write_them(
    tmp_path: Path, offset: bytes, expected: str
) -> None:
    path = photo(tmp_path / "a.jpg", [TIME, (0x9011, ASCII, offset)])
    time = read_capture(path).time
    assert time is not None
    assert time.isoformat() == f"2026-06-30T09:15:00{expected}"


def test_a_time_in_the_main_directory_counts(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.jpg", main=[TIME])
    assert read_capture(path).time == LOCAL


@pytest.mark.parametrize(
    ("latitude", "reference", "expected"),
    [
        (SOUTH, (1, ASCII, b"S\0"), -47.505),
        (SOUTH, (1, ASCII, b"s\0"), -47.505),
        (SOUTH, (1, ASCII, b"South\0"), -47.505),
        (SOUTH, (1, BYTE, b"S\0"), -47.505),
        (SOUTH, (1, ASCII, b"N\0"), 47.505),
        (SOUTH, (1, ASCII, b"E\0"), None),  # no latitude is east
        (SOUTH, (1, ASCII, b"\0"), None),  # the hemisphere would be a guess
        (SOUTH, None, None),
        ((2, SIGNED, rationals((-47, 1), (30, 1), (18, 1))), None, -47.505),
        ((2, SIGNED, rationals((-47, 1), (30, 1), (18, 1))), (1, ASCII, b"S\0"), -47.505),
        ((2, RATIONAL, rationals((475, 10))), (1, ASCII, b"N\0"), 47.5),  # degrees alone
        ((2, RATIONAL, rationals((47, 1), (305, 10))), (1, ASCII, b"N\0"), 47.508333),
        ((2, RATIONAL, rationals((47, 1), (305, 10), (0, 0))), (1, ASCII, b"N\0"), 47.508333),
        ((2, RATIONAL, rationals((475, 10), (0, 0), (0, 0))), (1, ASCII, b"N\0"), 47.5),
        ((2, RATIONAL, rationals((0, 0), (0, 0), (0, 0))), (1, ASCII, b"N\0"), None),
        ((2, RATIONAL, rationals((47, 0), (30, 1), (0, 1))), (1, ASCII, b"N\0"), None),
        ((2, RATIONAL, rationals((47, 1), (59, 1), (60, 1))), (1, ASCII, b"N\0"), 48.0),
        ((2, RATIONAL, rationals((47, 1), (3050, 1), (0, 1))), (1, ASCII, b"N\0"), None),
        ((2, RATIONAL, rationals((47, 1), (30, 1), (1800, 1))), (1, ASCII, b"N\0"), None),
        ((2, RATIONAL, rationals((97, 1), (0, 1), (0, 1))), (1, ASCII, b"N\0"), None),
        ((2, ASCII, b"47.5\0"), (1, ASCII, b"S\0"), -47.5),
        ((2, ASCII, b"nowhere\0"), (1, ASCII, b"S\0"), None),
    ],
)
def test_places_are_read_as_cameras_write_them(
    tmp_path: Path, latitude: Entry, reference: Entry | None, expected: float | None
) -> None:
    capture = read_capture(photo(tmp_path / "a.jpg", [TIME], place(latitude, reference)))
    assert capture == _Capture(LOCAL, expected, None if expected is None else 8.25)


@pytest.mark.parametrize(("east", "expected"), [(b"w\0", -8.25), (b"N\0", None)])
def test_the_hemisphere_of_a_longitude_is_east_or_west(
    tmp_path: Path, east: bytes, expected: float | None
) -> None:
    north = (1, ASCII, b"N\0")
    capture = read_capture(photo(tmp_path / "a.jpg", position=place(SOUTH, north, east)))
    assert capture.longitude == expected


def test_a_camera_without_a_fix_names_no_place(tmp_path: Path) -> None:
    zero = rationals((0, 1), (0, 1), (0, 1))
    position = [(1, ASCII, b"N\0"), (2, RATIONAL, zero), (3, ASCII, b"E\0"), (4, RATIONAL, zero)]
    capture = read_capture(photo(tmp_path / "a.jpg", [TIME], position))
    assert capture == _Capture(LOCAL, None, None, without_fix=True)
    equator = place((2, RATIONAL, zero), (1, ASCII, b"N\0"))
    assert read_capture(photo(tmp_path / "b.jpg", [TIME], equator)) == _Capture(LOCAL, 0.0, 8.25)


def test_what_is_no_photo_or_damaged_has_no_time_and_place(tmp_path: Path) -> None:
    (tmp_path / "photo").write_bytes(b"Exif\0\0II")
    assert read_capture(tmp_path / "photo") == read_capture(tmp_path / "absent") == _Capture()
    whole = photo(tmp_path / "whole.jpg", [TIME], place(SOUTH, (1, ASCII, b"S\0"))).read_bytes()
    for end in range(20, 260, 7):
        (tmp_path / "photo").write_bytes(whole[:end])
        assert read_capture(tmp_path / "photo").time in (None, LOCAL)

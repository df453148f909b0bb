"""No HEIC, AVIF or WebP file hides the size of what its decoder allocates."""

import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilege.models.images import DamagedImage, Preprocess, load, read_header
from florilege.models.images.boxes import PartCounter, read_items
from florilege.models.images.item_sizes import PADDING
from tests.models.images.containers import (
    Made,
    box,
    coded_item,
    container,
    grid_content,
    webp_of_many_codes,
)
from tests.models.pictures import difference, encode, scene

SMALL = Preprocess(image_size=32)
TYPES = {"avif": b"av01", "heic": b"hvc1"}
CONFIGURATIONS = {"avif": b"av1C", "heic": b"hvcC"}


def made(kind: str, width: int, height: int, *, stated: tuple[int, int] | None = None) -> Made:
    """An item with a grey picture, that states its size or another."""
    item = coded_item(kind, width, height)
    more = [each for each in item.properties if each[0] in (CONFIGURATIONS[kind], b"pixi")]
    return Made(TYPES[kind], bytes(item.content), stated or (width, height), more=more)


def grid(kind: str, tile: Made, rows: int, columns: int, size: tuple[int, int]) -> bytes:
    tiles = [tile] * (rows * columns)
    parts = [*range(2, 2 + len(tiles))]
    content = grid_content(rows, columns, *size)
    pixi = [each for each in tile.more if each[0] == b"pixi"]
    whole = Made(b"grid", content, size, parts=parts, more=pixi)
    return container(kind.encode(), [whole, *tiles])


def size_of(data: bytes) -> tuple[int, int]:
    header = read_header(data)
    return header.width, header.height


@pytest.mark.parametrize("kind", TYPES)
def test_a_file_made_by_hand_is_read_like_any_other(kind: str) -> None:
    data = container(kind.encode(), [made(kind, 128, 96)])
    assert size_of(data) == (128, 96)
    assert difference(load(data, SMALL), np.full((32, 32, 3), 90, np.uint8)) <= 2


@pytest.mark.parametrize("kind", TYPES)
def test_a_frame_larger_than_the_stated_size_counts(kind: str) -> None:
    assert size_of(container(kind.encode(), [made(kind, 640, 320, stated=(64, 64))])) == (640, 320)
    assert size_of(container(kind.encode(), [made(kind, 64, 320, stated=(64, 64))])) == (64, 320)


@pytest.mark.parametrize("kind", TYPES)
def test_codecs_may_fill_up_their_last_blocks(kind: str) -> None:
    data = encode(scene(202, 130), kind)
    assert size_of(data) == (202, 130)
    within = made(kind, 128, 128, stated=(129 - PADDING, 129 - PADDING))
    assert size_of(container(kind.encode(), [within])) == within.size
    beyond = made(kind, 128, 128, stated=(128, 128 - PADDING))
    assert size_of(container(kind.encode(), [beyond])) == (128, 128)


@pytest.mark.parametrize("kind", TYPES)
def test_a_large_transparency_counts(kind: str) -> None:
    alpha = made(kind, 640, 640, stated=(64, 64))
    alpha.alpha_of = 1
    assert size_of(container(kind.encode(), [made(kind, 64, 64), alpha])) == (640, 640)
    alpha.size = None
    assert size_of(container(kind.encode(), [made(kind, 64, 64), alpha])) == (640, 640)


@pytest.mark.parametrize("kind", TYPES)
def test_a_grid_counts_as_its_canvas_or_as_its_tiles(kind: str) -> None:
    honest = grid(kind, made(kind, 64, 64), 3, 4, (250, 190))
    assert size_of(honest) == (250, 190)
    assert difference(load(honest, SMALL), np.full((32, 32, 3), 90, np.uint8)) <= 2
    lying = grid(kind, made(kind, 512, 512, stated=(64, 64)), 3, 4, (250, 190))
    assert size_of(lying) == (512, 12 * 512)
    canvas = honest.replace(grid_content(3, 4, 250, 190), grid_content(3, 4, 5000, 4000))
    assert size_of(canvas) == (5000, 4000)


def test_the_canvas_of_a_grid_may_have_large_numbers() -> None:
    content = struct.pack(">BBBBII", 0, 1, 0, 0, 70_000, 10)
    items = [Made(b"grid", content, (64, 64), parts=[2]), made("heic", 64, 64)]
    assert size_of(container(b"heic", items)) == (70_000, 10)


def test_the_canvas_of_an_overlay_counts() -> None:
    content = struct.pack(">BB4HHHii", 0, 0, 0, 0, 0, 0, 9000, 8000, 0, 0)
    items = [Made(b"iovl", content, (64, 64), parts=[2]), made("heic", 64, 64)]
    assert size_of(container(b"heic", items)) == (9000, 8000)


def test_pictures_that_multiply_are_counted_or_refused() -> None:
    layers = [Made(b"iden", b"", (64, 64), parts=[n + 2] * 50) for n in range(3)]
    leaf = made("heic", 64, 64)
    assert np.prod(size_of(container(b"heic", [*layers, leaf]))) >= 50**3 * 64 * 64
    layers = [Made(b"iden", b"", (64, 64), parts=[n + 2]) for n in range(5)]
    assert size_of(container(b"heic", [*layers[:3], Made(b"iden", b"", (64, 64), [5]), leaf]))
    with pytest.raises(DamagedImage, match="pictures from pictures"):
        read_header(container(b"heic", [*layers, leaf]))
    with pytest.raises(DamagedImage, match="pictures from pictures"):
        read_header(container(b"heic", [Made(b"iden", b"", (64, 64), parts=[1])]))


@pytest.mark.parametrize("name", [b"pitm", b"iloc", b"iinf", b"iprp", b"iref"])
def test_a_second_table_of_the_items_is_refused(name: bytes) -> None:
    with pytest.raises(DamagedImage, match="two boxes"):
        read_header(container(b"avif", [made("avif", 64, 64)], extra=box(name, bytes(16))))


def test_a_second_index_or_none_is_refused() -> None:
    data = container(b"avif", [made("avif", 64, 64)])
    with pytest.raises(DamagedImage, match="2 indexes"):
        read_header(data + box(b"meta", bytes(4)))
    with pytest.raises(DamagedImage, match="0 indexes"):
        read_header(data.replace(b"meta", b"free"))


def test_an_unknown_kind_of_picture_is_refused() -> None:
    with pytest.raises(DamagedImage, match="unknown type"):
        read_header(container(b"heic", [Made(b"tili", bytes(64), (64, 64))]))


def test_items_that_overlap_or_lie_elsewhere_are_refused() -> None:
    data = container(b"avif", [made("avif", 64, 64)])
    at = data.index(b"iloc") + 12  # the only item
    twice = data[: at - 2] + b"\0\2" + data[at : at + 14] * 2 + data[at + 14 :]
    with pytest.raises(DamagedImage, match="in two places"):
        read_header(twice)
    assert data[at + 4 : at + 6] == b"\0\1"
    whole = struct.pack(">II", 0, len(data))
    with pytest.raises(DamagedImage, match="overlap"):
        read_header(data[: at + 4] + b"\0\2" + whole * 2 + data[at + 14 :])


@pytest.mark.parametrize("method", [0, 1, 2])
def test_an_item_may_lie_in_pieces_and_inside_the_index(method: int) -> None:
    content = b"0123456789"
    places = struct.pack(">IBBHHHHH", 1 << 24, 0x44, 0, 1, 1, method, 0, 2)
    pieces = struct.pack(">IIII", 6, 2, 9, 0)
    data = box(b"ftyp", b"heic", bytes(4)) + box(
        b"meta", bytes(4), box(b"iloc", places, pieces), box(b"idat", content)
    )
    if method == 2:
        with pytest.raises(DamagedImage, match="inside another"):
            read_items(data, PartCounter())
        return
    item = read_items(data, PartCounter())[0][1]
    assert item.content == (data[6:8] + data[9:] if method == 0 else b"679")


@pytest.mark.parametrize("content", [b"", b"\0"])
@pytest.mark.parametrize("item_type", [b"grid", b"iovl", b"hvc1", b"av01"])
def test_an_item_that_is_cut_short_is_damage(item_type: bytes, content: bytes) -> None:
    item = Made(item_type, content, (0, 0), more=[(b"hvcC", bytes(9))])
    with pytest.raises(DamagedImage):
        read_header(container(b"heic", [item]))


def test_the_still_picture_of_an_animation_counts_and_nothing_else_of_it_is_read() -> None:
    frames = [Image.new("RGB", (640, 480), colour) for colour in ("red", "blue")]
    data = encode(frames[0], "avif", save_all=True, append_images=frames[1:])
    assert size_of(data) == (640, 480)
    tables = slice(data.index(b"moov") + 4, data.index(b"mdat") - 4)
    damaged = data[: tables.start] + bytes(tables.stop - tables.start) + data[tables.stop :]
    assert np.array_equal(load(damaged, SMALL), load(data, SMALL))
    with pytest.raises(DamagedImage, match="0 x 0 pixels"):
        size_of(data.replace(b"av01Color", b"skipColor").replace(b"ispe", b"skip", 1))


@pytest.mark.parametrize("brand", [b"msf1", b"isom", b"mp41"])
def test_a_heic_may_announce_a_film(brand: bytes) -> None:
    data = container(b"heic", [made("heic", 64, 64)])
    expected = load(data, SMALL)
    for film in (b"", box(b"moov", box(b"trak", bytes(8)))):
        announced = data.replace(b"miaf", brand, 1) + film
        assert np.array_equal(load(announced, SMALL), expected)


# Not `ru_maxrss`, which begins with that of the process that started this one.
MEASURE = """
import pathlib, re, sys
from florilege.models.images import ImageError, Preprocess, load
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
small = Preprocess(image_size=32)
for path in sys.argv[2:]:
    before = peak()
    try:
        load(open(path, "rb").read(), small, max_pixels=300_000)
        result = "read"
    except ImageError as error:
        result = error.code
    print(result, peak() - before)
"""


def test_no_lying_file_takes_memory(tmp_path: Path) -> None:
    """In a process of its own: memory that was used once does not show again."""
    alpha = made("avif", 3000, 3000, stated=(64, 64))
    alpha.alpha_of = 1
    liars = {
        "colour.avif": container(b"avif", [made("avif", 3000, 3000, stated=(64, 64))]),
        "alpha.avif": container(b"avif", [made("avif", 64, 64), alpha]),
        "grid.avif": grid("avif", made("avif", 2000, 2000, stated=(64, 64)), 2, 2, (128, 128)),
        "canvas.heic": grid("heic", made("heic", 64, 64), 2, 2, (128, 128)).replace(
            grid_content(2, 2, 128, 128), grid_content(2, 2, 9000, 9000)
        ),
    }
    for name, content in liars.items():
        (tmp_path / name).write_bytes(content)
    for name, result, kilobytes in measured(tmp_path, liars):
        assert (name, result) == (name, "image_too_large")
        assert kilobytes < 8_000


def measured(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Name, outcome and further memory of files that a process of its own reads in this order."""
    names = [*names]
    command = [sys.executable, "-c", MEASURE, *(str(folder / name) for name in ("", *names))]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for name, line in zip(names, lines, strict=True):
        result, kilobytes = line.split()
        yield name, result, int(kilobytes)


def test_no_decoder_copies_what_several_pictures_share(tmp_path: Path) -> None:
    """Texts of 400 items and profiles of 400 pictures, each written once: 200 MB of copies."""
    heic = made("heic", 64, 64)
    profile = (b"colr", b"prof" + bytes(500_000))
    shared = [replace(heic, more=[*heic.more, profile])] * 400
    content = bytes(500_000)
    texts = [Made(name, content, describes=[1]) for name in (b"mime", b"Exif", b"text", b"tmap")]
    texts.append(Made(b"jpeg", content, (64, 64), more=heic.more))
    files = {"plain.heic": container(b"heic", [heic])}
    files |= {
        f"{text.type.decode()}.heic": container(b"heic", [heic, *[text] * 400]) for text in texts
    }
    files["old.heic"] = files["mime.heic"].replace(b"infe\2", b"infe\0")
    files["old.heic"] = files["old.heic"].replace(b"infe\0", b"infe\2", 1)  # of the picture
    every = [*range(1, 401)]
    described = [heic] * 400 + [replace(texts[0], describes=every)]
    files["described.heic"] = container(b"heic", described)
    files["profiles.heic"] = container(b"heic", shared)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name, result, kilobytes in measured(tmp_path, files):
        assert (name, result) == (name, "read" if name != "profiles.heic" else "image_unreadable")
        assert name == "plain.heic" or kilobytes < 8_000


def test_a_lossless_webp_counts_with_the_tables_that_it_may_have(tmp_path: Path) -> None:
    (tmp_path / "codes.webp").write_bytes(data := webp_of_many_codes(512))
    header = read_header(data)
    assert (header.width, header.height) == (512, 512)
    ((_, _, kilobytes),) = measured(tmp_path, ["codes.webp"])
    pixels = header.width * header.height + header.more_pixels
    assert 6 * pixels < 1024 * kilobytes < 17 * pixels


@pytest.mark.parametrize(
    ("mode", "lossless", "counts"),
    [("RGB", False, False), ("RGBA", False, True), ("RGB", True, True)],
)
def test_a_lossy_webp_has_no_such_tables(mode: str, lossless: bool, counts: bool) -> None:
    picture = Image.new(mode, (64, 64), (9, 90, 9, 128) if mode == "RGBA" else (9, 90, 9))
    header = read_header(encode(picture, "webp", lossless=lossless))
    assert (header.more_pixels > 0) == counts


def test_a_heic_with_a_gain_map_and_a_thumbnail_that_cannot_be_decoded_is_read() -> None:
    picture = made("heic", 64, 64)
    gain_map = Made(b"tmap", bytes(62), (64, 64), parts=[1, 2])
    mask, thumbnail = (Made(name, b"", (32, 32)) for name in (b"mski", b"jpeg"))
    text = Made(b"mime", b"<x/>", describes=[1, 3])
    data = container(b"heic", [picture, picture, gain_map, mask, thumbnail, text])
    assert np.array_equal(load(data, SMALL), load(container(b"heic", [picture]), SMALL))

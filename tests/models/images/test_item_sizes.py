"""No HEIC or AVIF file hides the size of what its decoder allocates."""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilege.models.images import DamagedImage, Preprocess, load, read_header
from florilege.models.images.boxes import PartCounter, read_items
from florilege.models.images.item_sizes import PADDING
from tests.models.images.containers import Made, box, coded_item, container, grid_content
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


@pytest.mark.parametrize("alone", [False, True])
def test_the_first_picture_of_an_animation_counts(alone: bool) -> None:
    frames = [Image.new("RGB", (640, 480), colour) for colour in ("red", "blue")]
    data = encode(frames[0], "avif", save_all=True, append_images=frames[1:])
    assert size_of(data) == (640, 480)
    if alone:  # some files hold no still picture
        data = data.replace(b"av01Color", b"skipColor").replace(b"ispe", b"skip", 1)
        assert size_of(data) == (640, 480)
    for shift in (0, 16):  # of whole numbers, and of fixed point in tracks
        stated, lie = (
            struct.pack(">II", w << shift, h << shift) for w, h in ((640, 480), (64, 64))
        )
        data = data.replace(stated, lie)
    assert size_of(data) == (640, 480)


MEASURE = """
import resource, sys
from florilege.models.images import ImageError, Preprocess, load
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
small = Preprocess(image_size=32)
for path in sys.argv[2:]:
    before = peak()
    try:
        load(open(path, "rb").read(), small, max_pixels=100_000)
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
    command = [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in ("", *liars))]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    for name, line in zip(liars, lines, strict=False):
        result, kilobytes = line.split()
        assert (name, result) == (name, "image_too_large")
        assert int(kilobytes) < 8_000

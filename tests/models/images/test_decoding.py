"""Every accepted type, orientation and mode, and hostile uploads."""

import gzip
import io
import struct
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pillow_heif
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from florilege.errors import BundleError
from florilege.models.images import (
    ACCEPTED,
    MAX_PIXELS,
    DamagedImage,
    ImageError,
    OversizedImage,
    Preprocess,
    UnsupportedImage,
    decode,
    load,
    read_header,
)
from florilege.models.images.headers import _scans
from florilege.models.images.headers import orientation as orientation_of
from florilege.models.images.sniff import sniff
from florilege.models.staging import read_json
from tests.models.pictures import (
    KINDS,
    chunk,
    difference,
    encode,
    exif_with_orientation,
    noise,
    png,
    scene,
    stored_for,
)

SMALL = Preprocess(image_size=32)
ENCODED = {kind: encode(scene(64, 48), kind) for kind in KINDS}
PROGRESSIVE = encode(scene(64, 48), "jpeg", progressive=True)
LOSSY = 12  # grey levels the encoders may be off on the smooth scene


# Types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [*ENCODED.values(), PROGRESSIVE], ids=[*KINDS, "progressive"])
def test_every_accepted_type_gives_the_picture(data: bytes) -> None:
    expected = load(ENCODED["png"], SMALL)
    assert expected.shape == (32, 32, 3)
    assert expected.dtype == np.uint8
    assert difference(load(data, SMALL), expected) <= LOSSY


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"hello", "not a picture of a known type"),
        (b"\x00" * 100, "not a picture of a known type"),
        (b" <SVG xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        (encode(scene(8, 8), "gif"), "a GIF picture"),
        (gzip.compress(encode(scene(8, 8), "png")), "data in gzip"),
        (encode(scene(8, 8), "tiff"), "a TIFF picture"),
        (encode(scene(8, 8), "bmp"), "a BMP picture"),
        (b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00isommp42", "not a picture of a known type"),
    ],
    ids=["empty", "text", "zeros", "svg", "gif", "gzip", "tiff", "bmp", "mp4"],
)
def test_other_types_are_named_and_refused_with_the_accepted_ones(
    data: bytes, message: str
) -> None:
    with pytest.raises(UnsupportedImage, match=message) as caught:
        load(data, SMALL)
    assert caught.value.code == "unsupported_image_type"
    assert all(name in str(caught.value) for name in ACCEPTED)


@pytest.mark.parametrize("kind", ["heic", "avif"])
def test_a_generic_major_brand_leaves_the_type_to_the_compatible_brands(kind: str) -> None:
    data = ENCODED[kind]
    assert data[8:12] == kind.encode()
    assert kind.encode() in data[16 : int.from_bytes(data[:4], "big")]
    generic = data[:8] + b"mif1" + data[12:]
    assert np.array_equal(load(generic, SMALL), load(data, SMALL))


@pytest.mark.parametrize(("major", "other"), [("heic", "avif"), ("avif", "heic")])
def test_the_major_brand_decides_where_the_compatible_ones_name_both(
    major: str, other: str
) -> None:
    assert sniff(b"\0\0\0\x1cftyp" + f"{major}....{other}{major}mif1".encode()) == major


def test_brands_are_looked_for_in_the_first_kilobyte() -> None:
    start = struct.pack(">I", 4000) + b"ftypmif1"
    assert sniff(start.ljust(1020, b"-") + b"heic") == "heic"
    with pytest.raises(UnsupportedImage):
        sniff(start.ljust(1024, b"-") + b"heic")


def inserted(kind: str, part: bytes) -> bytes:
    """The small picture with one more part behind the header of a PNG or before that of a JPEG."""
    data = ENCODED[kind]
    at = 33 if kind == "png" else data.index(b"\xff\xc0")
    return data[:at] + part + data[at:]


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("jpeg", b"\xff\xff\xff"),  # filling bytes
        ("png", chunk(b"acTL", bytes(8))),  # an invalid control of an animation
        ("png", chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(50_000_000), 9))),  # a bomb
    ],
    ids=["filling", "animation", "comment"],
)
def test_parts_that_are_no_picture_change_nothing(kind: str, part: bytes) -> None:
    data = inserted(kind, part)
    assert np.array_equal(load(data, SMALL), load(ENCODED[kind], SMALL))
    assert outcome(data) == "read"


@pytest.mark.parametrize("kind", ["png", "webp", "avif"])
def test_the_first_frame_of_an_animation_counts(kind: str) -> None:
    red, blue = (Image.new("RGB", (32, 32), colour) for colour in ("red", "blue"))
    data = encode(red, kind, save_all=True, append_images=[blue], duration=100)
    assert difference(load(data, SMALL), np.asarray(red)) <= LOSSY


def two_in_a_heic(first: Image.Image, second: Image.Image, *, primary_index: int) -> bytes:
    file, out = pillow_heif.from_pillow(first), io.BytesIO()
    file.add_from_pillow(second)
    file.save(out, primary_index=primary_index)
    return out.getvalue()


def test_the_primary_picture_of_a_heic_with_several_counts() -> None:
    red, blue = (Image.new("RGB", (64, 64), colour) for colour in ("red", "blue"))
    pixels = load(two_in_a_heic(red, blue, primary_index=1), SMALL)
    assert difference(pixels, np.full_like(pixels, (0, 0, 255))) < 9


# Modes -----------------------------------------------------------------------------------------


def pixel(data: bytes) -> tuple[int, ...]:
    return tuple(int(value) for value in load(data, SMALL)[16, 16])


@pytest.mark.parametrize(
    ("mode", "colour", "kind", "expected"),
    [
        ("1", 1, "png", (255, 255, 255)),
        ("L", 100, "png", (100, 100, 100)),
        ("L", 100, "jpeg", (100, 100, 100)),
        ("LA", (100, 0), "png", (255, 255, 255)),
        ("LA", (100, 255), "png", (100, 100, 100)),
        ("RGBA", (10, 20, 30, 255), "png", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), "png", (255, 255, 255)),
        ("RGBA", (0, 0, 0, 51), "png", (204, 204, 204)),
        *(("RGBA", (10, 20, 30, 0), kind, (255, 255, 255)) for kind in ("webp", "heic", "avif")),
        ("CMYK", (255, 0, 0, 0), "jpeg", (0, 255, 255)),
        ("CMYK", (0, 0, 0, 255), "jpeg", (0, 0, 0)),
    ],
)
def test_every_mode_becomes_rgb(
    mode: str, colour: int | tuple[int, ...], kind: str, expected: tuple[int, int, int]
) -> None:
    data = encode(Image.new(mode, (32, 32), colour), kind)
    assert np.abs(np.subtract(pixel(data), expected)).max() <= (0 if kind == "png" else 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (200, 40, 90)),
        ({"transparency": 0}, (255, 255, 255)),
        ({"transparency": b"\x00\xff"}, (255, 255, 255)),
    ],
)
def test_a_palette_shows_its_colours_and_white_where_transparent(
    options: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    image = Image.new("P", (32, 32), 0)
    image.putpalette([200, 40, 90, 1, 2, 3])
    assert pixel(encode(image, "png", **options)) == expected


def red_jpeg_with(components: bytes, marker: bytes) -> bytes:
    """A red JPEG, its planes holding luma and chroma, with other component names and one APPn."""
    data = encode(Image.new("RGB", (32, 32), "red"), "jpeg", subsampling=0, quality=95)
    assert data[2:4] == b"\xff\xe0"
    rest = bytearray(data[4 + struct.unpack_from(">H", data, 4)[0] :])
    frame, scan = rest.index(b"\xff\xc0") + 10, rest.index(b"\xff\xda") + 5
    rest[frame : frame + 9 : 3] = components
    rest[scan : scan + 6 : 2] = components
    return b"\xff\xd8" + marker + bytes(rest)


@pytest.mark.parametrize(
    ("components", "marker", "expected"),
    [
        (b"RGB", b"\xff\xe0\x00\x10JFIF\0\1\1\0\0\1\0\1\0\0", (254, 0, 0)),
        (b"\1\2\3", b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0\1", (254, 0, 0)),
        (b"\1\2\3", b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0\0", (76, 85, 255)),
    ],
    ids=["jfif", "adobe", "adobe, planes are rgb"],
)
def test_the_markers_that_tell_a_jpegs_colours_are_kept(
    components: bytes, marker: bytes, expected: tuple[int, int, int]
) -> None:
    assert np.abs(np.subtract(pixel(red_jpeg_with(components, marker)), expected)).max() <= 2


def sixteen_bit(value: int, colour: int, channels: int, extra: bytes = b"") -> bytes:
    row = b"\0" + struct.pack(">H", value) * channels * 32
    return png(32, 32, depth=16, colour=colour, rows=row * 32, extra=extra)


@pytest.mark.parametrize("value", [0, 255, 256, 0x1234, 0x8000, 65535])
@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3)])
def test_sixteen_bits_are_scaled_to_eight(value: int, colour: int, channels: int) -> None:
    assert pixel(sixteen_bit(value, colour, channels)) == (value >> 8,) * 3


def test_a_colour_key_shows_white_but_in_colours_of_sixteen_bits() -> None:
    grey = chunk(b"tRNS", struct.pack(">H", 0x1234))
    assert pixel(sixteen_bit(0x1234, 0, 1, grey)) == (255, 255, 255)
    assert pixel(sixteen_bit(0x1235, 0, 1, grey)) == (0x12,) * 3
    colours = chunk(b"tRNS", struct.pack(">HHH", 0x12, 0x12, 0x12))
    assert pixel(sixteen_bit(0x1299, 2, 3, colours)) == (0x12,) * 3
    for colour, expected in (((0x12,) * 3, (255, 255, 255)), ((18, 18, 19), (18, 18, 19))):
        data = encode(Image.new("RGB", (32, 32), colour), "png")
        assert pixel(data[:33] + colours + data[33:]) == expected


# Orientation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_stands_upright(kind: str, orientation: int) -> None:
    upright = scene(96, 64)
    options = {"quality": 95, "exif": exif_with_orientation(orientation)}
    data = encode(stored_for(upright, orientation), kind, **options)
    assert difference(load(data, SMALL), load(encode(upright, "png"), SMALL)) <= LOSSY
    assert decode(data, target=96).size == (96, 64)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_big_endian_exif_is_read(kind: str) -> None:
    data = encode(scene(96, 64), kind, exif=exif_with_orientation(6, ">"))
    assert decode(data, target=96).size == (64, 96)


@pytest.mark.parametrize("length", [4, 5])
def test_exif_is_found_after_chunks_of_any_length(length: int) -> None:
    data = encode(scene(96, 64), "webp", exif=exif_with_orientation(6))
    at = data.index(b"EXIF")
    more = b"abcd" + struct.pack("<I", length) + bytes(length + length % 2)
    body = data[8:at] + more + data[at:]
    longer = b"RIFF" + struct.pack("<I", len(body)) + body
    assert decode(longer, target=96).size == (64, 96)


@pytest.mark.parametrize(
    "exif",
    [
        exif_with_orientation(0),
        exif_with_orientation(9),
        exif_with_orientation(6, kind=4),
        exif_with_orientation(6)[:-8],
        exif_with_orientation(6)[:12],
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0XX*\0",
        b"Exif\0\0",
    ],
    ids=["zero", "nine", "long", "cut", "cut early", "offset", "magic", "empty"],
)
def test_a_senseless_orientation_leaves_the_picture_as_it_is(exif: bytes) -> None:
    plain = encode(scene(96, 64), "jpeg")
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    assert np.array_equal(load(plain[:2] + segment + plain[2:], SMALL), load(plain, SMALL))
    assert orientation_of(exif) == 1


@pytest.mark.parametrize(
    "second", [exif_with_orientation(1), b"Exif\0\0more of a block that one segment cannot hold"]
)
def test_of_two_segments_of_exif_the_first_says_how_a_jpeg_stands(second: bytes) -> None:
    data = encode(scene(96, 64), "jpeg", exif=exif_with_orientation(6))
    segment = b"\xff\xe1" + struct.pack(">H", len(second) + 2) + second
    at = data.index(b"Exif") + len(exif_with_orientation(6))
    assert decode(data[:at] + segment + data[at:], target=96).size == (64, 96)


# Size and crop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_picture_of_the_right_size_passes_untouched(orientation: int) -> None:
    image = noise(48, 48)
    data = encode(stored_for(image, orientation), "png", exif=exif_with_orientation(orientation))
    assert np.array_equal(load(data, Preprocess(image_size=48)), np.asarray(image))


def test_the_centre_square_is_kept_or_a_fraction_of_it() -> None:
    image = Image.new("RGB", (64, 32), "red")
    image.paste("lime", (16, 0, 48, 32))
    image.paste("blue", (23, 7, 41, 25))
    whole = load(encode(image, "png"), SMALL)
    assert (whole[[0, -1]] == (0, 255, 0)).all()
    assert (whole[:, [0, -1]] == (0, 255, 0)).all()
    half = load(encode(image, "png"), Preprocess(image_size=32, crop_fraction=0.5))
    assert (half == (0, 0, 255)).all()


@pytest.mark.parametrize("turned", [False, True])
def test_the_centre_of_an_uneven_picture_lies_at_half_a_pixel(turned: bool) -> None:
    columns = np.array([[0, 100, 200]] * 2, np.uint8)
    picture = Image.fromarray(columns.T.copy() if turned else columns)
    pixels = load(encode(picture, "png"), Preprocess(image_size=2))[..., 0]
    assert (pixels.T if turned else pixels).tolist() == [[50, 150]] * 2


def test_shrinking_averages_instead_of_skipping() -> None:
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    shrunk = load(encode(Image.fromarray(stripes), "png"), SMALL)
    assert difference(shrunk, np.full_like(shrunk, 127)) <= 2


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_resizing_is_that_of_pillow(resample: Literal["bilinear", "bicubic"]) -> None:
    image = scene(60, 60)
    filter_ = Image.Resampling[resample.upper()]
    expected = np.asarray(image.resize((32, 32), filter_))
    assert np.array_equal(
        load(encode(image, "png"), Preprocess(image_size=32, resample=resample)), expected
    )


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (3, 5)])
def test_a_tiny_picture_is_enlarged(size: tuple[int, int]) -> None:
    data = encode(Image.new("RGB", size, (9, 8, 7)), "png")
    assert (load(data, SMALL) == (9, 8, 7)).all()


def test_a_large_jpeg_is_decoded_at_a_fraction_that_keeps_twice_the_target() -> None:
    data = encode(scene(1024, 768), "jpeg")
    assert decode(data, target=96).size == (256, 192)
    assert decode(data, target=97).size == (512, 384)
    assert decode(data, target=500).size == (1024, 768)
    assert difference(load(data, SMALL), load(encode(scene(1024, 768), "png"), SMALL)) <= LOSSY
    image = scene(513, 513)  # its eighth is no whole number, and is not stretched
    pixels = load(encode(image, "jpeg", quality=100, subsampling=0), SMALL)
    assert difference(pixels, np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR))) <= 2


@pytest.mark.parametrize(("gap", "factor"), [(1, 9), (1.1, 8), (2, 4), (2.1, 4), (4, 2), (8, 1)])
def test_a_picture_is_shrunk_as_far_as_the_gap_allows(gap: float, factor: int) -> None:
    image = scene(288, 288)
    preprocess = Preprocess(image_size=32, reducing_gap=gap)
    box = (0, 0, 288 / factor, 288 / factor)
    expected = image.reduce(factor).resize((32, 32), Image.Resampling.BILINEAR, box)
    assert np.array_equal(load(encode(image, "png"), preprocess), np.asarray(expected))
    jpeg = encode(image, "jpeg", quality=100, subsampling=0)
    assert difference(load(jpeg, preprocess), np.asarray(expected)) <= 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "height"), [(1000, 300), (301, 999), (517, 518)])
def test_shrinking_in_two_steps_keeps_every_point_in_its_place(
    kind: str, width: int, height: int
) -> None:
    image = scene(width, height)
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    at_once = image.resize(
        (32, 32), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
    )
    pixels = load(encode(image, kind, quality=95), SMALL)
    assert difference(pixels, np.asarray(at_once)) <= (2 if kind == "png" else 6)
    assert 64 <= min(decode(encode(image, kind), target=32).size) < 128


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "CMYK", "1"])
@pytest.mark.parametrize("height", [700, 64 * 9, 641])
def test_a_large_picture_of_any_mode_is_made_in_strips(mode: str, height: int) -> None:
    plain = scene(640, height).convert("L" if mode in ("L", "LA", "1") else "RGB")
    image = plain.convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(255)
    kind = "jpeg" if mode == "CMYK" else "png"
    expected = load(encode(image.convert("RGB"), "png"), SMALL)
    assert difference(load(encode(image, kind), SMALL), expected) <= (6 if kind == "jpeg" else 0)


@pytest.mark.parametrize("strip", [1, 2, 5, 1000])
@pytest.mark.parametrize(("width", "height"), [(97, 331), (331, 97), (128, 129)])
def test_strips_of_any_height_give_the_same_pixels(
    width: int, height: int, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = noise(width, height)
    image.putalpha(noise(width, height, seed=1).convert("L"))
    data = encode(image, "png")
    small = Preprocess(image_size=8)
    whole = load(data, small)
    monkeypatch.setattr("florilege.models.images.STRIP", strip)
    assert np.array_equal(load(data, small), whole)


def test_the_fraction_of_a_jpeg_follows_the_short_side_when_it_is_cropped() -> None:
    image = noise(800, 800)
    cropped = Preprocess(image_size=64, crop_fraction=0.25)  # of 256 pixels: no draft
    exact = load(encode(image, "jpeg", quality=100, subsampling=0), cropped)
    assert difference(exact, load(encode(image, "png"), cropped)) <= 6


# Limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "beginning"),
    [
        *((kind, {}, b"") for kind in KINDS),
        ("webp", {"lossless": True}, b"VP8L"),
        ("webp", {"exif": exif_with_orientation(1)}, b"VP8X"),
    ],
)
def test_the_header_gives_the_size_as_stored_and_the_limit_on_pixels_is_exact(
    kind: str, options: dict[str, Any], beginning: bytes
) -> None:
    data = encode(scene(72, 64), kind, **options)
    assert data[12:].startswith(beginning)
    header = read_header(data)
    assert (header.kind, header.width, header.height) == (kind, 72, 64)
    assert load(data, SMALL, max_pixels=72 * 64).shape == (32, 32, 3)
    with pytest.raises(OversizedImage, match="72 x 64") as caught:
        load(data, SMALL, max_pixels=72 * 64 - 1)
    assert caught.value.limit == 72 * 64 - 1
    assert caught.value.code == "image_too_large"


@pytest.mark.parametrize("kind", KINDS)
def test_a_header_that_was_read_before_is_not_read_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, expected = read_header(ENCODED[kind]), load(ENCODED[kind], SMALL)
    monkeypatch.setattr("florilege.models.images.read_header", None)
    assert np.array_equal(load(header, SMALL), expected)
    assert decode(header, target=32).size == (64, 48)
    with pytest.raises(OversizedImage, match="at most 3071 are allowed"):
        load(header, SMALL, max_pixels=64 * 48 - 1)


@pytest.mark.parametrize("progressive", [False, True])
def test_only_a_jpeg_that_is_not_progressive_shrinks_while_it_is_decoded(progressive: bool) -> None:
    assert (
        read_header(encode(scene(64, 48), "jpeg", progressive=progressive)).shrinks != progressive
    )
    assert not any(read_header(ENCODED[kind]).shrinks for kind in KINDS if kind != "jpeg")


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_a_jpeg_with_a_scan_for_each_colour_does_not_shrink(mode: str) -> None:
    image = Image.new(mode, (64, 48), (200, 30, 60) if mode == "RGB" else (200, 30, 60, 0))
    data = encode(image, "jpeg", subsampling=0)
    start = data.index(b"\xff\xda")
    count = data[start + 4]
    assert read_header(data).shrinks
    frame = data.index(b"\xff\xc0")
    ids = [data[frame + 10 + 3 * colour] for colour in range(count)]
    empty = bytes(64 * 48 // 64)  # one symbol of a bit for each difference and each end of a block
    tables = b"".join(
        b"\xff\xc4" + struct.pack(">HB", 20, name) + bytes([1, *[0] * 16]) for name in (0, 16)
    )
    scans = [b"\xff\xda\x00\x08\x01" + bytes([id_, 0, 0, 63, 0]) + empty for id_ in ids]
    in_scans = data[:start] + tables + b"".join(scans) + b"\xff\xd9"
    assert load(in_scans, SMALL).shape == (32, 32, 3)
    assert not read_header(in_scans).shrinks  # the decoder keeps the whole picture until the last


@pytest.mark.parametrize("size", [(16_383, 1), (1, 16_383)])
@pytest.mark.parametrize("options", [{"lossless": True}, {}, {"exif": exif_with_orientation(1)}])
def test_each_webp_header_gives_large_sizes(size: tuple[int, int], options: dict[str, Any]) -> None:
    header = read_header(encode(Image.new("RGB", size), "webp", **options))
    assert (header.width, header.height) == size


def test_a_webp_canvas_beyond_sixteen_bits_is_refused() -> None:
    data = bytearray(encode(scene(64, 48), "webp", exif=exif_with_orientation(1)))
    data[24:30] = (99_999).to_bytes(3, "little") * 2
    with pytest.raises(OversizedImage, match="100000 x 100000"):
        load(bytes(data), SMALL)


def test_the_largest_picture_in_a_heic_counts() -> None:
    data = two_in_a_heic(scene(64, 64), scene(128, 128), primary_index=0)
    assert load(data, SMALL, max_pixels=128 * 128).shape == (32, 32, 3)
    with pytest.raises(OversizedImage, match="128 x 128"):
        load(data, SMALL, max_pixels=128 * 128 - 1)


def with_size(kind: str, width: int, height: int) -> bytes:
    """The small picture with another size in its header."""
    data = bytearray(ENCODED[kind])
    if kind == "png":
        data[8:33] = chunk(b"IHDR", struct.pack(">II", width, height) + bytes(data[24:29]))
    elif kind == "jpeg":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", height, width)
    elif kind == "webp":
        data[26:30] = struct.pack("<HH", width & 0x3FFF, height & 0x3FFF)
    else:
        at = data.index(b"ispe") + 8
        data[at : at + 8] = struct.pack(">II", width, height)
    return bytes(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [7072, 13000, 16000, 65000])
def test_a_huge_picture_is_refused_from_its_header_alone(kind: str, side: int) -> None:
    side = min(side, 16383) if kind == "webp" else side  # the most that a WebP header holds
    data = with_size(kind, side, side)
    tracemalloc.start()
    with pytest.raises(OversizedImage, match=f"{side} x {side}"):
        load(data, SMALL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_picture_may_have_so_many_pixels_and_no_more() -> None:
    height = MAX_PIXELS // 10_000
    assert load(with_size("jpeg", 10_000, height), SMALL).shape == (32, 32, 3)
    with pytest.raises(OversizedImage, match=f"10000 x {height + 1}"):
        load(with_size("jpeg", 10_000, height + 1), SMALL)
    with pytest.raises(ValueError, match="max_pixels must be at least 1"):
        load(ENCODED["png"], SMALL, max_pixels=0)


# A JPEG's missing rows come out grey, and libavif scales to the stated size: undetectable.
@pytest.mark.parametrize("kind", ["png", "webp", "heic"])
def test_a_header_that_promises_more_than_there_is_is_damage(kind: str) -> None:
    with pytest.raises(DamagedImage):
        load(with_size(kind, 1000, 1000), SMALL)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(0, 48), (64, 0)])
def test_a_picture_without_pixels_is_damage(kind: str, size: tuple[int, int]) -> None:
    with pytest.raises(DamagedImage):
        load(with_size(kind, *size), SMALL)


def test_a_header_that_hides_a_larger_picture_is_refused() -> None:
    for kind in ("heic", "avif"):
        data = bytearray(encode(scene(512, 512), kind))
        at = data.index(b"ispe") + 8
        data[at : at + 8] = struct.pack(">II", 16, 16)
        with pytest.raises(OversizedImage, match="512 x 512"):
            load(bytes(data), SMALL, max_pixels=512 * 512 - 1)


FRAME = ENCODED["jpeg"][ENCODED["jpeg"].index(b"\xff\xc0") :][:19]
LAST_SCAN = PROGRESSIVE.rindex(b"\xff\xda")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (inserted("png", with_size("png", 13000, 13000)[8:33]), "two headers"),
        (inserted("jpeg", FRAME), "two frame headers"),
        (inserted("png", chunk(b"abCd", b"") * 100_001), "more than 100000 parts"),
        (inserted("jpeg", b"\xff\xfe\x00\x02" * 100_001), "more than 100000 parts"),
        (b"\xff\xd8" + b"\xff" * 100_002, "more than 100000 parts"),
        (b"\xff\xd8" * 100_002, "more than 100000 parts"),
        (ENCODED["avif"] + b"\x00\x00\x00\x08free" * 100_001, "more than 100000 parts"),
        (PROGRESSIVE[:-2] + PROGRESSIVE[LAST_SCAN:-2] * 100 + PROGRESSIVE[-2:], "more than 100 sc"),
    ],
    ids=["png", "jpeg", "png parts", "jpeg parts", "filling", "starts", "avif parts", "scans"],
)
def test_a_second_header_and_endless_parts_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(DamagedImage, match=message):
        load(data, SMALL)


def test_the_larger_a_jpeg_is_the_fewer_scans_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = PROGRESSIVE.count(b"\xff\xda")
    name = "florilege.models.images.headers.MOST_SCANNED_PIXELS"
    monkeypatch.setattr(name, scans * 64 * 48)
    assert load(PROGRESSIVE, SMALL).shape == (32, 32, 3)
    monkeypatch.setattr(name, scans * 64 * 48 - 1)
    with pytest.raises(DamagedImage, match=f"more than {scans - 1} scans"):
        load(PROGRESSIVE, SMALL)
    monkeypatch.setattr(name, 1)
    assert load(ENCODED["jpeg"], SMALL).shape == (32, 32, 3)  # every picture has one


def test_scans_are_counted_wherever_they_begin() -> None:
    generator = np.random.default_rng(0)
    for length in (1, 2, 3, 4, 257, 258):
        data = generator.choice([0x00, 0xDA, 0xFF], length).astype(np.uint8).tobytes()
        for start in range(length):
            assert _scans(data, start) == data.count(b"\xff\xda", start)


@pytest.mark.parametrize(
    ("name", "data", "count", "message"),
    [
        ("MAX_BYTES", ENCODED["png"], len(ENCODED["png"]), "at most {} are allowed"),
        ("MOST_PARTS", inserted("png", chunk(b"abCd", b"") * 3), 5, "more than {} parts"),
        ("MOST_SCANS", PROGRESSIVE, PROGRESSIVE.count(b"\xff\xda"), "more than {} scans"),
    ],
    ids=["bytes", "parts", "scans"],
)
def test_the_limit_of_a_file_is_exact(
    monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, count: int, message: str
) -> None:
    limits = "florilege.models.images.headers"
    limits = limits.replace("headers", "boxes") if name == "MOST_PARTS" else limits
    monkeypatch.setattr(f"{limits}.{name}", count)
    assert load(data, SMALL).shape == (32, 32, 3)
    monkeypatch.setattr(f"{limits}.{name}", count - 1)
    with pytest.raises(ImageError, match=message.format(count - 1)) as caught:
        load(data, SMALL)
    assert isinstance(caught.value, OversizedImage if name == "MAX_BYTES" else DamagedImage)
    assert getattr(caught.value, "limit", count - 1) == count - 1


def test_running_out_of_memory_is_not_called_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(self: ImageFile.ImageFile) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", exhausted)
    with pytest.raises(OversizedImage, match="memory"):
        load(ENCODED["png"], SMALL)


def test_pillows_own_limit_does_not_leak() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((OversizedImage, DamagedImage)):  # the latter before Pillow 13
            load(with_size("webp", 16383, 16383), SMALL, max_pixels=10**9)
        with pytest.raises(DamagedImage):
            load(with_size("webp", 10_000, 10_000), SMALL, max_pixels=10**9)


# JPEGs without an end --------------------------------------------------------------------------

ENDLESS = {
    "plain": {},
    "optimised": {"optimize": True, "quality": 50},
    "progressive": {"progressive": True},
    "full colours": {"subsampling": 0, "quality": 97},
    "restarts": {"restart_marker_rows": 1},
    "many restarts": {"restart_marker_blocks": 2, "quality": 30},
}


@pytest.mark.parametrize("options", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("picture", [scene(100, 70), noise(70, 60), scene(90, 50).convert("L")])
def test_a_jpeg_without_its_end_marker_is_read_and_one_without_a_row_is_not(
    picture: Image.Image, options: dict[str, Any]
) -> None:
    data = encode(picture, "jpeg", **options)
    whole = load(data, SMALL)
    assert data.endswith(b"\xff\xd9")
    for missing in (1, 2):
        header = read_header(data[:-missing])
        assert (header.endless, header.shrinks) == (True, False)
        assert np.array_equal(load(header, SMALL), whole)
    header = read_header(data + b"what a phone appends")
    assert not header.endless
    assert np.array_equal(load(header, SMALL), whole)
    for missing in range(3, len(data) - data.rindex(b"\xff\xda"), 7):
        try:
            assert np.array_equal(load(data[:-missing], SMALL), whole)  # the last byte was padding
        except DamagedImage:
            continue


def test_a_jpeg_that_lacks_its_last_rows_is_damage() -> None:
    data = encode(noise(64, 64), "jpeg")
    for missing in (40, 400, 1000):
        with pytest.raises(DamagedImage, match="before its last row"):
            load(data[:-missing], SMALL)


# Hostile bytes ---------------------------------------------------------------------------------


def outcome(data: bytes) -> str:
    """`read` or the code of the error; any other exception fails the test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            load(data, SMALL, max_pixels=100_000)
            result = "read"
        except ImageError as error:
            result = error.code
    assert [str(warning.message) for warning in caught] == []
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_picture_is_damaged_or_whole(kind: str) -> None:
    whole = load(ENCODED[kind], SMALL)
    refused = 0
    for length in {*range(24, len(ENCODED[kind]), max(1, len(ENCODED[kind]) // 150))}:
        try:
            assert difference(load(ENCODED[kind][:length], SMALL), whole) == 0
        except DamagedImage:
            refused += 1
    assert refused > 100


@given(
    magic=st.sampled_from([data[:40] for data in ENCODED.values()]),
    keep=st.just(0) | st.integers(3, 40),
    rest=st.binary(max_size=300),
)
@settings(deadline=None, max_examples=350)
def test_random_bytes_alone_or_after_a_true_beginning_never_raise_anything_else(
    magic: bytes, keep: int, rest: bytes
) -> None:
    refused = {"unsupported_image_type", "image_unreadable"}
    assert outcome(magic[:keep] + rest) in (refused | {"image_too_large"} if keep else refused)


CARRYING = {kind: encode(scene(40, 24), kind, exif=exif_with_orientation(6)) for kind in KINDS} | {
    "animation": encode(
        noise(24, 24), "webp", save_all=True, append_images=[noise(24, 24, 1)], lossless=True
    ),
    "apng": encode(noise(24, 24), "png", save_all=True, append_images=[noise(24, 24, 1)]),
    "palette": encode(noise(24, 24).quantize(8), "png", transparency=3),
    "progressive": encode(scene(40, 24), "jpeg", progressive=True),
    "cmyk": encode(Image.new("CMYK", (40, 24), (9, 99, 9, 0)), "jpeg"),
}


@pytest.mark.parametrize("name", CARRYING)
@given(edits=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=5)), max_size=6))
@example(edits=[])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutated_picture_never_raises_anything_else(
    name: str, edits: list[tuple[float, bytes]]
) -> None:
    data = bytearray(CARRYING[name])
    for place, replacement in edits:
        at = int(place * (len(data) - 1))
        data[at : at + len(replacement)] = replacement
    result = outcome(bytes(data))
    assert result == "read" or edits


def test_exif_that_pillow_would_warn_about_is_read_in_silence() -> None:
    broken = b"Exif\0\0II*\0\x08\0\0\0\x02\0" + b"\x0f\x01\x02\0\xff\xff\0\0\xff\xff\xff\x00" * 2
    for kind in KINDS:
        assert outcome(encode(scene(40, 24), kind)) == "read"
    plain = encode(scene(40, 24), "jpeg")
    segment = b"\xff\xe1" + struct.pack(">H", len(broken) + 2) + broken
    assert outcome(plain[:2] + segment + plain[2:]) == "read"
    whole = b"II*\0\x08\0\0\0" + bytes(40)  # no tags
    for kind in ("heic", "avif"):
        data = encode(scene(40, 24), kind, exif=b"Exif\0\0" + whole)
        assert data.count(whole) == 1
        assert outcome(data.replace(whole, broken[6:].ljust(len(whole), b"\0"))) == "read"


# Threads and state -----------------------------------------------------------------------------


def test_many_threads_get_the_same_pixels_and_change_nothing_in_pillow() -> None:
    before = (dict(Image.OPEN), Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    jobs = 6 * list(KINDS)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda kind: load(ENCODED[kind], SMALL), jobs))
    for kind, result in zip(jobs, results, strict=True):
        assert np.array_equal(result, load(ENCODED[kind], SMALL))
    assert (dict(Image.OPEN), Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == before


# Preprocess ------------------------------------------------------------------------------------


def test_preprocess_survives_the_round_trip() -> None:
    one = Preprocess(
        image_size=48, crop_fraction=0.875, resample="bicubic", mean=(0.1, 0.2, 0.3), std=(1, 2, 3)
    )
    assert read_json(Preprocess, one.to_json(), "preprocess.json") == one
    assert '"image_size": 48' in one.to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"image_size": 0},
        {"image_size": 4097},
        {"image_size": 48.0},
        {"image_size": True},
        {"crop_fraction": 0.0},
        {"crop_fraction": 1e-320},  # 1 / 1e-320 is no number
        {"crop_fraction": 1.1},
        {"resample": "nearest"},
        {"mean": (0.0, 0.0)},
        {"mean": (0.0, 0.0, float("nan"))},
        {"std": (1.0, 1.0, 0.0)},
        {"reducing_gap": 0.9},
        {"reducing_gap": 8.1},
        {"reducing_gap": float("nan")},
    ],
)
def test_preprocess_refuses_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Preprocess(**{"image_size": 9, **wrong})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "invalid JSON"),
        ("[]", "input should be an object"),
        ("{}", "image_size: field required"),
        ('{"image_size": "9"}', "image_size: input should be a valid integer, got '9'"),
        ('{"image_size": 9, "gamma": 1}', "unknown key 'gamma'; .* upgrade florilege"),
    ],
)
def test_a_damaged_or_newer_preprocess_file_is_named(text: str, fault: str) -> None:
    with pytest.raises(BundleError, match=rf"preprocess\.json is damaged: {fault}"):
        read_json(Preprocess, text, "preprocess.json")

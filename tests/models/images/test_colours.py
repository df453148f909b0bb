"""Colours are sRGB, whatever profile a picture carries; a profile does no harm."""

import io
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageCms

from florilege.models.images import Preprocess, decode, load, plain_jpeg, read_header
from florilege.models.images.colours import (
    MOST_BYTES,
    _profile_of_codes,
    _transform,
    profile_of_boxes,
    profile_of_png,
    to_srgb,
)
from tests.models.images.containers import Made, coded_item, container, grid_content
from tests.models.pictures import KINDS, chunk, difference, encode, noise, scene

WHOLE = Preprocess(image_size=64)
P3, BT2020, SRGB_CURVE, PQ = 12, 9, 13, 16
DISPLAY_P3 = _profile_of_codes(P3, SRGB_CURVE)
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
# Red, green, blue and white of a screen as x and y of CIE 1931; D65 is the white of all.
CHROMATICITIES = {
    "srgb": ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06)),
    P3: ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06)),
    BT2020: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046)),
}


def to_xyz(name: str | int) -> npt.NDArray[np.float64]:
    """The matrix from linear colours to XYZ, from the chromaticities (SMPTE RP 177)."""
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in CHROMATICITIES[name]]).T
    white = np.array([0.3127 / 0.3290, 1, (1 - 0.3127 - 0.3290) / 0.3290])
    return np.asarray(columns * np.linalg.solve(columns, white))


def oracle(pixels: npt.NDArray[np.uint8], primaries: int) -> npt.NDArray[np.float64]:
    """Colours of other primaries in sRGB, in float64 and without any profile."""
    values = pixels / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    matrix = np.linalg.solve(to_xyz("srgb"), to_xyz(primaries))
    linear = np.clip(linear @ matrix.T, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(255 * encoded)


@pytest.mark.parametrize("primaries", [P3, BT2020])
def test_colours_are_converted_as_their_definition_says(primaries: int) -> None:
    image = noise(64, 64)
    data = encode(image, "png", icc_profile=_profile_of_codes(primaries, SRGB_CURVE))
    expected = oracle(np.asarray(image), primaries)
    assert np.abs(load(data, WHOLE) - expected).max() < 1.6
    assert np.abs(np.asarray(image) - expected).max() > 50
    assert np.abs(np.asarray(decode(data, target=64)) - expected).max() < 1.6


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_carries_a_profile(kind: str) -> None:
    image = scene(64, 64)
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {"quality": 95}
    data = encode(image, kind, icc_profile=DISPLAY_P3, **options)
    assert read_header(data).profile == DISPLAY_P3
    assert np.abs(load(data, WHOLE) - oracle(np.asarray(image), P3)).mean() < 3
    assert np.abs(np.asarray(image) - oracle(np.asarray(image), P3)).mean() > 8


def test_a_jpeg_may_carry_its_profile_in_parts() -> None:
    plain = encode(scene(64, 64), "jpeg")
    pieces = [DISPLAY_P3[:200], DISPLAY_P3[200:300], DISPLAY_P3[300:]]
    parts = [b"ICC_PROFILE\0" + bytes([n + 1, 3]) + piece for n, piece in enumerate(pieces)]
    segments = [b"\xff\xe2" + struct.pack(">H", len(part) + 2) + part for part in reversed(parts)]
    assert read_header(plain[:2] + b"".join(segments) + plain[2:]).profile == DISPLAY_P3


@pytest.mark.parametrize("kind", ["avif", "heic"])
@pytest.mark.parametrize(
    "colours",
    [
        b"prof" + DISPLAY_P3,
        b"rICC" + DISPLAY_P3,
        b"nclx" + struct.pack(">HHHB", P3, SRGB_CURVE, 6, 128),
    ],
)
@pytest.mark.parametrize("of_tiles", [None, False, True])
def test_boxes_carry_a_profile_or_codes(kind: str, colours: bytes, of_tiles: bool | None) -> None:
    item = coded_item(kind, 64, 64)
    kept = [each for each in item.properties if each[0] in (b"av1C", b"hvcC", b"pixi")]
    colour = [(b"colr", colours)]
    tile = Made(item.type, bytes(item.content), (64, 64), more=[*kept, *colour])
    items = [tile]
    if of_tiles is not None:
        pixi = [each for each in kept if each[0] == b"pixi"]
        content = grid_content(1, 1, 64, 64)
        grid = Made(b"grid", content, (64, 64), parts=[2], more=[*pixi, *colour])
        if of_tiles:
            grid.more = pixi
        else:
            tile.more = kept
        items = [grid, tile]
    assert read_header(container(kind.encode(), items)).profile == DISPLAY_P3


def test_codes_of_a_png_come_before_its_profile() -> None:
    data = encode(noise(64, 64), "png", icc_profile=SRGB)
    coded = data[:33] + chunk(b"cICP", bytes([P3, SRGB_CURVE, 0, 1])) + data[33:]
    assert read_header(coded).profile == DISPLAY_P3


@pytest.mark.parametrize("codes", [(1, 13), (2, 2), (P3, PQ), (0, 0), (BT2020, 18)])
def test_other_codes_convert_nothing(codes: tuple[int, int]) -> None:
    assert _profile_of_codes(*codes) == b""
    assert profile_of_boxes([b"nclx" + struct.pack(">HHHB", *codes, 6, 128)]) == b""


def srgb_with_rounded_curves(gamma: float | None = None) -> bytes:
    """Like the small profiles that some services write: a table of 26 points for each curve."""
    points = np.linspace(0, 1, 26)
    linear = np.where(points <= 0.04045, points / 12.92, ((points + 0.055) / 1.055) ** 2.4)
    linear = linear if gamma is None else points**gamma
    table = struct.pack(">4sII26H", b"curv", 0, 26, *np.rint(65535 * linear).astype(int))
    columns = [(0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.7141)]
    contents = [
        b"XYZ " + struct.pack(">I3i", 0, *(round(65536 * value) for value in column))
        for column in columns
    ] + [table]
    profile, at = DISPLAY_P3[:132], 132 + 72
    for name, place in zip("rgb", range(3), strict=True):
        profile += struct.pack(">4sII", f"{name}XYZ".encode(), at + 20 * place, 20)
    for name in "rgb":
        profile += struct.pack(">4sII", f"{name}TRC".encode(), at + 60, len(table))
    profile += b"".join(contents)
    return struct.pack(">I", len(profile)) + profile[4:]


@pytest.mark.parametrize("profile", [SRGB, srgb_with_rounded_curves()], ids=["whole", "rounded"])
def test_a_profile_of_srgb_changes_no_pixel(profile: bytes) -> None:
    image = noise(64, 64)
    data = encode(image, "png", icc_profile=profile)
    assert read_header(data).profile == profile
    assert np.array_equal(load(data, WHOLE), np.asarray(image))


@pytest.mark.parametrize(("gamma", "least", "most"), [(2.0, 5, 40), (1.0, 60, 255)])
def test_a_small_difference_from_srgb_counts(gamma: float, least: int, most: int) -> None:
    image = noise(64, 64)
    data = encode(image, "png", icc_profile=srgb_with_rounded_curves(gamma))
    assert least < difference(load(data, WHOLE), np.asarray(image)) < most


def a_profile_of(kind: str) -> bytes:
    return DISPLAY_P3[:16] + kind.encode() + DISPLAY_P3[20:]


USELESS = {
    "empty": b"",
    "cut": DISPLAY_P3[:140],
    "cut curves": DISPLAY_P3[:-40],
    "grey": a_profile_of("GRAY"),
    "ink": a_profile_of("CMYK"),
    "lab": a_profile_of("Lab "),
    "lab itself": ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes(),
    "text": b"RGB " * 200,
    "zeros": DISPLAY_P3[:128] + bytes(300),
    "many tags": DISPLAY_P3[:128] + b"\xff" * 300,
    "huge": DISPLAY_P3 + bytes(MOST_BYTES),
}


@pytest.mark.parametrize("profile", USELESS.values(), ids=USELESS)
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_a_profile_that_cannot_be_used_is_ignored(profile: bytes, kind: str) -> None:
    image = noise(64, 64)
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
    data = encode(image, kind, icc_profile=profile, **options)
    assert np.array_equal(load(data, WHOLE), np.asarray(image))


@pytest.mark.parametrize("profile", [DISPLAY_P3 + bytes(MOST_BYTES), b"CMYK" * 200])
def test_a_profile_that_is_not_used_is_not_kept_in_memory(profile: bytes) -> None:
    image = noise(64, 64)
    before = _transform.cache_info()
    assert to_srgb(image, profile) is image
    assert _transform.cache_info() == before


@pytest.mark.parametrize("mode", ["L", "LA", "CMYK", "I;16", "1"])
def test_pictures_of_other_colours_are_not_converted(mode: str) -> None:
    image = Image.new(mode, (64, 64), 1 if mode == "1" else 100 if mode == "L" else 0)
    kind = "jpeg" if mode == "CMYK" else "png"
    plain = load(encode(image, kind), WHOLE)
    profile = srgb_with_rounded_curves(1.0)  # of RGB, so that it says nothing about these
    assert np.array_equal(load(encode(image, kind, icc_profile=profile), WHOLE), plain)


@pytest.mark.parametrize("mode", ["RGBA", "P"])
def test_palettes_and_pictures_with_transparency_are_converted(mode: str) -> None:
    colours = Image.new("RGB", (64, 64), (200, 40, 90))
    image = colours.quantize(4) if mode == "P" else colours.convert(mode)
    expected = oracle(np.full((64, 64, 3), (200, 40, 90), np.uint8), P3)
    pixels = load(encode(image, "png", icc_profile=DISPLAY_P3), WHOLE)
    assert np.abs(pixels - expected).max() < 3


def test_a_packed_profile_is_not_unpacked_without_end() -> None:
    assert profile_of_png(b"name\0\0" + zlib.compress(DISPLAY_P3), b"") == DISPLAY_P3
    assert profile_of_png(b"name\0\0" + zlib.compress(bytes(MOST_BYTES)), b"") == bytes(MOST_BYTES)
    assert profile_of_png(b"name\0\0" + zlib.compress(bytes(MOST_BYTES + 1)), b"") == b""
    assert profile_of_png(b"name\0\0" + zlib.compress(bytes(10**8), 9), b"") == b""
    assert profile_of_png(b"name\0\0not packed", b"") == b""
    assert profile_of_png(b"no end of its name", b"") == b""


def test_a_curve_may_be_a_long_table() -> None:
    points = 30_000  # Little CMS reads no longer one
    ramp = np.linspace(0, 65535, points).astype(">u2").tobytes()
    curve = struct.pack(">4sII", b"curv", 0, points) + ramp
    profile = bytearray(DISPLAY_P3 + curve)
    for at in (132 + 12 * place for place in range(3, 6)):
        profile[at + 4 : at + 12] = struct.pack(">II", len(DISPLAY_P3), len(curve))
    profile[:4] = struct.pack(">I", len(profile))
    image = noise(64, 64)
    pixels = load(encode(image, "png", icc_profile=bytes(profile)), WHOLE)
    assert difference(pixels, np.asarray(image)) > 50


def test_many_threads_convert_alike() -> None:
    data = [encode(noise(64, 64, seed), "png", icc_profile=DISPLAY_P3) for seed in range(6)]
    expected = [load(each, WHOLE) for each in data]
    _transform.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda each: load(each, WHOLE), 8 * data))
    assert all(map(np.array_equal, results, 8 * expected))


def test_a_stored_photo_shows_the_same_colours_without_a_profile() -> None:
    image = Image.new("RGB", (64, 64), (200, 40, 90))
    stored = plain_jpeg(encode(image, "png", icc_profile=DISPLAY_P3), side=64, quality=95)
    assert "icc_profile" not in Image.open(io.BytesIO(stored)).info
    expected = oracle(np.asarray(image), P3)
    assert np.abs(load(stored, WHOLE) - expected).max() < 4
    assert difference(load(stored, WHOLE), load(encode(image, "png"), WHOLE)) > 10

"""Read the size and orientation of a picture from its header, before decoding anything.

Each reader also returns the bytes for the decoder: the same picture without text, EXIF, thumbnails
and animation control. Nothing in them can make a decoder warn, unpack a compressed comment or
trust a second header.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

import numpy as np

from florilege.models.images.boxes import Item, PartCounter, boxes, read_items
from florilege.models.images.colours import profile_of_boxes, profile_of_png
from florilege.models.images.item_sizes import PICTURES, largest_size
from florilege.models.images.sniff import DamagedImage, Kind, OversizedImage, sniff

MAX_BYTES: Final = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a picture."""

    kind: Kind  # detected from the bytes
    width: int  # in pixels, as stored: before the orientation is applied
    height: int
    orientation: int | None  # EXIF's, 1 to 8; None if only the decoder can tell (HEIC, AVIF)
    pixels: bytes  # input of the decoder
    shrinks: bool = False  # a JPEG in one scan, which shrinks while it is decoded
    profile: bytes = b""  # ICC, of the colours; empty for sRGB
    more_pixels: int = 0  # so many take as much memory as the tables of a lossless WebP may
    endless: bool = False  # a JPEG without its end marker, which may lack rows, too


def read_header(data: bytes) -> Header:
    """Read the header of an encoded picture.

    Raises:
        OversizedImage: The picture has more than 100 MB.
        UnsupportedImage: The type is not accepted.
        DamagedImage: The header is truncated or contradicts itself.
    """
    if len(data) > MAX_BYTES:
        raise OversizedImage(f"{len(data)} bytes; at most {MAX_BYTES} are allowed", limit=MAX_BYTES)
    kind = sniff(data)
    try:
        header = _READERS[kind](data)
    except (struct.error, IndexError) as error:
        raise DamagedImage(f"the {kind} header is cut short") from error
    if header.width < 1 or header.height < 1:
        raise DamagedImage(f"the {kind} header says {header.width} x {header.height} pixels")
    return header


# EXIF orientation ------------------------------------------------------------------------------

_ORIENTATION: Final = 0x0112
_SHORT: Final = 3


def orientation(exif: bytes) -> int:
    """Orientation tag of an EXIF block, 1 to 8; 1 (upright) if it is missing or damaged.

    ``exif`` is a TIFF structure, with or without the leading ``Exif\\0\\0``. Only its first
    directory is read; Pillow's own reader warns about irrelevant tags.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4], "")
    try:
        return _first_directory_orientation(tiff, order) if order else 1
    except struct.error:  # an offset past the end
        return 1


def _first_directory_orientation(tiff: bytes, order: str) -> int:
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    for at in range(start + 2, start + 2 + 12 * entries, 12):
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, at)
        if tag == _ORIENTATION:
            valid = kind == _SHORT and count == 1 and 1 <= value <= 8
            return int(value) if valid else 1
    return 1


# JPEG ----------------------------------------------------------------------------------------

# Without DHT, JPG and DAC, which lie between them (ITU-T T.81, table B.1).
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0 to SOF15
_SEQUENTIAL: Final = (0xC0, 0xC1)
# TEM, RSTm and SOI (ITU-T T.81, table B.1), a byte of data that follows FF, and FF as a fill byte.
_NO_LENGTH: Final = frozenset((0x00, 0x01, *range(0xD0, 0xD9), 0xFF))  # markers without a length
_START_OF_SCAN: Final = 0xDA
_END: Final = 0xD9
_END_MARKER: Final = b"\xff\xd9"
_EXIF: Final = 0xE1
_ICC: Final = 0xE2
_DROPPED: Final = _NO_LENGTH | {*range(0xE1, 0xEE), 0xEF, 0xFE}  # APPn but JFIF, Adobe; comments
MOST_SCANS: Final = 100  # photos have up to about 20
MOST_SCANNED_PIXELS: Final = 1_000_000_000
"""Of all scans together: each costs a pass over all pixels, empty ones about a nanosecond each."""


def _read_jpeg(data: bytes) -> Header:
    segments = list(PartCounter()(_segments(data)))
    frame, at = _only_frame(segments)
    height, width = struct.unpack_from(">HH", data, at + 5)
    scan = segments[-1][2]
    _check_scans(data, scan, width * height)
    exif = _marked(data, segments, _EXIF, b"Exif\0\0")
    profile = _marked(data, segments, _ICC, b"ICC_PROFILE\0")
    parts = [data[start:end] for marker, start, end in segments if marker not in _DROPPED]
    pixels = b"".join((b"\xff\xd8", *parts, memoryview(data)[scan:]))
    # Anywhere after the first scan: phones append films and depth maps behind the end.
    endless = data.rfind(_END_MARKER, scan) < 0
    return Header(
        kind="jpeg",
        width=width,
        height=height,
        # Only the first segment: a block above 64 KB continues in others, which have no mark of it.
        orientation=orientation(exif[0]) if exif else 1,
        pixels=pixels,
        # Of one that is in several scans, the decoder keeps the coefficients of the whole picture:
        # six bytes a pixel. Without an end it is decoded twice.
        shrinks=frame in _SEQUENTIAL and data[scan + 4] == data[at + 9] and not endless,
        # A large profile has several parts, each with its number and their count before it.
        profile=b"".join(part[2:] for part in sorted(profile, key=lambda part: part[:1])),
        endless=endless,
    )


_Segment = tuple[int, int, int]  # marker, start and end


def _only_frame(segments: Sequence[_Segment]) -> tuple[int, int]:
    """Marker and start of the frame header."""
    frames = [(marker, start) for marker, start, _ in segments if marker in _FRAMES]
    if len(frames) != 1:
        raise DamagedImage(f"the jpeg has {'two frame headers' if frames else 'no frame header'}")
    return frames[0]


def _marked(
    data: bytes, segments: Sequence[_Segment], marker: int, beginning: bytes
) -> list[bytes]:
    """What follows a beginning in each segment that has it."""
    size = 4 + len(beginning)
    return [
        data[start + size : end]
        for name, start, end in segments
        if name == marker and data.startswith(beginning, start + 4)
    ]


def _check_scans(data: bytes, start: int, pixels: int) -> None:
    most = min(MOST_SCANS, MOST_SCANNED_PIXELS // max(1, pixels))
    if _scans(data, start) > max(1, most):
        raise DamagedImage(f"the jpeg has more than {most} scans: save it again")


def _scans(data: bytes, start: int) -> int:
    """The number of scans after ``start``; `bytes.count` takes seven times as long."""
    pairs = (np.frombuffer(data, "<u2", (len(data) - at) // 2, at) for at in (start, start + 1))
    return sum(int(np.count_nonzero(pair == 0xDAFF)) for pair in pairs)


def _segments(data: bytes) -> Iterator[_Segment]:
    """Marker, start and end of each header segment, up to the first scan."""
    at = 2
    while True:
        at = data.find(b"\xff", at)
        if at < 0 or at + 1 >= len(data):
            raise DamagedImage("the jpeg ends before its first scan")
        marker = data[at + 1]
        if marker in _NO_LENGTH:
            # Any number of FF may stand before a marker (ITU-T T.81, B.1.1.2).
            end = at + (1 if marker == 0xFF else 2)
            yield marker, at, end
            at = end
            continue
        if marker == _START_OF_SCAN:
            return
        (length,) = struct.unpack_from(">H", data, at + 2)
        end = at + 2 + length
        if marker == _END or length < 2 or end > len(data):
            raise DamagedImage("the jpeg ends before its first scan")
        yield marker, at, end
        at = end


# PNG -----------------------------------------------------------------------------------------

_KEPT_CHUNKS: Final = frozenset((b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_TRUE_COLOUR: Final = 2


def _read_png(data: bytes) -> Header:
    length, name, width, height, depth, colour = struct.unpack_from(">I4sIIBB", data, 8)
    if name != b"IHDR" or length != 13:
        raise DamagedImage("the png does not start with its header")
    # The signature and the header chunk.
    parts, places = [data[:33]], dict[bytes, slice]()
    for name, start, end in PartCounter()(_chunks(data, 33)):
        # Pillow truncates 16-bit colours to 8 bits before it compares them with this key.
        colour_key = name == b"tRNS" and colour == _TRUE_COLOUR and depth == 16
        if name == b"IHDR":
            raise DamagedImage("the png has two headers")
        places[name] = slice(start + 8, end - 4)
        if name in _KEPT_CHUNKS and not colour_key:
            parts.append(data[start:end])

    def content(name: bytes) -> bytes:
        return data[places[name]] if name in places else b""

    return Header(
        kind="png",
        width=width,
        height=height,
        orientation=orientation(content(b"eXIf")),
        pixels=b"".join(parts),
        profile=profile_of_png(content(b"iCCP"), content(b"cICP")),
    )


def _chunks(data: bytes, at: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of each chunk; the last may be truncated."""
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        end = min(at + 12 + length, len(data))
        yield name, at, end
        if name == b"IEND":
            return
        at = end


# WebP ----------------------------------------------------------------------------------------

# A lossless picture or transparency may have a group of codes for each 4 x 4 pixels, written in
# 20 bits or more. The tables of a group take 5.6 KB, at 16 bytes a pixel, and 50 times its length.
_LOSSLESS: Final = (b"VP8L", b"ALPH")
_MOST_GROUPS: Final = 65536
_GROUP_BITS: Final = 20
_GROUP_PIXELS: Final = 350
_BYTE_PIXELS: Final = 3


def _read_webp(data: bytes) -> Header:
    width, height = _webp_size(data)
    turn, profile = 1, b""
    for name, start, end in PartCounter()(_riff_chunks(data)):
        if name == b"EXIF":
            turn = orientation(data[start:end])
        elif name == b"ICCP":
            profile = data[start:end]
    blocks = -(-width // 4) * -(-height // 4)
    groups = min(_MOST_GROUPS, blocks, 8 * len(data) // _GROUP_BITS)
    is_lossless = any(name in data for name in _LOSSLESS)  # also in an animation
    return Header(
        kind="webp",
        width=width,
        height=height,
        orientation=turn,
        pixels=data,
        profile=profile,
        more_pixels=is_lossless * (_GROUP_PIXELS * groups + _BYTE_PIXELS * len(data)),
    )


def _webp_size(data: bytes) -> tuple[int, int]:
    name = data[12:16]
    if name == b"VP8X":
        # The canvas, less one, in 24 bits (RFC 9649, section 2.7); it holds every frame.
        low_w, high_w, low_h, high_h = struct.unpack_from("<HBHB", data, 24)
        return (high_w << 16 | low_w) + 1, (high_h << 16 | low_h) + 1
    if name == b"VP8L":
        # 14 bits each, less one, after the signature of lossless pictures.
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if name == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        # The two bits above ask for scaling, which decoders leave to others (RFC 6386, section
        # 9.1).
        return width & 0x3FFF, height & 0x3FFF
    raise DamagedImage("the webp does not start with a picture")


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of the content of each chunk."""
    at = 12
    while at + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, at)
        yield name, at + 8, min(at + 8 + length, len(data))
        # A chunk of odd length is followed by a byte of padding.
        at += 8 + length + length % 2


# HEIC and AVIF ---------------------------------------------------------------------------------


_HEIC_PICTURES: Final = frozenset((b"hvc1", b"grid", b"iden", b"iovl"))
_KEPT_BOXES: Final = frozenset((b"meta", b"mdat"))
# By that of animations and films: whoever reads one demands its tables.
_STILL_BRANDS: Final = {b"avis": b"avif", **dict.fromkeys((b"msf1", b"isom", b"mp41"), b"mif1")}


def _read_items(data: bytes, kind: Kind) -> Header:
    """Read the size of the largest picture."""
    count = PartCounter()
    items, primary = read_items(data, count)
    width, height = largest_size(items, count)
    return Header(
        kind=kind,
        width=width,
        height=height,
        orientation=None,
        pixels=_still_pictures(data, items, kind),
        profile=_profile_of_items(items, primary),
    )


def _still_pictures(data: bytes, items: Mapping[int, Item], kind: Kind) -> bytes:
    """The file without texts, EXIF, which could rotate a picture, and animations.

    The decoder of HEIC copies each text for each picture that it describes, and takes for one what
    it cannot decode. Both decoders read the tables of an animation, for seconds or into much
    memory. All bytes keep their places.
    """
    pixels = bytearray(data)
    for box in boxes(data, 0, len(data)):
        if box.name == b"ftyp":
            pixels[box.start : box.end] = _still_brands(data[box.start : box.end])
        elif box.name not in _KEPT_BOXES:
            pixels[box.name_at : box.name_at + 4] = b"free"
    for item in items.values():
        if kind == "heic" and item.entry_at and item.type not in _HEIC_PICTURES:
            pixels[item.entry_at : item.entry_at + 4] = b"free"
        elif item.type_at and item.type not in PICTURES:  # that of AVIF wants all entries
            pixels[item.type_at : item.type_at + 4] = b"skip"
    return bytes(pixels)


def _still_brands(brands: bytes) -> bytes:
    words = (brands[at : at + 4] for at in range(0, len(brands), 4))
    return b"".join(_STILL_BRANDS.get(word, word) for word in words)


def _profile_of_items(items: Mapping[int, Item], primary: int) -> bytes:
    """The profile of the picture that is shown, or of the first part of it that has one."""
    item = items.get(primary, Item())
    pictures = (item, *(items.get(part, Item()) for part in item.parts))
    properties = chain.from_iterable(picture.properties for picture in pictures)
    return profile_of_boxes([content for name, content in properties if name == b"colr"])


_READERS: Final[dict[Kind, Callable[[bytes], Header]]] = {
    "jpeg": _read_jpeg,
    "png": _read_png,
    "webp": _read_webp,
    "heic": partial(_read_items, kind="heic"),
    "avif": partial(_read_items, kind="avif"),
}

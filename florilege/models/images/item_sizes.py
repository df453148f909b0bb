"""Measure the pictures of a HEIC or AVIF file as their decoder allocates them.

A file says a size up to three times: in the property ``ispe`` of an item, in the canvas of a
derived picture, and in the stream of the codec. Decoders allocate by the last two before they
compare, if they compare at all.
"""

import struct
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from florilege.models.images.boxes import Item, PartCounter
from florilege.models.images.sniff import DamagedImage

Size = tuple[int, int]  # width and height in pixels
Stream = bytes | memoryview

MOST_FRAMES: Final = 4
"""Of one picture: a decoder keeps them all. Pictures have one, those in layers up to four."""

# Digits of a number less one. Decoders disagree about longer ones, which no encoder writes.
_LONGEST: Final = 20


class _Bits:
    """Reads numbers from bits, the highest first; refuses to read past the end."""

    def __init__(self, data: Stream) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        """The number in the next bits."""
        self._left -= count
        if self._left < 0:
            raise DamagedImage("a header inside the picture is cut short")
        return self._value >> self._left & (1 << count) - 1

    def golomb(self) -> int:
        """A number in Exp-Golomb code (`ue(v)` of HEVC, `uvlc` of AV1)."""
        zeros = 0
        while not self.take(1):
            zeros += 1
            if zeros > _LONGEST:
                raise DamagedImage("a number inside the picture is too long")
        return (1 << zeros) - 1 + self.take(zeros)


# AV1 -----------------------------------------------------------------------------------------

_SEQUENCE: Final = 1
_FRAMES: Final = (3, 6, 7)  # a header of a frame; one with its tiles; one sent again
_HEADER_BYTES: Final = 600  # enough for the fields below with all 32 operating points
_KEY, _SWITCH = 0, 3
_SELECT: Final = 2  # of screen content tools and of integer motion: each frame says it


def _av1_sizes(stream: Stream, count: PartCounter) -> Iterator[Size]:
    """The size of each frame in a stream, at least.

    A frame may have another size than its sequence. The fields that say which come late in its
    header, so such a frame counts with the largest size that they can hold.

    Raises:
        DamagedImage: A header is cut short, or there are more than four frames.
    """
    sequence, frames = None, 0
    for kind, start, end in count(_units(stream)):
        bits = _Bits(stream[start : min(end, start + _HEADER_BYTES)])
        if kind == _SEQUENCE:
            sequence = _Sequence(bits)
        elif kind in _FRAMES and sequence is not None:
            frames += 1
            if frames > MOST_FRAMES:
                raise DamagedImage(f"a picture has more than {MOST_FRAMES} frames")
            yield sequence.largest if sequence.overridden(bits) else sequence.size


def _units(stream: Stream) -> Iterator[tuple[int, int, int]]:
    """Kind, start and end of the content of each open bitstream unit (AV1 specification, 5.3)."""
    at = 0
    while at < len(stream):
        header = stream[at]
        # With an extension; the next bit says whether a size follows.
        at += 2 if header & 4 else 1
        size, shift = len(stream) - at, 0
        if header & 2:
            size, shift = 0, 0
            while True:
                (byte,) = struct.unpack_from("B", stream, at)
                at += 1
                size |= (byte & 127) << shift
                shift += 7
                # `leb128()` has at most eight bytes (4.10.5).
                if byte < 128 or shift > 56:
                    break
        yield header >> 3 & 15, at, min(at + size, len(stream))
        at += size


class _Sequence:
    """What a sequence header says about the sizes of frames (AV1 specification, 5.5)."""

    def __init__(self, bits: _Bits) -> None:
        bits.take(4)  # profile; whether it is a still picture
        self.reduced = bool(bits.take(1))
        self.time_bits, self.id_bits = 0, 0
        self.screen_content = self.integer_motion = _SELECT
        if self.reduced:
            bits.take(5)  # level
        else:
            self._read_timing(bits)
        wide, high = bits.take(4) + 1, bits.take(4) + 1
        self.size = (bits.take(wide) + 1, bits.take(high) + 1)
        self.largest = (1 << wide, 1 << high)
        if not self.reduced:
            self._read_tools(bits)

    def _read_timing(self, bits: _Bits) -> None:
        delay_bits = 0
        if bits.take(1):  # timing
            bits.take(64)
            equal_interval = bits.take(1)
            if equal_interval:
                bits.golomb()
            if bits.take(1):  # decoder model
                delay_bits = bits.take(5) + 1
                bits.take(37)
                time_bits = bits.take(5) + 1
                self.time_bits = 0 if equal_interval else time_bits
        self._skip_operating_points(bits, delay_bits)

    def _skip_operating_points(self, bits: _Bits, delay_bits: int) -> None:
        displays = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            if bits.take(5) > 7:  # level; the higher ones have a tier
                bits.take(1)
            if delay_bits and bits.take(1):
                bits.take(2 * delay_bits + 1)
            if displays and bits.take(1):
                bits.take(4)

    def _read_tools(self, bits: _Bits) -> None:
        if bits.take(1):  # frames have numbers
            delta = bits.take(4) + 2
            self.id_bits = bits.take(3) + delta + 1
        bits.take(7)  # blocks and filters, compound prediction
        if bits.take(1):  # order hints
            bits.take(2)
        self.screen_content = _SELECT if bits.take(1) else bits.take(1)
        if self.screen_content:
            self.integer_motion = _SELECT if bits.take(1) else bits.take(1)

    def overridden(self, frame: _Bits) -> bool:
        """Whether a frame may have another size than its sequence (AV1 specification, 5.9.2)."""
        if self.reduced or frame.take(1):  # shows an earlier frame
            return False
        kind, visible = frame.take(2), frame.take(1)
        frame.take(self.time_bits if visible else 1)
        if (kind, visible) != (_KEY, 1) and kind != _SWITCH:
            frame.take(1)  # resilient to errors
        frame.take(1)
        screen_content = frame.take(1) if self.screen_content == _SELECT else self.screen_content
        if screen_content and self.integer_motion == _SELECT:
            frame.take(1)
        frame.take(self.id_bits)
        return kind == _SWITCH or bool(frame.take(1))


# HEVC ----------------------------------------------------------------------------------------

_PARAMETERS: Final = 33  # a sequence parameter set
_FIRST_NO_SLICE: Final = 32
_LENGTH_BYTES: Final = 4  # before each unit; libheif reads no other


def _hevc_sizes(configuration: bytes, stream: Stream, count: PartCounter) -> Iterator[Size]:
    """The size in each sequence parameter set of a configuration record and of a stream.

    Raises:
        DamagedImage: A header is cut short, there are more than four frames, or the lengths in the
            stream do not have four bytes.
    """
    (lengths,) = struct.unpack_from("B", configuration, 21)
    if lengths & 3 != _LENGTH_BYTES - 1:
        raise DamagedImage("the heic file has an unusual length of units")
    frames = 0
    for unit in count(chain(_configured_units(configuration), _streamed_units(stream))):
        if len(unit) <= 2:
            continue
        kind, layer = unit[0] >> 1 & 63, (unit[0] & 1) << 5 | unit[1] >> 3
        if layer:  # of another view: decoders skip it
            continue
        if kind == _PARAMETERS:
            yield _parameter_size(unit)
        elif kind < _FIRST_NO_SLICE and unit[2] & 128:  # the first slice of a frame
            frames += 1
            if frames > MOST_FRAMES:
                raise DamagedImage(f"a picture has more than {MOST_FRAMES} frames")


def _configured_units(record: bytes) -> Iterator[bytes]:
    """The beginning of each unit in a configuration record (ISO/IEC 14496-15, 8.3.3.1)."""
    at = 23
    for _ in range(record[22] if len(record) > 22 else 0):
        (count,) = struct.unpack_from(">H", record, at + 1)
        at += 3
        for _ in range(count):
            (length,) = struct.unpack_from(">H", record, at)
            yield record[at + 2 : at + 2 + min(length, _HEADER_BYTES)]
            at += 2 + length


def _streamed_units(stream: Stream) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH_BYTES <= len(stream):
        (length,) = struct.unpack_from(">I", stream, at)
        at += _LENGTH_BYTES
        yield bytes(stream[at : at + min(length, _HEADER_BYTES)])
        at += length


def _parameter_size(unit: bytes) -> Size:
    """Size in a sequence parameter set (ITU-T H.265, 7.3.2.2)."""
    # Each third byte after two zeros is there only so that no start code arises.
    bits = _Bits(unit[2:].replace(b"\0\0\3", b"\0\0"))
    bits.take(4)
    layers = bits.take(3)  # less one
    bits.take(1 + 88 + 8)  # profile, tier and level
    present = [(bits.take(1), bits.take(1)) for _ in range(layers)]
    if layers:
        bits.take(2 * (8 - layers))
    for profile, level in present:
        bits.take(88 * profile + 8 * level)
    bits.golomb()
    if bits.golomb() == 3:  # colours at full resolution
        bits.take(1)
    return bits.golomb(), bits.golomb()


PADDING: Final = 64
"""Frames may be nearly so much larger than their picture on each side: codecs fill up blocks."""

MOST_PROPERTIES: Final = 64 * 2**20
"""Bytes of the properties of all items. They may share one, such as a profile, of which the decoder
of HEIC makes a copy for each picture."""
_DEEPEST: Final = 4  # derivations of derivations; a phone that turns a grid makes two
PICTURES: Final = frozenset(b"av01 hvc1 grid iden iovl tmap sato jpeg mski".split())
"""Types of the items that are pictures, not texts about them."""
_CANVAS: Final = {b"grid": 4, b"iovl": 10}  # where the size stands in a description


def largest_size(items: Mapping[int, Item], count: PartCounter) -> Size:
    """Width and height of the largest item, at least of what its decoder allocates.

    Raises:
        DamagedImage: One is of an unknown type, or derived endlessly, or its stream is damaged, or
            properties are too large.
    """
    properties = chain.from_iterable(item.properties for item in items.values())
    if sum(len(content) for _, content in properties) > MOST_PROPERTIES:
        raise DamagedImage("the properties of the file are too large")
    own = {number: _own_size(item, count) for number, item in items.items()}
    whole = dict[int, Size]()
    for number in items:
        _measure(items, number, own, whole, 0)
    return max(whole.values(), key=_area, default=(0, 0))


def _area(size: Size) -> int:
    return size[0] * size[1]


def _measure(
    items: Mapping[int, Item],
    number: int,
    own: Mapping[int, Size],
    whole: dict[int, Size],
    depth: int,
) -> Size:
    """The size of an item; that of its parts if they have more than twice its pixels.

    The parts of an honest grid reach beyond its edges, and those of a small one far. So a grid
    counts as its canvas, unless much more is decoded.
    """
    if number in whole:
        return whole[number]
    if depth > _DEEPEST:
        raise DamagedImage("the file derives pictures from pictures too often")
    size = own.get(number, (0, 0))
    item = items.get(number, Item())
    parts = [_measure(items, part, own, whole, depth + 1) for part in item.parts]
    pixels = sum(map(_area, parts))
    if pixels > 2 * _area(size):
        width = max(part[0] for part in parts)
        size = (width, -(-pixels // width))
    whole[number] = size
    return size


def _own_size(item: Item, count: PartCounter) -> Size:
    stated = [
        struct.unpack_from(">II", data, 4) for name, data in item.properties if name == b"ispe"
    ]
    if stated and item.type not in PICTURES:
        raise DamagedImage("the file has a picture of an unknown type")
    size: Size = max(stated, key=_area, default=(0, 0))
    frames = _frame_sizes(item, count)
    if any(frame[axis] >= size[axis] + PADDING for frame in frames for axis in (0, 1)):
        return max(size, *frames, key=_area)
    return size


def _frame_sizes(item: Item, count: PartCounter) -> list[Size]:
    """What the decoder allocates for the item itself."""
    if item.type == b"av01":
        return list(_av1_sizes(item.content, count))
    if item.type == b"hvc1":
        records = [data for name, data in item.properties if name == b"hvcC"]
        return [size for record in records for size in _hevc_sizes(record, item.content, count)]
    if item.type in _CANVAS:
        wide = item.content[1] & 1
        return [struct.unpack_from(">II" if wide else ">HH", item.content, _CANVAS[item.type])]
    return []

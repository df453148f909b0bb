"""Read the sizes of frames from the streams of AV1 and HEVC, the codecs of AVIF and HEIC.

A decoder allocates frames of these sizes, whatever the file around the stream says.
"""

import struct
from collections.abc import Iterator
from itertools import chain
from typing import Final

from florilege.models.images.parts import PartCounter
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


def av1_sizes(stream: Stream, count: PartCounter) -> Iterator[Size]:
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
        at += 2 if header & 4 else 1
        size, shift = len(stream) - at, 0
        if header & 2:
            size, shift = 0, 0
            while True:
                (byte,) = struct.unpack_from("B", stream, at)
                at += 1
                size |= (byte & 127) << shift
                shift += 7
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


def hevc_sizes(configuration: bytes, stream: Stream, count: PartCounter) -> Iterator[Size]:
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
            if length > 2:
                yield record[at + 2 : at + 2 + min(length, _HEADER_BYTES)]
            at += 2 + length


def _streamed_units(stream: Stream) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH_BYTES <= len(stream):
        (length,) = struct.unpack_from(">I", stream, at)
        at += _LENGTH_BYTES
        unit = bytes(stream[at : at + min(length, _HEADER_BYTES)])
        if len(unit) > 2:
            yield unit
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

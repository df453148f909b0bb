"""Sizes of frames, from streams written bit by bit and from those of real encoders."""

import struct
from typing import Any

import pytest

from florilege.models.images import DamagedImage
from florilege.models.images.boxes import MOST_PARTS, PartCounter
from florilege.models.images.item_sizes import MOST_FRAMES, Size, _av1_sizes, _hevc_sizes
from tests.models.images.containers import coded_item
from tests.models.pictures import encode, scene


class Bits:
    """Writes numbers as bits."""

    def __init__(self) -> None:
        self.text = ""

    def put(self, *fields: tuple[int, int]) -> "Bits":
        """Fields of a value and a number of bits."""
        for value, count in fields:
            self.text += format(value, f"0{count}b") if count else ""
        return self

    def golomb(self, value: int) -> "Bits":
        digits = format(value + 1, "b")
        self.text += "0" * (len(digits) - 1) + digits
        return self

    def bytes(self) -> bytes:
        padded = self.text + "1" + "0" * 400
        padded = padded[: len(padded) // 8 * 8]
        return int(padded, 2).to_bytes(len(padded) // 8, "big")


def unit(kind: int, content: bytes, *, sized: bool = True, extended: bool = False) -> bytes:
    """An open bitstream unit of AV1."""
    start = bytes([kind << 3 | extended << 2 | sized << 1]) + b"\x08" * extended
    length = bytes([len(content) & 127 | 128, len(content) >> 7]) if sized else b""
    return start + length + content


def sequence(
    width: int,
    height: int,
    *,
    digits: int = 16,
    timing: bool = False,
    model: bool = False,
    equal: bool = False,
    ids: bool = False,
    screen: int = 2,
    motion: int = 2,
    hints: bool = True,
) -> bytes:
    """A sequence header that is not reduced, with the optional parts that come before a size."""
    bits = Bits().put((0, 3), (0, 1), (0, 1), (timing, 1))
    if timing:
        bits.put((1, 32), (25, 32), (equal, 1))
        if equal:
            bits.golomb(3)
        bits.put((model, 1))
        if model:
            bits.put((9, 5), (1, 32), (4, 5), (6, 5))
    bits.put((1, 1), (1, 5))
    for level in (5, 9):
        bits.put((0, 12), (level, 5))
        if level > 7:
            bits.put((1, 1))
        if timing and model:
            bits.put((1, 1), (1, 10), (1, 10), (0, 1))
        bits.put((1, 1), (9, 4))
    bits.put((digits - 1, 4), (digits - 1, 4), (width - 1, digits), (height - 1, digits))
    bits.put((ids, 1))
    if ids:
        bits.put((5, 4), (2, 3))
    bits.put((0, 7), (hints, 1))
    if hints:
        bits.put((0, 2))
    bits.put((screen == 2, 1))
    if screen != 2:
        bits.put((screen, 1))
    if screen:
        bits.put((motion == 2, 1))
        if motion != 2:
            bits.put((motion, 1))
    return unit(1, bits.bytes())


def frame(
    override: bool,
    *,
    kind: int = 0,
    shown: bool = True,
    time: int = 0,
    ids: int = 0,
    screen: int = 2,
    motion: int = 2,
    unit_kind: int = 6,
    again: bool = False,
) -> bytes:
    """The beginning of a frame header; ``time`` and ``ids`` are numbers of bits."""
    if again:
        return unit(unit_kind, Bits().put((1, 1)).bytes())
    bits = Bits().put((0, 1), (kind, 2), (shown, 1))
    if shown:
        bits.put((0, time))
    else:
        bits.put((1, 1))
    if not (kind == 3 or (kind == 0 and shown)):
        bits.put((0, 1))
    bits.put((0, 1))
    if screen == 2:
        bits.put((1, 1))
    if screen and motion == 2:
        bits.put((0, 1))
    bits.put((0, ids))
    if kind != 3:
        bits.put((override, 1))
    return unit(unit_kind, bits.bytes())


def sizes(*units: bytes) -> list[Size]:
    return list(_av1_sizes(b"".join(units), PartCounter()))


VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"hints": False}, {}),
    ({"timing": True}, {}),
    ({"timing": True, "model": True}, {"time": 7}),
    ({"timing": True, "model": True, "equal": True}, {}),
    ({"ids": True}, {"ids": 10}),
    ({"screen": 0}, {"screen": 0}),
    ({"screen": 1}, {"screen": 1}),
    ({"screen": 1, "motion": 0}, {"screen": 1, "motion": 0}),
    ({"motion": 1}, {"motion": 1}),
]


@pytest.mark.parametrize(("of_sequence", "of_frame"), VARIANTS)
@pytest.mark.parametrize("shape", [{}, {"shown": False}, {"kind": 2}, {"kind": 1}])
def test_a_frame_has_the_size_of_its_sequence_or_one_that_its_fields_can_hold(
    of_sequence: dict[str, Any], of_frame: dict[str, Any], shape: dict[str, Any]
) -> None:
    if shape.get("shown") is False:
        of_frame = {name: value for name, value in of_frame.items() if name != "time"}
    header = sequence(640, 400, digits=11, **of_sequence)
    assert sizes(header, frame(False, **of_frame, **shape)) == [(640, 400)]
    assert sizes(header, frame(True, **of_frame, **shape)) == [(2048, 2048)]


def test_a_frame_that_switches_may_have_any_size() -> None:
    assert sizes(sequence(64, 48), frame(False, kind=3)) == [(65536, 65536)]


@pytest.mark.parametrize("kind", [3, 6, 7])
def test_every_kind_of_frame_header_is_read(kind: int) -> None:
    assert sizes(sequence(64, 48), frame(False, unit_kind=kind)) == [(64, 48)]


def test_each_frame_has_the_size_of_the_sequence_before_it() -> None:
    shown_again = frame(False, again=True)
    units = [frame(False), sequence(64, 48), frame(False), sequence(99, 9), frame(False)]
    assert sizes(*units, shown_again) == [(64, 48), (99, 9), (99, 9)]


def test_units_may_have_an_extension_and_the_last_no_length() -> None:
    body = frame(False)[3:]
    assert sizes(sequence(64, 48), unit(6, body, extended=True)) == [(64, 48)]
    assert sizes(sequence(64, 48), unit(6, body, sized=False)) == [(64, 48)]
    assert sizes(sequence(64, 48), unit(5, bytes(9)), unit(6, body)) == [(64, 48)]


def test_many_frames_are_refused() -> None:
    assert len(sizes(sequence(64, 48), *[frame(False)] * MOST_FRAMES)) == MOST_FRAMES
    with pytest.raises(DamagedImage, match=f"more than {MOST_FRAMES} frames"):
        sizes(sequence(64, 48), *[frame(False)] * (MOST_FRAMES + 1))


@pytest.mark.parametrize("speed", [6, 10])
@pytest.mark.parametrize("size", [(1, 1), (16, 9), (300, 301), (1024, 17)])
def test_encoders_write_the_size_of_the_picture(size: Size, speed: int) -> None:
    picture = scene(*size)
    for options in ({}, {"save_all": True, "append_images": [picture.rotate(180)]}):
        data = encode(picture, "avif", speed=speed, **options)
        stream = data[data.rindex(b"mdat") + 4 :]
        first = stream if not options else stream[: stream.index(b"\x12\0", 2)]
        assert sizes(first) == [size]


def test_a_number_that_decoders_read_differently_is_refused() -> None:
    header = Bits().put((0, 5), (1, 1), (1, 32), (25, 32), (1, 1), (0, 32))
    with pytest.raises(DamagedImage, match="too long"):
        sizes(unit(1, header.bytes()))
    with pytest.raises(DamagedImage, match="cut short"):
        sizes(unit(1, b"\0"))


# HEVC ------------------------------------------------------------------------------------------


def parameters(width: int, height: int, *, layers: int = 0, chroma: int = 1) -> bytes:
    bits = Bits().put((0x4201, 16), (0, 4), (layers, 3), (1, 1), (0, 88), (90, 8))
    bits.put(*[(1, 1), (1, 1)] * layers)
    if layers:
        bits.put((0, 2 * (8 - layers)))
    bits.put(*[(0, 88), (30, 8)] * layers)
    bits.golomb(0).golomb(chroma)
    if chroma == 3:
        bits.put((0, 1))
    return escaped(bits.golomb(width).golomb(height).bytes()[:200])


def escaped(unit: bytes) -> bytes:
    """A unit without three bytes in a row that a start code has."""
    written, zeros = bytearray(), 0
    for byte in unit:
        if zeros >= 2 and byte <= 3:
            written.append(3)
            zeros = 0
        written.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return bytes(written)


def record(*units: bytes, length: int = 4) -> bytes:
    arrays = [struct.pack(">BHH", 33, 1, len(unit)) + unit for unit in units]
    return bytes(21) + bytes([0xFC | length - 1, len(units)]) + b"".join(arrays)


def stream(*units: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(unit)) + unit for unit in units)


FIRST_SLICE = b"\x28\x01\x80..."


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("chroma", [0, 1, 3])
def test_a_size_stands_in_the_record_or_in_the_stream(layers: int, chroma: int) -> None:
    one = parameters(4032, 3024, layers=layers, chroma=chroma)
    other = parameters(8, 16384, layers=layers, chroma=chroma)
    slices = stream(other, FIRST_SLICE)
    assert list(_hevc_sizes(record(one), slices, PartCounter())) == [(4032, 3024), (8, 16384)]


def test_units_of_another_view_are_skipped() -> None:
    view = b"\x42\x09" + parameters(640, 480)[2:]
    assert list(_hevc_sizes(record(parameters(64, 64)), stream(view), PartCounter())) == [(64, 64)]


def test_many_frames_and_other_lengths_are_refused() -> None:
    one = record(parameters(64, 64))
    later = b"\x28\x01\x00..."  # slices of the same frame
    assert list(_hevc_sizes(one, stream(*[FIRST_SLICE, later] * MOST_FRAMES), PartCounter()))
    with pytest.raises(DamagedImage, match="frames"):
        list(_hevc_sizes(one, stream(*[FIRST_SLICE] * (MOST_FRAMES + 1)), PartCounter()))
    with pytest.raises(DamagedImage, match="length of units"):
        list(_hevc_sizes(record(parameters(64, 64), length=2), b"", PartCounter()))


def test_empty_units_count_too() -> None:
    one, many = record(parameters(64, 64)), MOST_PARTS + 1
    with pytest.raises(DamagedImage, match="parts"):
        list(_hevc_sizes(one, bytes(4 * many), PartCounter()))
    empty = b"\1\x21\xff\xff" + bytes(2 * 65535)  # an array of empty units
    with pytest.raises(DamagedImage, match="parts"):
        list(_hevc_sizes(one[:22] + b"\2" + empty[1:] * 2, b"", PartCounter()))


@pytest.mark.parametrize("size", [(64, 64), (640, 328), (1024, 16)])
def test_the_encoder_of_heic_writes_the_size_of_the_picture(size: Size) -> None:
    item = coded_item("heic", *size)
    configuration = dict(item.properties)[b"hvcC"]
    ((width, height),) = _hevc_sizes(configuration, item.content, PartCounter())
    assert size[0] <= width < size[0] + 64
    assert size[1] <= height < size[1] + 64

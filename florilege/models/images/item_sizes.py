"""Measure the pictures of a HEIC or AVIF file as their decoder allocates them.

A file says a size up to three times: in the property ``ispe`` of an item, in the canvas of a
derived picture, and in the stream of the codec. Decoders allocate by the last two before they
compare, if they compare at all.
"""

import struct
from collections.abc import Mapping
from typing import Final

from florilege.models.images.boxes import Item
from florilege.models.images.coded_sizes import Size, av1_sizes, hevc_sizes
from florilege.models.images.parts import PartCounter
from florilege.models.images.sniff import DamagedImage

PADDING: Final = 64
"""Frames may be nearly so much larger than their picture on each side: codecs fill up blocks."""

_DEEPEST: Final = 4  # derivations of derivations; a phone that turns a grid makes two
_TYPES: Final = frozenset(b"av01 hvc1 grid iden iovl tmap sato jpeg mski".split())
_CANVAS: Final = {b"grid": 4, b"iovl": 10}  # where the size stands in a description


def largest_size(items: Mapping[int, Item], count: PartCounter) -> Size:
    """Width and height of the largest item, at least of what its decoder allocates.

    Raises:
        DamagedImage: One is of an unknown type, or derived endlessly, or its stream is damaged.
    """
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
    if stated and item.type not in _TYPES:
        raise DamagedImage("the file has a picture of an unknown type")
    size: Size = max(stated, key=_area, default=(0, 0))
    frames = _frame_sizes(item, count)
    if any(frame[axis] >= size[axis] + PADDING for frame in frames for axis in (0, 1)):
        return max(size, *frames, key=_area)
    return size


def _frame_sizes(item: Item, count: PartCounter) -> list[Size]:
    """What the decoder allocates for the item itself."""
    if item.type == b"av01":
        return list(av1_sizes(item.content, count))
    if item.type == b"hvc1":
        records = [data for name, data in item.properties if name == b"hvcC"]
        return [size for record in records for size in hevc_sizes(record, item.content, count)]
    if item.type in _CANVAS:
        wide = item.content[1] & 1
        return [struct.unpack_from(">II" if wide else ">HH", item.content, _CANVAS[item.type])]
    return []

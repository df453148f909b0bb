"""Read the first picture of each track of an animated AVIF file (ISO/IEC 14496-12, 8.3 to 8.7)."""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from florilege.models.images.boxes import Box, Item, boxes
from florilege.models.images.parts import PartCounter
from florilege.models.images.sniff import DamagedImage

_CONTAINERS: Final = frozenset(b"mdia minf stbl".split())


def read_tracks(data: bytes, count: PartCounter) -> Iterator[Item]:
    """The first picture of each track, as an item of a still picture; decoders show no other.

    Raises:
        DamagedImage: A table of a track stands there twice.
    """
    for movie in count(boxes(data, 0, len(data))):
        for track in count(boxes(data, movie.start, movie.end)) if movie.name == b"moov" else ():
            if track.name == b"trak":
                yield _first_picture(data, dict[bytes, Box](_tables(data, track, count)))


def _tables(data: bytes, container: Box, count: PartCounter) -> Mapping[bytes, Box]:
    tables = dict[bytes, Box]()
    waiting = [container]
    while waiting:
        outer = waiting.pop()
        for box in count(boxes(data, outer.start, outer.end)):
            if box.name in tables:
                raise DamagedImage(f"a track has two boxes {box.name!r}")
            tables[box.name] = box
            if box.name in _CONTAINERS:
                waiting.append(box)
    return tables


def _first_picture(data: bytes, tables: Mapping[bytes, Box]) -> Item:
    item = Item(type=b"av01")
    if (header := tables.get(b"tkhd")) and header.end - header.start >= 12:
        width, height = struct.unpack_from(">II", data, header.end - 8)  # 16.16 fixed point
        item.properties.append((b"ispe", struct.pack(">III", 0, width >> 16, height >> 16)))
    sizes, chunks = tables.get(b"stsz"), tables.get(b"stco") or tables.get(b"co64")
    if sizes and chunks:
        every, number = struct.unpack_from(">II", data, sizes.start + 4)
        size = every or (struct.unpack_from(">I", data, sizes.start + 12)[0] if number else 0)
        wide = chunks.name == b"co64"
        (at,) = struct.unpack_from(">Q" if wide else ">I", data, chunks.start + 8)
        item.content = memoryview(data)[at : at + size]
    return item

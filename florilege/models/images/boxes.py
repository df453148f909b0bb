"""Read the index of a HEIC or AVIF file: the boxes and items of ISO/IEC 14496-12 and 23008-12.

What two readers could take in two ways, such as a second list of the items, is refused: a decoder
must not see another picture than the one that was measured.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from florilege.models.images.sniff import DamagedImage

_Part = TypeVar("_Part")
MOST_PARTS: Final = 100_000  # reading this many takes a tenth of a second


class PartCounter:
    """Passes on the parts of one file, and refuses it once there are too many in all."""

    def __init__(self) -> None:
        self._parts = 0

    def __call__(self, parts: Iterable[_Part]) -> Iterator[_Part]:
        for part in parts:
            self._parts += 1
            if self._parts > MOST_PARTS:
                raise DamagedImage(f"the file has more than {MOST_PARTS} parts")
            yield part


_ONCE: Final = frozenset(b"pitm iloc iinf iprp iref idat".split())  # in a meta box
_Property = tuple[bytes, bytes]  # name and content


class Box(NamedTuple):
    """A box: its name, and where in the file that and its content stand."""

    name: bytes
    name_at: int
    start: int
    end: int


@dataclass
class Item:
    """A picture or another content of a file."""

    type: bytes = b""
    entry_at: int = 0  # where in the file the name of its entry stands
    type_at: int = 0
    properties: list[_Property] = field(default_factory=list)
    content: bytes | memoryview = b""
    parts: list[int] = field(default_factory=list)  # the items that it is derived from


def boxes(data: bytes, at: int, end: int) -> Iterator[Box]:
    """The boxes between two places; the last may be truncated."""
    while at + 8 <= end:
        size, name = struct.unpack_from(">I4s", data, at)
        start = at + 8
        # ISO/IEC 14496-12, 4.2: 1 is followed by a size of eight bytes, 0 means all that is left.
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start)
            start += 8
        stop = end if size == 0 else min(at + size, end)
        if stop < start:
            return
        yield Box(name, at + 4, start, stop)
        at = stop


def read_items(data: bytes, count: PartCounter) -> tuple[dict[int, Item], int]:
    """The items of a file by their number, and the number of the picture that is shown.

    Raises:
        DamagedImage: There is no index or a second one, or a table of it twice.
    """
    metas = [box for box in count(boxes(data, 0, len(data))) if box.name == b"meta"]
    if len(metas) != 1:
        raise DamagedImage(f"the file has {len(metas)} indexes of its contents")
    # Boxes follow the four bytes of its version and flags.
    tables = _tables(data, metas[0].start + 4, metas[0].end, count)
    items = defaultdict[int, Item](Item)
    for number, entry in _entries(data, *tables[b"iinf"], count):
        if items[number].entry_at:
            raise DamagedImage("the file has two types for an item")
        items[number] = entry
    for number, content in _contents(data, tables[b"iloc"], tables[b"idat"], count):
        items[number].content = content
    for number, properties in _properties(data, *tables[b"iprp"], count):
        items[number].properties += properties
    for number, parts in _derivations(data, *tables[b"iref"], count):
        items[number].parts += parts
    return dict(items), _primary(data, *tables[b"pitm"])


def _primary(data: bytes, at: int, end: int) -> int:
    # Numbers of items have four bytes from version 1 of this box on, of `iloc` from version 2.
    return _Fields(data, at + 4).take(4 if _version(data, at)[0] else 2) if at < end else 0


def _tables(data: bytes, at: int, end: int, count: PartCounter) -> dict[bytes, tuple[int, int]]:
    """Start and end of each box of the index; an empty one at its end for what it lacks."""
    tables = dict[bytes, tuple[int, int]]()
    for box in count(boxes(data, at, end)):
        if box.name in _ONCE and box.name in tables:
            raise DamagedImage(f"the file has two boxes {box.name.decode()}")
        tables[box.name] = (box.start, box.end)
    return {name: tables.get(name, (end, end)) for name in _ONCE}


def _version(data: bytes, at: int) -> tuple[int, int]:
    (word,) = struct.unpack_from(">I", data, at)
    return word >> 24, word & 0xFFFFFF  # and flags


def _entries(data: bytes, at: int, end: int, count: PartCounter) -> Iterator[tuple[int, Item]]:
    """Each item by its number, with its type alone."""
    if at == end:
        return
    for box in count(boxes(data, at + (8 if _version(data, at)[0] else 6), end)):
        version, fields = _version(data, box.start)[0], _Fields(data, box.start + 4)
        if box.name == b"infe":
            # Versions 0 and 1 have no type.
            number, type_at = fields.take(4 if version > 2 else 2), fields.at + 2
            name = data[type_at : type_at + 4] if version >= 2 else b""
            yield number, Item(type=name, entry_at=box.name_at, type_at=type_at)


class _Fields:
    """Reads numbers of any length one after the other."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> int:
        """The number in the next ``size`` bytes."""
        self.at += size
        if self.at > len(self.data):
            raise DamagedImage("the index of the file is cut short")
        return int.from_bytes(self.data[self.at - size : self.at], "big")


def _contents(
    data: bytes, table: tuple[int, int], inline: tuple[int, int], count: PartCounter
) -> Iterator[tuple[int, bytes | memoryview]]:
    """Number and content of each item, from the box of locations."""
    numbers, view, copied = set[int](), memoryview(data), 0
    for number, method, places in _locations(data, *table, count):
        if method > 1 or number in numbers:
            raise DamagedImage("an item of the file lies inside another, or in two places")
        numbers.add(number)
        start, end = inline if method else (0, len(data))
        pieces = [  # without a length, all that follows
            view[start + at : min(start + at + length, end) if length else end]
            for at, length in places
        ]
        copied += sum(map(len, pieces)) if len(pieces) > 1 else 0
        # The same bytes may be named any number of times: copies of copies could fill the memory.
        if copied > len(data):
            raise DamagedImage("the items of the file overlap")
        yield number, pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _locations(
    data: bytes, at: int, end: int, count: PartCounter
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """The number of each item, where it lies, and the offset and length of each piece of it."""
    if at == end:
        return
    version, fields = _version(data, at)[0], _Fields(data, at + 4)
    sizes = fields.take(2)
    number_size, index_size = 2 if version < 2 else 4, sizes & 15 if version else 0
    for _ in count(range(fields.take(number_size))):
        number = fields.take(number_size)
        method = fields.take(2) & 15 if version else 0
        fields.take(2)
        base, places = fields.take(sizes >> 4 & 15), list[tuple[int, int]]()
        for _ in count(range(fields.take(2))):
            fields.take(index_size)
            places.append((base + fields.take(sizes >> 12), fields.take(sizes >> 8 & 15)))
        yield number, method, places


def _properties(
    data: bytes, at: int, end: int, count: PartCounter
) -> Iterator[tuple[int, list[_Property]]]:
    """The properties of each item that has any."""
    inside = list(count(boxes(data, at, end)))
    lists = [list(count(boxes(data, box.start, box.end))) for box in inside if box.name == b"ipco"]
    if len(lists) > 1:
        raise DamagedImage("the file has two lists of properties")
    shared = [(box.name, data[box.start : box.end]) for box in chain(*lists)]
    for box in inside:
        for number, places in _associations(data, box, count) if box.name == b"ipma" else ():
            yield number, [shared[place - 1] for place in places if 1 <= place <= len(shared)]


def _associations(data: bytes, box: Box, count: PartCounter) -> Iterator[tuple[int, list[int]]]:
    """The number of each item, and the places of its properties, from 1."""
    (version, flags), fields = _version(data, box.start), _Fields(data, box.start + 4)
    size = 2 if flags & 1 else 1
    mask = (1 << 8 * size - 1) - 1  # without the bit that says whether it is essential
    for _ in count(range(fields.take(4))):
        number = fields.take(4 if version else 2)
        yield number, [fields.take(size) & mask for _ in count(range(fields.take(1)))]


def _derivations(
    data: bytes, at: int, end: int, count: PartCounter
) -> Iterator[tuple[int, list[int]]]:
    """Each derived item with the items that it is made from."""
    if at == end:
        return
    size = 4 if _version(data, at)[0] else 2
    for box in count(boxes(data, at + 4, end)):
        if box.name == b"dimg":
            fields = _Fields(data, box.start)
            yield fields.take(size), [fields.take(size) for _ in count(range(fields.take(2)))]

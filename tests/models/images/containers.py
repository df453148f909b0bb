"""HEIC and AVIF files made by hand, and the streams inside them, to falsify one size at a time."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from florilege.models.images.boxes import Item, PartCounter, read_items
from tests.models.pictures import encode


def box(name: bytes, *content: bytes) -> bytes:
    joined = b"".join(content)
    return struct.pack(">I4s", 8 + len(joined), name) + joined


def coded_item(kind: str, width: int, height: int) -> Item:
    """The only item of an encoded grey picture."""
    options = {"speed": 10} if kind == "avif" else {}  # the fastest
    data = encode(Image.new("RGB", (width, height), (90, 90, 90)), kind, **options)
    (item,) = read_items(data, PartCounter())[0].values()
    return item


@dataclass
class Made:
    """An item to write: what `Item` holds, with the size that its ``ispe`` states."""

    type: bytes
    content: bytes
    size: tuple[int, int] | None = None
    parts: Sequence[int] = ()  # numbers from 1
    more: Sequence[tuple[bytes, bytes]] = ()  # properties
    alpha_of: int = 0

    def properties(self) -> list[bytes]:
        sizes = [] if self.size is None else [box(b"ispe", struct.pack(">III", 0, *self.size))]
        return [*sizes, *(box(name, content) for name, content in self.more)]


def container(brand: bytes, items: Sequence[Made], *, extra: bytes = b"") -> bytes:
    """A file of items; the first is shown. ``extra`` are more boxes of its index."""
    properties = [each for item in items for each in item.properties()]
    if any(item.alpha_of for item in items):
        properties.append(box(b"auxC", bytes(4), b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0"))
    used, first = b"", 1
    for number, item in enumerate(items, start=1):
        places = [*range(first, first + len(item.properties()))]
        first += len(places)
        places += [len(properties)] if item.alpha_of else []
        used += struct.pack(">HB", number, len(places)) + bytes(places)
    derived = [
        box(b"dimg", struct.pack(f">HH{len(item.parts)}H", number, len(item.parts), *item.parts))
        for number, item in enumerate(items, start=1)
        if item.parts
    ]
    alphas = [
        box(b"auxl", struct.pack(">HHH", number, 1, item.alpha_of))
        for number, item in enumerate(items, start=1)
        if item.alpha_of
    ]
    types = [
        box(b"infe", struct.pack(">IHH4sB", 2 << 24, number, 0, item.type, 0))
        for number, item in enumerate(items, start=1)
    ]

    def index(start: int) -> bytes:
        places, at = b"", start
        for number, item in enumerate(items, start=1):
            places += struct.pack(">HHHII", number, 0, 1, at, len(item.content))
            at += len(item.content)
        return box(
            b"meta",
            bytes(4),
            box(b"hdlr", bytes(8), b"pict", bytes(13)),
            box(b"pitm", struct.pack(">IH", 0, 1)),
            box(b"iloc", struct.pack(">IBBH", 0, 0x44, 0, len(items)), places),
            box(b"iinf", struct.pack(">IH", 0, len(items)), *types),
            box(b"iref", bytes(4), *derived, *alphas),
            box(
                b"iprp",
                box(b"ipco", *properties),
                box(b"ipma", struct.pack(">II", 0, len(items)), used),
            ),
            extra,
        )

    start = box(b"ftyp", brand, bytes(4), b"mif1", b"miaf", brand)
    offset = len(start) + len(index(0)) + 8
    return start + index(offset) + box(b"mdat", *(item.content for item in items))


def grid_content(rows: int, columns: int, width: int, height: int) -> bytes:
    """The description of a grid picture."""
    return struct.pack(">BBBBHH", 0, 0, rows - 1, columns - 1, width, height)

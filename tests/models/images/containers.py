"""HEIC, AVIF and WebP files made by hand, and the streams inside them, to falsify one size."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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
    describes: Sequence[int] = ()

    def properties(self) -> list[bytes]:
        sizes = [] if self.size is None else [box(b"ispe", struct.pack(">III", 0, *self.size))]
        return [*sizes, *(box(name, content) for name, content in self.more)]


def container(brand: bytes, items: Sequence[Made], *, extra: bytes = b"") -> bytes:
    """A file of items; the first is shown. ``extra`` are more boxes of its index.

    Equal properties and contents are written once.
    """
    properties = [*dict.fromkeys(each for item in items for each in item.properties())]
    if any(item.alpha_of for item in items):
        properties.append(box(b"auxC", bytes(4), b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0"))
    used = b""
    for number, item in enumerate(items, start=1):
        places = [properties.index(each) + 1 for each in item.properties()]
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
    texts = [
        box(
            b"cdsc",
            struct.pack(f">HH{len(item.describes)}H", number, len(item.describes), *item.describes),
        )
        for number, item in enumerate(items, start=1)
        if item.describes
    ]
    contents = [*dict.fromkeys(item.content for item in items)]
    types = [
        box(b"infe", struct.pack(">IHH4sB", 2 << 24, number, 0, item.type, 0))
        for number, item in enumerate(items, start=1)
    ]

    def index(start: int) -> bytes:
        offsets = dict(zip(contents, accumulate(map(len, contents), initial=start), strict=False))
        places = b"".join(
            struct.pack(">HHHII", number, 0, 1, offsets[item.content], len(item.content))
            for number, item in enumerate(items, start=1)
        )
        return box(
            b"meta",
            bytes(4),
            box(b"hdlr", bytes(8), b"pict", bytes(13)),
            box(b"pitm", struct.pack(">IH", 0, 1)),
            box(b"iloc", struct.pack(">IBBH", 0, 0x44, 0, len(items)), places),
            box(b"iinf", struct.pack(">IH", 0, len(items)), *types),
            box(b"iref", bytes(4), *derived, *alphas, *texts),
            box(
                b"iprp",
                box(b"ipco", *properties),
                box(b"ipma", struct.pack(">II", 0, len(items)), used),
            ),
            extra,
        )

    start = box(b"ftyp", brand, bytes(4), b"mif1", b"miaf", brand)
    offset = len(start) + len(index(0)) + 8
    return start + index(offset) + box(b"mdat", *contents)


def grid_content(rows: int, columns: int, width: int, height: int) -> bytes:
    """The description of a grid picture."""
    return struct.pack(">BBBBHH", 0, 0, rows - 1, columns - 1, width, height)


def webp_of_many_codes(side: int) -> bytes:
    """A lossless picture of one colour, with a group of Huffman codes for each 4 x 4 pixels."""
    bits = [
        _backwards(0x2F, 8),
        *(_backwards(side - 1, 14) for _ in "wh"),
        "0",
        "000",
    ]  # no transparency
    bits += ["0", "0", "1", "000"]  # no transform, no cache; groups of codes, by blocks of 4
    # The numbers of the groups are a picture without a cache, whose green and red have 256 codes of
    # eight bits each: the only length of a code is written, 256 times in no bits.
    lengths = ["0", _backwards(12 - 4, 4), *("100" if n == 11 else "000" for n in range(12))]
    lengths += ["1", _backwards(3, 3), _backwards(256 - 2, 8)]
    one_code = ["1", "0", "0", "0"]
    bits += ["0", *lengths, *lengths, *one_code * 3]
    groups = (side // 4) ** 2
    bits += [f"{n & 255:08b}{n >> 8:08b}" for n in range(groups)]
    bits += one_code * 5 * groups  # and the pixels take no bits
    text = "".join(bits)
    stream = int(text[::-1], 2).to_bytes(len(text) // 8 + 16, "little")
    stream += bytes(len(stream) % 2)
    chunk = struct.pack("<4sI", b"VP8L", len(stream)) + stream
    return b"RIFF" + struct.pack("<I4s", 4 + len(chunk), b"WEBP") + chunk


def _backwards(value: int, count: int) -> str:
    """Bits of a number as WebP stores them, the lowest first."""
    return f"{value:0{count}b}"[::-1]

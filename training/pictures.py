"""Decoded pictures of a split, read when asked for or kept in memory from the start."""

import math
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from data.dataset import Split
from models.errors import DataError
from models.images import ImageError, Preprocess, decode, load, read_header
from models.progress import progress

Picture = NDArray[np.uint8]
CHUNK: Final = 64
_SHOWN: Final = 10
_LOOKED_AT: Final = 9


class Decoder(Protocol):
    """From the bytes of a file to uint8 ``(height, width, 3)``; picklable."""

    def __call__(self, data: bytes) -> Picture: ...


@dataclass(frozen=True)
class EvaluationDecoder:
    """Exactly what the server does."""

    preprocess: Preprocess

    def __call__(self, data: bytes) -> Picture:
        return load(data, self.preprocess)


@dataclass(frozen=True)
class TrainingDecoder:
    """The whole picture at a short side of at most ``side`` pixels, for random crops.

    A long side of more than twice the short one is cut at both ends.
    """

    side: int

    def __call__(self, data: bytes) -> Picture:
        image = decode(data, target=self.side)
        width, height = image.size
        short = min(width, height)
        box_width, box_height = min(width, 2 * short), min(height, 2 * short)
        left, top = (width - box_width) / 2, (height - box_height) / 2
        scale = min(1.0, self.side / short)
        size = (max(1, round(box_width * scale)), max(1, round(box_height * scale)))
        if size == image.size:
            return np.array(image)
        box = (left, top, left + box_width, top + box_height)
        return np.array(image.resize(size, Image.Resampling.BILINEAR, box, reducing_gap=2.0))


def training_side(image_size: int, min_area: float) -> int:
    """Short side at which training pictures are kept.

    As large as the smallest crop needs to have ``image_size`` pixels of its own, but at most half
    as much again as ``image_size``.
    """
    return math.ceil(image_size * min(1.5, 1 / math.sqrt(min_area)))


def short_side(split: Split) -> int | None:
    """The median short side, in pixels, of a few pictures; None where none can be read."""
    sides = []
    for row in range(0, len(split), -(-len(split) // _LOOKED_AT)):
        try:
            header = read_header(split.read(row))
        except (ImageError, OSError):  # named when all are read
            continue
        sides.append(min(header.width, header.height))
    return sorted(sides)[len(sides) // 2] if sides else None


@dataclass(frozen=True)
class Pictures:
    """Pictures of a split by row.

    Attributes:
        split: Where the bytes come from.
        decoder: What turns them into pixels.
        kept: All of them decoded, or None where they are read when asked for.
    """

    split: Split
    decoder: Decoder
    kept: Sequence[Picture] | None = None

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> Picture:
        """One picture.

        Raises:
            DataError: The file cannot be read; the message names it.
        """
        if self.kept is not None:
            return self.kept[row]
        picture = read_one(self.split, self.decoder, row)
        if isinstance(picture, str):
            raise unreadable([picture], self.split.name)
        return picture


def read_one(split: Split, decoder: Decoder, row: int) -> Picture | str:
    """The picture, or what is wrong with it."""
    try:
        return decoder(split.read(row))
    except (ImageError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return f"{split.names[row]}: {reason}"


def unreadable(problems: Sequence[str], split: str) -> DataError:
    """The error for pictures that cannot be read."""
    listed = "\n  ".join(problems[:_SHOWN])
    more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return DataError(
        f"{len(problems)} pictures of {split} cannot be read; repair or remove them "
        f"(`florilege data check` lists all):\n  {listed}{more}"
    )


def keep_all(pictures: Pictures, *, workers: int) -> Pictures:
    """Decode every picture once and keep it in memory.

    Raises:
        DataError: Some cannot be read; the message names them.
    """
    kept: list[Picture] = []
    problems: list[str] = []
    loader = DataLoader(
        _Chunks(pictures),
        batch_size=None,
        num_workers=workers if len(pictures) > 4 * CHUNK else 0,
        collate_fn=_as_it_is,
        worker_init_fn=ignore_interrupts,
        generator=torch.Generator(),  # else it would draw from the generator of the run
    )
    with progress(len(pictures), f"reading {pictures.split.name}") as advance:
        for chunk in loader:
            kept += [item for item in chunk if not isinstance(item, str)]
            problems += [item for item in chunk if isinstance(item, str)]
            advance(len(chunk))
    if problems:
        raise unreadable(problems, pictures.split.name)
    return Pictures(pictures.split, pictures.decoder, kept)


class _Chunks(Dataset[list[Picture | str]]):
    """Some pictures at a time, so that workers hand over few large messages."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return math.ceil(len(self.pictures) / CHUNK)

    def __getitem__(self, chunk: int) -> list[Picture | str]:
        rows = range(chunk * CHUNK, min(len(self.pictures), (chunk + 1) * CHUNK))
        return [read_one(self.pictures.split, self.pictures.decoder, row) for row in rows]

    def __iter__(self) -> Iterator[list[Picture | str]]:
        return (self[chunk] for chunk in range(len(self)))


def _as_it_is(chunk: Any) -> Any:
    """A worker hands over whole chunks; nothing is left to collate."""
    return chunk


def ignore_interrupts(_worker: int) -> None:
    """Ctrl-C reaches every process of the terminal; only the main one shall answer it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

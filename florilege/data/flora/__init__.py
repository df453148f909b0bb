"""The flora: pictures of invented plants whose true P(species | picture) is known exactly.

A picture shows some or all of a flower, a leaf and a fruit, independently of the species. A colour
or pattern occasionally differs from the species' own. Everything else (place, size, rotation,
background, light, noise) is random. `florilege.data.flora.posterior` defines the species and their
exact probabilities, `florilege.data.flora.renderer` draws them.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from florilege.data.flora.posterior import (
    HIDDEN,
    MISREAD,
    TRAITS,
    VISIBLE,
    Observed,
    flora_classes,
    posterior_of,
    prior,
    species_traits,
)
from florilege.data.flora.renderer import draw
from florilege.data.options import FloraOptions, parse_flora_options
from florilege.data.records import SPLITS, Listing, Records

_LABELS, _PICTURE = 0, 1  # random streams of one split


@dataclass(frozen=True)
class Flora:
    """One flora: picture ``i`` of a split depends only on the seed, the split and ``i``.

    A smaller split is therefore the beginning of a larger one, and workers agree. Raises
    `ValueError` if a seed or count is negative, or a split is unknown.
    """

    seed: int = 0  # 0 or more
    rows: Mapping[str, int] = field(default_factory=lambda: FloraOptions().rows)  # per split

    @classmethod
    def parse(cls, source: str) -> "Flora":
        """The flora that ``flora[:train=4000,val=500,test=500,seed=3]`` names.

        Errors are those of `florilege.data.options.parse_options`.
        """
        options = parse_flora_options(source)
        return cls(options.seed, options.rows)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")
        for name, rows in self.rows.items():
            if name not in SPLITS or rows < 0:
                rule = f"rows must map {', '.join(SPLITS)} to 0 or more"
                raise ValueError(f"{rule}, got {name!r}: {rows}")

    def labels(self, split: str) -> NDArray[np.int64]:
        """The true species, int64, shape ``(rows,)``."""
        return self._sample(split)[0]

    def observed(self, split: str) -> Observed:
        """The traits that the pictures show, int64, shape ``(rows, 5)``, -1 where hidden."""
        return self._sample(split)[1]

    def posterior(self, split: str) -> NDArray[np.float64]:
        """The exact P(species | picture), float64, shape ``(rows, 85)``; each row sums to 1."""
        return posterior_of(self.observed(split))

    def picture(self, split: str, row: int) -> NDArray[np.uint8]:
        """The picture, uint8 ``(48, 48, 3)``, RGB; an `IndexError` if the split has no such row."""
        if not 0 <= row < self.rows[split]:
            raise IndexError(f"row must be in [0, {self.rows[split] - 1}] in {split}, got {row}")
        return draw(self.observed(split)[row].tolist(), _rng(self.seed, split, _PICTURE, row))

    def png(self, split: str, row: int) -> bytes:
        return encode_png(self.picture(split, row))

    def listing(self) -> Listing:
        """Its splits and classes; each picture is drawn when it is read."""
        classes = flora_classes()
        splits = {
            name: Records(
                class_ids=[classes.ids[label] for label in self.labels(name)],
                names=[f"{name}/{row:06d}.png" for row in range(rows)],
                read=partial(self.png, name),
            )
            for name, rows in self.rows.items()
            if rows
        }
        infos = {item.id: item for item in classes}
        return Listing(source="flora", splits=splits, class_infos=infos, order=classes.ids)

    def _sample(self, split: str) -> tuple[NDArray[np.int64], Observed]:
        if split not in self.rows:
            raise ValueError(f"split must be one of {', '.join(self.rows)}, got {split!r}")
        return _sample(self.seed, split, self.rows[split])


@lru_cache(maxsize=32)
def _sample(seed: int, split: str, rows: int) -> tuple[NDArray[np.int64], Observed]:
    """Draw labels and visible traits; each row uses ten random numbers of its own."""
    uniform = _rng(seed, split, _LABELS).random((rows, 10))
    traits = species_traits()
    edges = np.cumsum(prior())[:-1]
    labels = np.searchsorted(edges, uniform[:, 0], side="right").astype(np.int64)
    flower, leaf, fruit = (uniform[:, 1:4] < VISIBLE).T
    columns = (
        np.where(flower, traits["petal_form"][labels], HIDDEN),
        np.where(flower, _observe("flower", labels, uniform[:, 4:6]), HIDDEN),
        np.where(leaf, traits["leaf_form"][labels], HIDDEN),
        np.where(leaf, _observe("leaf", labels, uniform[:, 6:8]), HIDDEN),
        np.where(fruit, _observe("fruit", labels, uniform[:, 8:10]), HIDDEN),
    )
    observed = np.stack(columns, axis=1)
    for array in (labels, observed):
        array.setflags(write=False)  # shared between callers
    return labels, observed


def _observe(
    trait: str, labels: NDArray[np.int64], uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The observed value: the true one or, with probability ``MISREAD``, any other."""
    true = species_traits()[trait][labels]
    count = len(TRAITS[trait])
    step = 1 + (uniform[:, 1] * (count - 1)).astype(np.int64)  # 1 .. count - 1
    return np.where(uniform[:, 0] < MISREAD, (true + step) % count, true)


def _rng(seed: int, split: str, *stream: int) -> np.random.Generator:
    return np.random.default_rng((seed, SPLITS.index(split), *stream))


_COLOUR = (8, 2, 0, 0, 0)  # bits a channel, RGB, deflate, filtered, not interlaced


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file that decodes to exactly ``picture``.

    Raises:
        ValueError: It is not uint8 of shape ``(height, width, 3)``, RGB, with at least one pixel.

    Example:
        >>> encode_png(np.zeros((2, 2, 3), dtype=np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(f"picture must have shape (height, width, 3), got {picture.shape}")
    if picture.dtype != np.uint8:
        raise ValueError(f"picture must be uint8, got {picture.dtype}")
    height, width, _ = picture.shape
    # A leading 0 means that a line is not filtered.
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    lines[:, 1:] = picture.reshape(height, -1)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">II5B", width, height, *_COLOUR)),
            # Stored as it is: noise leaves little to compress, 16 % of a picture, each time that
            # one is read.
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), level=0)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A PNG chunk: length, kind, content, checksum."""
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum

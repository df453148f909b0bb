"""Floras by seed and number of pictures, and their ``--data`` syntax.

A picture shows some or all of a flower, a leaf and a fruit, independently of the species. A colour
or pattern occasionally differs from the species' own. Everything else (place, size, rotation,
background, light, noise) is random. `florilege.data.flora.species` defines the species,
`florilege.data.flora.posterior` their exact probabilities, and `florilege.data.flora.renderer`
draws them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from florilege.data.dataset import SPLITS, split_name
from florilege.data.flora.posterior import HIDDEN, MISREAD, VISIBLE, Observed, posterior_of
from florilege.data.flora.renderer import draw
from florilege.data.flora.species import (
    FLOWER_COLOURS,
    FRUIT_COLOURS,
    LEAF_PATTERNS,
    flora_classes,
    prior,
    species_traits,
)
from florilege.data.png import encode_png
from florilege.data.records import Listing, Records
from florilege.errors import DataError
from florilege.suggestions import suggestion

DEFAULT_ROWS: Mapping[str, int] = {"train": 20_000, "val": 8_000, "test": 8_000}
MOST_PICTURES = 10_000_000  # per split; all species are drawn at once, at 120 bytes a picture
_COMMON_OPTIONS = (
    *("noise", "noise_seed", "fraction", "per_class", "imbalance", "sample_seed", "hold_out"),
)
_LABELS, _PICTURE = 0, 1  # random streams of one split


@dataclass(frozen=True)
class Flora:
    """One flora: picture ``i`` of a split depends only on the seed, the split and ``i``.

    A smaller split is therefore the beginning of a larger one, and workers agree.

    Raises:
        ValueError: The seed or a count is negative, or a split is unknown.
    """

    seed: int = 0  # 0 or more
    rows: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_ROWS))  # per split

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")
        rule = f"rows must map {', '.join(SPLITS)} to 0 or more"
        for name, rows in self.rows.items():
            if name not in SPLITS or rows < 0:
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
        """The picture, uint8, shape ``(48, 48, 3)``, RGB.

        Raises:
            IndexError: The split has no such row.
        """
        if not 0 <= row < self.rows[split]:
            raise IndexError(f"row must be in [0, {self.rows[split] - 1}] in {split}, got {row}")
        return draw(self.observed(split)[row].tolist(), _rng(self.seed, split, _PICTURE, row))

    def png(self, split: str, row: int) -> bytes:
        """The same picture as the bytes of a PNG file."""
        return encode_png(self.picture(split, row))

    def _sample(self, split: str) -> tuple[NDArray[np.int64], Observed]:
        if split not in self.rows:
            raise ValueError(f"split must be one of {', '.join(self.rows)}, got {split!r}")
        return _sample(self.seed, split, self.rows[split])


def is_flora(source: str) -> bool:
    """Whether ``--data`` names the flora rather than a path."""
    return source == "flora" or source.startswith("flora:")


def parse_flora(source: str) -> Flora:
    """Parse ``flora[:train=4000,val=500,test=500,seed=3]``.

    Raises:
        DataError: An option is unknown or given twice; or its value is not a whole number of 0 or
            more, or is too large.
    """
    numbers: dict[str, int] = {}
    for option in filter(None, map(str.strip, source.partition(":")[2].split(","))):
        key, _, text = map(str.strip, option.partition("="))
        name = split_name(key) or key
        if name not in (*DEFAULT_ROWS, "seed") or name in numbers:
            options = (*DEFAULT_ROWS, "seed", *_COMMON_OPTIONS)
            near = "" if name in numbers else suggestion(key, options)
            raise DataError(
                f"{source}: {'repeated' if name in numbers else 'unknown'} option {key!r}; "
                "flora takes train=, val=, test= (pictures), seed= and the options of any source, "
                f"{'=, '.join(_COMMON_OPTIONS)}=, each once{near}"
            )
        numbers[name] = _read_number(source, key, text)
        if name != "seed" and numbers[name] > MOST_PICTURES:
            raise DataError(f"{source}: {key} must be at most {MOST_PICTURES:,}, got {text}")
    seed = numbers.pop("seed", 0)
    return Flora(seed, {**DEFAULT_ROWS, **numbers})


def _read_number(source: str, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise DataError(f"{source}: {key} must be a whole number of 0 or more, got {text!r}")
    return int(text)


def list_flora(source: str) -> Listing:
    """List the flora that ``source`` names; each picture is drawn when it is read."""
    flora = parse_flora(source)
    classes = flora_classes()
    splits = {name: _records(flora, name) for name in SPLITS if flora.rows[name]}
    infos = {item.id: item for item in classes}
    return Listing(source=source, splits=splits, class_infos=infos, order=classes.ids)


def _records(flora: Flora, split: str) -> Records:
    ids = flora_classes().ids
    return Records(
        class_ids=[ids[label] for label in flora.labels(split)],
        names=[f"{split}/{row:06d}.png" for row in range(flora.rows[split])],
        read=partial(flora.png, split),
    )


@lru_cache(maxsize=32)
def _sample(seed: int, split: str, rows: int) -> tuple[NDArray[np.int64], Observed]:
    """Draw labels and visible traits; row ``i`` uses the ``i``-th ten numbers of its stream."""
    uniform = _rng(seed, split, _LABELS).random((rows, 10))
    traits = species_traits()
    edges = np.cumsum(prior())[:-1]
    labels = np.searchsorted(edges, uniform[:, 0], side="right").astype(np.int64)
    flower, leaf, fruit = (uniform[:, 1:4] < VISIBLE).T
    flowers = _observe(traits.flower[labels], FLOWER_COLOURS, uniform[:, 4:6])
    leaves = _observe(traits.leaf[labels], LEAF_PATTERNS, uniform[:, 6:8])
    fruits = _observe(traits.fruit[labels], FRUIT_COLOURS, uniform[:, 8:10])
    columns = (
        np.where(flower, traits.petal_form[labels], HIDDEN),
        np.where(flower, flowers, HIDDEN),
        np.where(leaf, traits.leaf_form[labels], HIDDEN),
        np.where(leaf, leaves, HIDDEN),
        np.where(fruit, fruits, HIDDEN),
    )
    observed = np.stack(columns, axis=1)
    for array in (labels, observed):
        array.setflags(write=False)  # shared between callers
    return labels, observed


def _observe(
    true: NDArray[np.int64], values: tuple[str, ...], uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The observed value: the true one or, with probability ``MISREAD``, any other."""
    step = 1 + (uniform[:, 1] * (len(values) - 1)).astype(np.int64)  # 1 .. len(values) - 1
    return np.where(uniform[:, 0] < MISREAD, (true + step) % len(values), true)


def _rng(seed: int, split: str, *stream: int) -> np.random.Generator:
    return np.random.default_rng((seed, SPLITS.index(split), *stream))

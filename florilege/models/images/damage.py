"""_Photos that cannot be read: which they are, and photos without them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from florilege.cores import in_order
from florilege.models.images.decoding import Preprocess, load
from florilege.models.images.sniff import ImageError
from florilege.terminal import progress

_LOOK: Final = Preprocess(image_size=32)  # small: it only matters whether a photo decodes


class _Photos(Protocol):
    """_Photos that are read on demand, such as those of a split."""

    @property
    def name(self) -> str:
        """What they are, such as ``val``."""

    @property
    def names(self) -> Sequence[str]:
        """The name of each in messages, such as its path."""

    @property
    def read(self) -> Callable[[int], bytes]:
        """The bytes of one; ``OSError`` if they cannot be read."""

    def select_rows(self, rows: NDArray[np.intp], *, name: str) -> Self:
        """Some of them."""


P = TypeVar("P", bound=_Photos)


def damaged_photos(photos: _Photos) -> dict[int, str]:
    """Read every photo once: the rows of those that cannot be read, with name and reason."""
    problems, count = dict[int, str](), len(photos.names)
    with progress(count, f"checking {photos.name}") as advance:
        results = in_order(partial(_problem, photos), range(count), threads=None)
        for row, problem in enumerate(results):
            if problem is not None:
                problems[row] = problem
            advance()
    return problems


def without_rows(photos: P, rows: Sequence[int]) -> P:
    """The photos without some rows."""
    remaining = np.setdiff1d(np.arange(len(photos.names)), rows)
    return photos.select_rows(remaining, name=photos.name)


def readable(photos: P, say: Callable[[str], None]) -> P:
    """The photos without the damaged ones, which ``say`` is told."""
    damaged = damaged_photos(photos)
    if not damaged:
        return photos
    count = f"{len(damaged):,} photo{'s' if len(damaged) > 1 else ''}"
    listed = "".join(f"\n  {problem}" for problem in damaged.values())
    say(f"skipped because they cannot be read: {count} of {photos.name}{listed}")
    return without_rows(photos, [*damaged])


def _problem(photos: _Photos, row: int) -> str | None:
    try:
        load(photos.read(row), _LOOK)
    except (OSError, ImageError) as error:
        return f"{photos.names[row]}: {error}"
    return None

"""Photos that cannot be read: which they are, and a split without them."""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from florilege.cores import in_order
from florilege.data.dataset import Split
from florilege.data.records import count_of
from florilege.models.images import ImageError, Preprocess, load
from florilege.progress import progress

_LOOK: Final = Preprocess(image_size=32)  # small: it only matters whether a photo decodes


def damaged_photos(split: Split) -> dict[int, str]:
    """Read every photo once: the rows of those that cannot be read, with name and reason."""
    problems = dict[int, str]()
    with progress(len(split), f"checking {split.name}") as advance:
        for row, problem in enumerate(
            in_order(partial(_problem, split), range(len(split)), threads=None)
        ):
            if problem is not None:
                problems[row] = problem
            advance()
    return problems


def without_rows(split: Split, rows: list[int]) -> Split:
    """The split without some rows."""
    return split.select_rows(np.setdiff1d(np.arange(len(split)), rows), name=split.name)


def readable(split: Split, say: Callable[[str], None]) -> Split:
    """The split without its damaged photos, which ``say`` is told."""
    damaged = damaged_photos(split)
    if not damaged:
        return split
    photos = count_of(len(damaged), "photo", "photos")
    listed = "".join(f"\n  {problem}" for problem in damaged.values())
    say(f"skipped because they cannot be read: {photos} of {split.name}{listed}")
    return without_rows(split, [*damaged])


def _problem(split: Split, row: int) -> str | None:
    try:
        load(split.read(row), _LOOK)
    except (OSError, ImageError) as error:
        return f"{split.names[row]}: {error}"
    return None

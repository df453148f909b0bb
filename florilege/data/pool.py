"""The photos of several splits of a data set as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from florilege.data.records import Dataset, Split


@dataclass(frozen=True, kw_only=True)
class Pool(Split):
    """The photos of several splits as one."""

    splits: Sequence[str]  # the split of each photo

    def of(self, rows: Sequence[int]) -> "Pool":
        """Some photos, in the given order."""
        splits = [self.splits[row] for row in rows]
        return self.select(rows, labels=self.labels[list(rows)], splits=splits)


def _read(parts: Sequence[Split], row: int) -> bytes:
    """A photo of several splits that follow each other."""
    for part in parts:
        if row < len(part):
            return part.read(row)
        row -= len(part)
    raise IndexError(row)


def pool_of(dataset: Dataset, names: Sequence[str]) -> Pool:
    """The photos of the splits ``names``, in their order."""
    parts = [dataset.split(name) for name in dict.fromkeys(names)]
    return Pool(
        name=",".join(part.name for part in parts),
        labels=np.concatenate([part.labels for part in parts]),
        names=[name for part in parts for name in part.names],
        observations=_observations(parts),
        read=partial(_read, parts),
        splits=[part.name for part in parts for _ in range(len(part))],
    )


def _observations(parts: Sequence[Split]) -> list[str] | None:
    if not any(part.observations for part in parts):
        return None
    # A photo of unknown plant, with an empty name, is a plant of its own.
    return [name for part in parts for name in part.observations or [""] * len(part)]

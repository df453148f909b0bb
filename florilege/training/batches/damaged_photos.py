"""Photos that cannot be read: leave them out of a run, or name all of them at once."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from florilege.data.dataset import Dataset
from florilege.data.records import count_of
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from florilege.models.classes import ClassTable
from florilege.models.images.damage import damaged_photos, without_rows

Damaged = Mapping[str, Mapping[int, str]]
"""By split the rows of damaged photos, each with its name and the reason."""


def find_damaged(dataset: Dataset) -> Damaged:
    """Read every photo of a data set once."""
    return {name: damaged_photos(split) for name, split in dataset.splits.items()}


def without_damaged(dataset: Dataset) -> tuple[Dataset, list[str]]:
    """The data set without its damaged photos, and lines for the user that list them."""
    damaged = find_damaged(dataset)
    if not any(damaged.values()):
        return dataset, []
    splits = {name: without_rows(split, [*damaged[name]]) for name, split in dataset.splits.items()}
    classes = dataset.classes
    if (train := splits.get("train")) is not None:
        counts = np.bincount(train.labels, minlength=len(classes)).tolist()
        classes = ClassTable(
            tuple(
                replace(item, training_count=count)
                for item, count in zip(classes, counts, strict=True)
            )
        )
    lines = [f"skipped because they cannot be read: {_counts(damaged)}", *_names(damaged)]
    return replace(dataset, splits=splits, classes=classes), lines


def all_named(source: str) -> DataError | None:
    """The error that names every damaged photo of every split; None if there is none any more."""
    damaged = find_damaged(open_dataset(source))
    if not any(damaged.values()):
        return None
    return DataError(
        f"{_counts(damaged)} cannot be read; repair or remove them, or train without them "
        "(--skip-damaged):\n" + "\n".join(_names(damaged))
    )


def _counts(damaged: Damaged) -> str:
    """How many photos of which split, such as ``2 pictures of train and 1 picture of val``."""
    numbers = [
        f"{count_of(len(rows), 'picture')} of {name}" for name, rows in damaged.items() if rows
    ]
    return ", ".join(numbers[:-1]) + " and " * (len(numbers) > 1) + numbers[-1]


def _names(damaged: Damaged) -> list[str]:
    return [f"  {problem}" for rows in damaged.values() for problem in rows.values()]

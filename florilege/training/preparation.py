"""What a run needs from its data before the first step: photos that can be read, facts that all
processes share, and notes for the user."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from florilege.calibration.photo_groups import choosing_rows, observation_numbers
from florilege.calibration.rules.label_doubt import label_doubt
from florilege.data.records import Dataset, Split
from florilege.data.sources import open_dataset
from florilege.errors import DataError, count_of, own_version
from florilege.models.backbones import architecture
from florilege.models.reference_pictures import pack_thumbnails, read_thumbnails
from florilege.tables import csv_bytes
from florilege.training.batches import Features
from florilege.training.config import TrainConfig
from florilege.training.configuration import RunFolder
from florilege.training.machines import Ranks
from florilege.training.recipes import RECIPES

_MACHINE_SETTINGS: Final = ("workers", "cache_mb", "picture_cache", "features")
"""Settings that may differ between the processes that train one network."""
_FEW_PHOTOS: Final = 10_000


def open_data(config: TrainConfig, splits: Sequence[str]) -> Dataset:
    """Open the data of a run; a ``DataError`` says where to get those of the recipe.

    ``val`` are the photos of its plants that may choose: a calibration on the others then rests on
    photos that this network has not met.
    """
    try:
        check_files = not config.skip_damaged
        dataset = open_dataset(config.data, splits=splits, check_files=check_files)
        return _with_choosing_part(dataset)
    except DataError as error:
        message, place = str(error), RECIPES[config.recipe].place
        if place and place.partition(": ")[2] not in message:
            message += f"; {place}"
        raise DataError(message) from error


def _with_choosing_part(dataset: Dataset) -> Dataset:
    val = dataset.splits.get("val")
    if val is None:
        return dataset
    rows = choosing_rows(observation_numbers(val.observations), len(val))
    if rows is None:
        return dataset
    part = val.select_rows(np.flatnonzero(rows), name=val.name)
    return replace(dataset, splits={**dataset.splits, "val": part})


def facts(config: TrainConfig, dataset: Dataset, resumed: RunFolder | None) -> dict[str, object]:
    """What all processes must share, by its name in a message."""
    plain = config.to_plain()
    settings = {name: value for name, value in plain.items() if name not in _MACHINE_SETTINGS}
    pictures = {f"{name} data": _digest(split) for name, split in dataset.splits.items()}
    state = "new" if resumed is None else "without checkpoint"
    if resumed is not None and resumed.last.is_file():
        state = f"of {resumed.last.stat().st_size} bytes"
    versions = {"florilege": own_version(), "torch": torch.__version__}
    return {**settings, **pictures, **versions, "run folder": state}


def _digest(split: Split) -> str:
    """The number of pictures of a split, and a hash of their names and labels."""
    digest = hashlib.sha256(split.labels.tobytes())
    for name in split.names:
        digest.update(f"{name}\n".encode())
    return f"{len(split)} pictures {digest.hexdigest()[:8]}"


def reference_pictures(dataset: Dataset) -> bytes | None:
    """The reference pictures of the classes in one file; None if there are none."""
    files = {item.id: dataset.thumbnails[item.id] for item in dataset.classes if item.thumbnail}
    return (
        pack_thumbnails(dataset.classes, read_thumbnails(dataset.source, files)) if files else None
    )


def without_doubtful(
    train: Features, dataset: Dataset, ranks: Ranks
) -> tuple[Features, str, bytes]:
    """Features without the photos whose label is probably wrong, unless people have decided on it.

    Also a note for the user, and a CSV of these photos, the most doubtful first: their labels, and
    how probable each is by heads that did not learn from the photo.
    """
    photos, observations = train.split, observation_numbers(train.split.observations)
    doubt = label_doubt(
        train.values[train.rows],
        photos.labels,
        observations=observations,
        answers=dataset.answers(photos.names),
    )
    doubtful, *_ = ranks.all(np.flatnonzero(~doubt.believed()))
    count = count_of(len(doubt.labels), "photo")
    note = f"no label of train looks wrong: all {count} are used"
    if len(doubtful):
        note = (
            f"about {doubt.wrong_now:.1%} of the labels of train look wrong: {len(doubtful):,} of "
            f"{count} are left out, and listed in doubtful.csv"
        )
    ordered = doubtful[np.argsort(doubt.right[doubtful], kind="stable")].tolist()
    table = {
        "photo": [photos.names[row] for row in ordered],
        "label": [dataset.classes.ids[photos.labels[row]] for row in ordered],
        "right": [f"{doubt.right[row]:.3g}" for row in ordered],
    }
    return train.of(np.setdiff1d(np.arange(len(train)), doubtful)), note, csv_bytes(table)


def notes_on_validation(config: TrainConfig, dataset: Dataset) -> Iterator[str]:
    """Notes if the figures on val are misleading."""
    largest = len(dataset.classes) - 1
    if config.validation.k > largest:
        yield f"validation.k is {largest}, the largest for {len(dataset.classes)} classes"
    train, val = (dataset.splits.get(name) for name in ("train", "val"))
    if train is None or val is None or train.observations is None or val.observations is None:
        return
    shared = len({*train.observations} & {*val.observations})
    if shared:
        yield (
            f"val shares {count_of(shared, 'plant')} with train, which makes accuracy on "
            "val too high: `florilege data split --keep` writes a manifest with such plants only "
            "in train"
        )


def notes_on_start(config: TrainConfig, dataset: Dataset, *, on_gpu: bool) -> Iterator[str]:
    """Notes if pictures are smaller than the input they are resized to, or weights are random.

    On a GPU, where a network sees few photos many times, also if weight decay is the default.
    """
    size = config.preprocess.image_size
    side = dataset.split("train").short_side() or size
    enough = architecture(config.backbone).side_taken(max(side, 8)) if side < size else size
    if enough < size:
        yield (
            f"pictures of {side} px are enlarged to {size} px: --image-size {enough} is "
            f"about {(size / enough) ** 2:.1f} times less work"
        )
    photos = len(dataset.split("train"))
    if on_gpu and photos < _FEW_PHOTOS and config.epochs:
        yield from _note_on_decay(config, photos)
    pretrained = architecture(config.backbone).megabytes
    if pretrained is not None and "weights" not in config.model_fields_set and config.epochs:
        yield (
            f"warning: {config.backbone} starts from random weights and needs many photos; "
            f"--weights pretrained downloads pretrained weights (about {pretrained:.0f} MB), "
            "--weights FILE reads them from a file, --weights none silences this warning"
        )


def _note_on_decay(config: TrainConfig, photos: int) -> Iterator[str]:
    optimiser = config.optimiser
    if optimiser.name == "sgd" and "weight_decay" not in optimiser.model_fields_set:
        yield (
            f"warning: weight decay {optimiser.weight_decay:g} is made for many photos, and train "
            f"has {photos:,}: compare it with --set optimiser.weight_decay=0.0005 and 0.002"
        )


Damaged = Mapping[str, Mapping[int, str]]
"""By split the rows of damaged photos, each with its name and the reason."""


def _find_damaged(dataset: Dataset) -> Damaged:
    """Read every photo of a data set once."""
    return {name: split.damaged() for name, split in dataset.splits.items()}


def without_damaged(dataset: Dataset) -> tuple[Dataset, list[str]]:
    """The data set without its damaged photos, and lines for the user that list them."""
    damaged = _find_damaged(dataset)
    if not any(damaged.values()):
        return dataset, []
    splits = {name: split.without(damaged[name]) for name, split in dataset.splits.items()}
    counts = np.bincount(splits["train"].labels, minlength=len(dataset.classes)).tolist()
    lines = [f"skipped because they cannot be read: {_counts(damaged)}", *_names(damaged)]
    return replace(dataset, splits=splits, classes=dataset.classes.with_counts(counts)), lines


def all_named(source: str) -> DataError | None:
    """The error that names every damaged photo of every split; None if there is none any more."""
    damaged = _find_damaged(open_dataset(source))
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

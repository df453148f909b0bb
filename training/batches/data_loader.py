"""Batches for training and for validation.

A batch depends on (seed, epoch, rows) alone, not on the number of workers or on where a resumed
run starts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from florilege.data.dataset import Dataset
from florilege.models.images import load
from florilege.training.batches.augment import DRAWS, augment
from florilege.training.batches.decoded_pictures import (
    Pictures,
    decode_for_training,
    decode_to_keep,
    hash_photos,
    keep_all,
    loader_of,
    short_side,
    training_side,
    unreadable,
)
from florilege.training.batches.picture_cache import PictureCache
from florilege.training.batches.rng import uniforms
from florilege.training.config import TrainConfig
from florilege.training.frozen.feature_store import Features
from florilege.training.loop.distributed import ALONE, Ranks


class Batch(NamedTuple):
    """A batch of pictures."""

    images: Tensor  # uint8, (batch, height, width, 3)
    labels: Tensor  # int64, (batch,)
    rows: Tensor  # their rows in the split, int64, (batch,)
    whole: Tensor  # labels of the whole batch over all processes, int64
    problems: tuple[str, ...]  # errors of pictures that are left out


class EvaluationBatches(TorchDataset[Batch]):
    """Pictures of a split, all in order or only ``rows``, without augmentation, read on demand.

    Several processes take batches in turn.
    """

    def __init__(
        self,
        pictures: Pictures | Features,
        batch_size: int,
        rows: NDArray[np.int64] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.pictures = pictures
        rows = np.arange(len(pictures)) if rows is None else rows
        batches = np.split(rows, range(batch_size, len(rows), batch_size))
        self.rounds = -(-len(batches) // ranks.count)
        self.batches = self.whole = batches[ranks.rank :: ranks.count]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        rows = self.batches[index]
        pictures: list[Any] = [self.pictures[row] for row in rows.tolist()]
        problems = tuple(each for each in pictures if isinstance(each, str))
        if problems:
            rows = rows[[not isinstance(each, str) for each in pictures]]
            pictures = [each for each in pictures if not isinstance(each, str)]
        views = self.views(rows, pictures)
        return Batch(
            images=torch.from_numpy(np.stack(views)) if views else torch.empty(0),
            labels=torch.from_numpy(self.pictures.split.labels[rows]),
            rows=torch.from_numpy(rows),
            whole=torch.from_numpy(self.pictures.split.labels[self.whole[index]]),
            problems=problems,
        )

    def views(self, _rows: NDArray[np.int64], pictures: list[Any]) -> list[Any]:
        """The network inputs made from these pictures."""
        return pictures


class TrainingBatches(EvaluationBatches):
    """The augmented batches of one epoch, counted from 0, or this process's part of each.

    Pictures are those of ``decode_for_training``; features stay as they are.
    """

    def __init__(
        self, pictures: Pictures | Features, config: TrainConfig, ranks: Ranks = ALONE
    ) -> None:
        super().__init__(pictures, config.batch_size)
        self.config, self.ranks = config, ranks
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Switch to another epoch, which has the same number of batches."""
        self.epoch = epoch
        rows = np.random.default_rng((self.config.seed, epoch)).permutation(len(self.pictures))
        self.whole = _split_batches(rows, self.config.batch_size, 2 * self.ranks.count)
        self.batches = [self.ranks.part(batch) for batch in self.whole]

    def views(self, rows: NDArray[np.int64], pictures: list[Any]) -> list[Any]:
        """Each picture at the input size, augmented with the numbers drawn for its row."""
        if isinstance(self.pictures, Features):
            return pictures
        size, config = self.config.preprocess.image_size, self.config.augment
        draws = uniforms(self.config.seed, self.epoch, rows, DRAWS).tolist()
        return [
            augment(picture, size, config, numbers)
            for picture, numbers in zip(pictures, draws, strict=True)
        ]


@dataclass(frozen=True)
class Sources:
    """Where batches come from during a run."""

    training: Pictures | Features  # pictures at the size random crops need
    validation: Pictures | Features  # pictures preprocessed as on the server
    workers: int  # processes that prepare batches; 0 prepares them in the loop

    def blank(self, image_size: int) -> Tensor:
        """Two blank inputs of the network."""
        if isinstance(self.training, Features):
            return torch.zeros(2, self.training.values.shape[1])
        return torch.zeros(2, image_size, image_size, 3, dtype=torch.uint8)


def open_sources(
    dataset: Dataset, config: TrainConfig, ranks: Ranks = ALONE, *, on_gpu: bool = False
) -> Sources:
    """Prepare `train` and `val`; what fits into ``cache_mb`` is decoded now and kept in memory.

    Each process keeps its own copy and uses its share of the cores. Workers also augment pictures
    in memory if a GPU would wait for that.

    Raises:
        DataError: Some pictures cannot be read; the message names them.
        UsageError: ``picture_cache`` holds other files or cannot be written.
    """
    train, val = dataset.split("train"), dataset.split("val")
    preprocess = config.preprocess
    side = training_side(preprocess.image_size, config.augment.min_area)
    training = Pictures(train, partial(decode_for_training, side=side))
    validation = Pictures(val, partial(load, preprocess=preprocess))
    readers = ranks.cores if config.workers is None else config.workers
    free_bytes = config.cache_mb * 2**20 - len(val) * 3 * preprocess.image_size**2
    if free_bytes >= 0:
        validation = keep_all(validation, workers=readers)
    median_side = short_side(train) or side
    shrunk_side = max(side, median_side // max(1, median_side // side))  # by a whole factor
    if free_bytes >= len(train) * 4 * shrunk_side**2:  # 3 bytes a pixel, 4 pixels wide for 3 high
        decoded = replace(training, decoder=partial(decode_to_keep, side=side))
        training = keep_all(decoded, workers=readers)
    elif config.picture_cache is not None:
        cache = PictureCache(Path(config.picture_cache), side)
        training = replace(training, hashes=hash_photos(train, workers=readers), cache=cache)
    default = 0 if training.in_memory is not None and not on_gpu else max(1, ranks.cores - 1)
    return Sources(training, validation, default if config.workers is None else config.workers)


class _KeyedBatches(TorchDataset[Batch]):
    """Every batch of a run by epoch, None for validation, and number within the epoch."""

    def __init__(self, training: TrainingBatches, validation: EvaluationBatches) -> None:
        self.training, self.validation = training, validation

    def __getitem__(self, key: tuple[int | None, int]) -> Batch:
        epoch, number = key
        if epoch is None:
            return self.validation[number]
        if epoch != self.training.epoch:
            self.training.begin(epoch)
        return self.training[number]


class BatchLoader:
    """The batches of a run, prepared ahead by workers that live as long as the loader.

    ``pin`` puts them into page-locked memory, from which a GPU copies while it computes.
    """

    def __init__(
        self, sources: Sources, config: TrainConfig, ranks: Ranks = ALONE, *, pin: bool = False
    ) -> None:
        self.sources = sources
        size = 2 * -(-config.batch_size // ranks.count)
        training = TrainingBatches(sources.training, config, ranks)
        validation = EvaluationBatches(sources.validation, size, ranks=ranks)
        self.training_batches, self.validation_batches = len(training), len(validation)
        self.validation_rounds = validation.rounds
        self._keys: list[tuple[int | None, int]] = []  # of the batches requested next
        self._loader = loader_of(
            _KeyedBatches(training, validation),
            sampler=self._keys,
            workers=min(sources.workers, max(len(training), len(validation))),
            pin=pin,
        )

    def training(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from the ``first`` on; a ``DataError`` names a bad picture."""
        keys = [(epoch, number) for number in range(first, self.training_batches)]
        return self._prepared(keys, self.sources.training)

    def validation(self) -> Iterator[Batch]:
        """The batches of `val` for this process; errors as in :meth:`training`."""
        keys = [(None, number) for number in range(self.validation_batches)]
        return self._prepared(keys, self.sources.validation)

    def _prepared(
        self, keys: Sequence[tuple[int | None, int]], pictures: Pictures | Features
    ) -> Iterator[Batch]:
        self._keys[:] = keys
        for batch in self._loader:
            if batch.problems:
                raise unreadable(batch.problems, pictures.split.name)
            yield batch


def _split_batches(
    rows: NDArray[np.int64], batch_size: int, fewest: int
) -> list[NDArray[np.int64]]:
    """Split ``rows`` into batches; a rest of fewer than ``fewest`` rows joins the last batch.

    Batch normalisation cannot train on a single picture, in any of the processes.
    """
    cuts = list(range(batch_size, len(rows), batch_size))
    if cuts and len(rows) - cuts[-1] < fewest:
        cuts.pop()
    return np.split(rows, cuts)

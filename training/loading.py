"""Batches for training and for validation, the same whatever prepares them.

A batch depends on (seed, epoch, rows) alone: not on the number of workers, nor on where a
resumed run starts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data.dataset import Split
from models.cores import cores
from models.images import Preprocess
from training.augment import DRAWS, augment
from training.chance import order, uniforms
from training.config import AugmentConfig, TrainConfig
from training.pictures import (
    EvaluationDecoder,
    Picture,
    Pictures,
    TrainingDecoder,
    ignore_interrupts,
    keep_all,
    read_one,
    training_side,
    unreadable,
)


class Batch(NamedTuple):
    """Some pictures.

    Attributes:
        images: uint8, ``(batch, height, width, 3)``.
        labels: int64, ``(batch,)``.
        rows: Their rows in the split, int64, ``(batch,)``.
        problems: What could not be read; then the batch is not to be used.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    problems: tuple[str, ...]


class TrainingBatches(Dataset[Batch]):
    """The batches of one epoch from ``first`` on, each made when asked for.

    Args:
        pictures: Decoded by ``TrainingDecoder``.
        config: Size, seed, batch size and augmentation.
        epoch: From 0.
        first: Batches of this epoch that are already done.
    """

    def __init__(
        self, pictures: Pictures, config: TrainConfig, *, epoch: int, first: int = 0
    ) -> None:
        self.pictures = pictures
        self.image_size = config.image_size
        self.seed = config.seed
        self.augment: AugmentConfig = config.augment
        self.epoch = epoch
        rows = order(config.seed, epoch, len(pictures))
        self.batches = split_batches(rows, config.batch_size)[first:]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        rows = self.batches[index]
        draws = uniforms(self.seed, self.epoch, rows, DRAWS).tolist()
        return _batch(self.pictures, rows, lambda i, image: self._view(image, draws[i]))

    def _view(self, picture: NDArray[np.uint8], draws: Sequence[float]) -> NDArray[np.uint8]:
        return augment(picture, self.image_size, self.augment, draws)


class EvaluationBatches(Dataset[Batch]):
    """All pictures of a split in order, unchanged.

    Args:
        pictures: Decoded by ``EvaluationDecoder``.
        batch_size: Pictures a batch.
    """

    def __init__(self, pictures: Pictures, batch_size: int) -> None:
        self.pictures = pictures
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.pictures) // self.batch_size)

    def __getitem__(self, index: int) -> Batch:
        first = index * self.batch_size
        rows = np.arange(first, min(len(self.pictures), first + self.batch_size))
        return _batch(self.pictures, rows, lambda _i, image: image)


@dataclass(frozen=True)
class Sources:
    """Where batches come from during a run.

    Attributes:
        training: Pictures at the size random crops want.
        validation: Pictures as the server would see them.
        workers: Processes that prepare batches; 0 prepares them in the loop.
    """

    training: Pictures
    validation: Pictures
    workers: int


def open_sources(train: Split, val: Split, config: TrainConfig, preprocess: Preprocess) -> Sources:
    """Prepare both splits; what fits into ``cache_mb`` is decoded now and kept.

    Raises:
        DataError: Pictures that are decoded now cannot be read; the message names them.
    """
    side = training_side(config.image_size, config.augment.min_area)
    training = Pictures(train, TrainingDecoder(side))
    validation = Pictures(val, EvaluationDecoder(preprocess))
    readers = cores() if config.workers is None else config.workers
    room = config.cache_mb * 2**20 - len(val) * 3 * preprocess.image_size**2
    if room >= 0:
        validation = keep_all(validation, workers=readers)
    if room >= len(train) * 4 * side**2:  # 3 bytes a pixel, 4 pixels wide for 3 high
        training = keep_all(training, workers=readers)
    spare = 0 if training.kept is not None else max(1, cores() - 1)
    return Sources(training, validation, spare if config.workers is None else config.workers)


def iterate(
    batches: TrainingBatches | EvaluationBatches, *, workers: int, pin: bool
) -> Iterator[Batch]:
    """The batches in order, prepared ahead by ``workers`` processes.

    Raises:
        DataError: A picture cannot be read; the message names it.
    """
    loader = DataLoader(
        batches,
        batch_size=None,
        num_workers=min(workers, len(batches)),
        collate_fn=_as_it_is,
        pin_memory=pin,
        worker_init_fn=ignore_interrupts,
        generator=torch.Generator(),  # else it would draw from the generator of the run
    )
    for batch in loader:
        if batch.problems:
            raise unreadable(batch.problems, batches.pictures.split.name)
        yield batch


def split_batches(rows: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Cut ``rows`` into batches; a last single row joins the batch before it.

    Batch normalisation cannot learn from one picture.
    """
    cuts = list(range(batch_size, len(rows), batch_size))
    if cuts and len(rows) - cuts[-1] == 1:
        cuts.pop()
    return np.split(rows, cuts)


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """How many batches :func:`split_batches` makes."""
    return len(split_batches(np.arange(rows), batch_size))


def _batch(
    pictures: Pictures, rows: NDArray[np.int64], view: Callable[[int, Picture], Picture]
) -> Batch:
    found = [_read(pictures, row) for row in rows.tolist()]
    problems = tuple(item for item in found if isinstance(item, str))
    images = [view(i, item) for i, item in enumerate(found) if not isinstance(item, str)]
    return Batch(
        images=torch.from_numpy(np.stack(images)) if images else torch.empty(0),
        labels=torch.from_numpy(pictures.split.labels[rows]),
        rows=torch.from_numpy(rows),
        problems=problems,
    )


def _read(pictures: Pictures, row: int) -> NDArray[np.uint8] | str:
    if pictures.kept is not None:
        return pictures.kept[row]
    return read_one(pictures.split, pictures.decoder, row)


def _as_it_is(batch: Any) -> Any:
    """A worker hands over whole batches; nothing is left to collate."""
    return batch

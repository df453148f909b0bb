"""From photos to batches, for training and for validation.

A batch depends on (seed, epoch, rows) alone, not on the number of workers or on where a resumed
run starts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from florilege.data.records import Dataset, Split
from florilege.models.images import decode, load
from florilege.training.batches.augmentation import DRAWS, augment
from florilege.training.batches.run_photos import (
    PictureCache,
    PictureDataset,
    RunPhotos,
    UnreadablePictures,
    loader_of,
)
from florilege.training.config import TrainConfig
from florilege.training.machines import ALONE, Ranks

ROWS_AT_ONCE: Final = 4096
CONSTANT: Final = 1e-6
"""A dimension whose deviation is at most this share of its scale is constant, but for rounding."""


@dataclass(frozen=True)
class Features:
    """The features of a split by row, on which a head is trained in place of pictures."""

    split: Split
    values: NDArray[np.float32]  # (stored photos, dimensions), memory-mapped
    rows: NDArray[np.int64]  # the row of ``values`` of each picture, (len(split),)
    ids: Sequence[bytes] | None = None  # `photo_id` of each picture
    fingerprints: NDArray[np.uint64] | None = None  # of training photos, (len(split), words)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        """The features of one picture, ``(dimensions,)``."""
        features: NDArray[np.float32] = self.values[self.rows[row]]
        return features

    def of(self, rows: NDArray[np.intp]) -> "Features":
        """The features of some pictures, in the given order."""
        split = self.split.select_rows(rows, name=self.split.name)
        return Features(split, self.values, self.rows[rows])

    def blocks(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Features ``(pictures, dimensions)`` and labels, in order, in blocks of pictures."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            yield self.values[self.rows[part]], self.split.labels[part]

    def spread(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each dimension, float32; 1 for a constant dimension."""
        # In two passes: in one, the difference of two large sums would cancel where the mean is
        # large.
        sums = sum(values.sum(0, dtype=np.float64) for values, _ in self.blocks())
        mean = sums / len(self)
        squares = sum(np.square(values - mean).sum(0) for values, _ in self.blocks())
        deviation = np.sqrt(squares / len(self))
        deviation[deviation <= CONSTANT * np.sqrt(np.square(mean) + squares / len(self))] = 1.0
        return torch.tensor(mean).float(), torch.tensor(deviation).float()


_GOLDEN: Final = 0x9E3779B97F4A7C15

Rows = NDArray[np.int64]
"""Rows of a split."""


class Batch(NamedTuple):
    """A batch of pictures."""

    images: Tensor  # uint8, (batch, height, width, 3)
    labels: Tensor  # int64, (batch,)
    rows: Tensor  # their rows in the split, int64, (batch,)
    whole: Tensor  # labels of the whole batch over all processes, int64
    problems: tuple[str, ...]  # errors of pictures that are left out


class PictureBatches(TorchDataset[Batch]):
    """Batches of a split by their rows, without augmentation, read on demand."""

    def __init__(self, pictures: PictureDataset | Features) -> None:
        self.pictures = pictures

    def __getitem__(self, rows: Rows) -> Batch:
        return _read_batch(self.pictures, rows, whole=rows)


def _read_batch(
    pictures: PictureDataset | Features,
    rows: Rows,
    whole: Rows,
    views: Callable[[Rows, list[Any]], list[Any]] = lambda _rows, pictures: pictures,
) -> Batch:
    """The pictures of ``rows``, part of the batch ``whole``; ``views`` turns them into inputs."""
    items: list[Any] = [pictures[row] for row in rows.tolist()]
    problems = tuple(item for item in items if isinstance(item, str))
    if problems:
        rows = rows[[not isinstance(item, str) for item in items]]
        items = [item for item in items if not isinstance(item, str)]
    inputs, labels = views(rows, items), pictures.split.labels
    return Batch(
        images=torch.from_numpy(np.stack(inputs)) if inputs else torch.empty(0),
        labels=torch.from_numpy(labels[rows]),
        rows=torch.from_numpy(rows),
        whole=torch.from_numpy(labels[whole]),
        problems=problems,
    )


@dataclass(frozen=True)
class Sources:
    """Where batches come from during a run."""

    training: PictureDataset | Features  # pictures at the size random crops need
    validation: PictureDataset | Features  # pictures preprocessed as on the server
    workers: int  # processes that prepare batches; 0 prepares them in the loop

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        config: TrainConfig,
        ranks: Ranks = ALONE,
        *,
        on_gpu: bool = False,
        photos: RunPhotos | None = None,
    ) -> "Sources":
        """Prepare `train` and `val`; what fits into ``cache_mb`` is decoded now and kept in memory.

        Each process keeps its own copy and uses its share of the cores. For a GPU, workers augment
        pictures even if these are in memory, so that the GPU does not wait. ``photos`` takes note
        of each photo that is read.

        Raises:
            DataError: Some pictures cannot be read; the message names them.
            UsageError: ``picture_cache`` holds other files or cannot be written.
        """
        train, val = dataset.split("train"), dataset.split("val")
        preprocess = config.preprocess
        side = _training_side(preprocess.image_size, config.augment.min_area)
        photos = photos or RunPhotos({"train": train, "val": val})
        hashes, fingerprints = photos.hashes, photos.fingerprints
        decoder = partial(_decode_for_training, side=side)
        training = PictureDataset(train, decoder, hashes=hashes["train"], fingerprints=fingerprints)
        validation = PictureDataset(val, partial(load, preprocess=preprocess), hashes=hashes["val"])
        readers = ranks.cores if config.workers is None else config.workers
        free_bytes = config.cache_mb * 2**20 - len(val) * 3 * preprocess.image_size**2
        if free_bytes >= 0:
            validation = _keep_all(validation, workers=readers)
        median_side = train.short_side() or side
        shrunk_side = max(side, median_side // max(1, median_side // side))  # by a whole factor
        # Three bytes a pixel, and photos are about four wide for three high.
        if free_bytes >= len(train) * 4 * shrunk_side**2:
            training = _keep_all(training, workers=readers)
        elif config.picture_cache is not None:
            training = replace(training, cache=PictureCache(Path(config.picture_cache), side))
        default = 0 if training.in_memory is not None and not on_gpu else max(1, ranks.cores - 1)
        return cls(training, validation, default if config.workers is None else config.workers)

    def blank(self, image_size: int) -> Tensor:
        """Two blank inputs of the network."""
        if isinstance(self.training, Features):
            return torch.zeros(2, self.training.values.shape[1])
        return torch.zeros(2, image_size, image_size, 3, dtype=torch.uint8)


def _decode_for_training(data: bytes, *, side: int) -> Image.Image:
    """The whole picture at a short side of ``side`` pixels or a little more, for random crops.

    It is shrunk only by a whole factor, a JPEG while decoding: `augment` resizes each crop, so that
    a picture is resized once. A long side of more than twice the short one is cut at both ends.
    """
    # The decoder shrinks to no less than twice its target.
    image = decode(data, target=-(-side // 2))
    width, height = image.size
    short = min(width, height)
    left, top = max(0, width - 2 * short) // 2, max(0, height - 2 * short) // 2
    if left or top:
        return image.crop((left, top, left + min(width, 2 * short), top + min(height, 2 * short)))
    return image


def _training_side(image_size: int, min_area: float) -> int:
    """Short side below which training pictures are not shrunk, at most 1.5 times ``image_size``.

    Then the smallest crop need not be enlarged, unless the limit applies.
    """
    return math.ceil(image_size * min(1.5, 1 / math.sqrt(min_area)))


def _keep_all(pictures: PictureDataset, *, workers: int) -> PictureDataset:
    """Decode every picture once and keep it in memory; errors as in `read_all`.

    An array takes three bytes per pixel, a Pillow image four.
    """
    reader = replace(pictures, decoder=lambda data: np.asarray(pictures.decoder(data)))
    return replace(pictures, in_memory=reader.read_all("reading", workers))


class _BatchKey(NamedTuple):
    """A batch of a run."""

    epoch: int | None  # None for validation
    rows: Rows  # of this process
    whole: Rows  # of all processes


class _RunBatches(TorchDataset[Batch]):
    """The batches of a run; those of training, unless they hold features, are augmented."""

    def __init__(self, sources: Sources, config: TrainConfig) -> None:
        self.sources, self.config = sources, config

    def __getitem__(self, key: _BatchKey) -> Batch:
        epoch, rows, whole = key
        pictures = self.sources.validation if epoch is None else self.sources.training
        if epoch is None or isinstance(pictures, Features):
            return _read_batch(pictures, rows, whole)
        return _read_batch(pictures, rows, whole, partial(self._augmented, epoch))

    def _augmented(self, epoch: int, rows: Rows, pictures: list[Any]) -> list[Any]:
        """Each picture at the input size, augmented with the numbers drawn for its row."""
        size, config = self.config.preprocess.image_size, self.config.augment
        draws = _uniforms(self.config.seed, epoch, rows, DRAWS).tolist()
        return [
            augment(picture, size, config, numbers)
            for picture, numbers in zip(pictures, draws, strict=True)
        ]


class BatchLoader:
    """The batches of a run, prepared ahead by workers that live as long as the loader.

    With several processes, each takes its part of every training batch, and validation batches in
    turn, in ``validation_rounds``. ``pin`` puts batches into page-locked memory, from which a GPU
    copies while it computes.
    """

    def __init__(
        self, sources: Sources, config: TrainConfig, ranks: Ranks = ALONE, *, pin: bool = False
    ) -> None:
        self.sources, self.config, self.ranks = sources, config, ranks
        size = 2 * -(-config.batch_size // ranks.count)
        validation = _split_batches(np.arange(len(sources.validation)), size)
        batches = self._training_rows(0)
        self.training_batches = len(batches)
        self.usual_rows = len(ranks.part(batches[0]))  # of all batches but perhaps the last
        self.validation_rounds = -(-len(validation) // ranks.count)
        self._validation = validation[ranks.rank :: ranks.count]
        self._keys: list[_BatchKey] = []  # of the batches requested next
        self._loader = loader_of(
            _RunBatches(sources, config),
            sampler=self._keys,
            workers=min(sources.workers, max(self.training_batches, len(self._validation))),
            pin=pin,
        )

    def _training_rows(self, epoch: int) -> list[Rows]:
        """The rows of each batch of an epoch, over all processes."""
        rows = np.arange(len(self.sources.training))
        rows = np.random.default_rng((self.config.seed, epoch)).permutation(rows)
        return _split_batches(rows, self.config.batch_size, fewest=2 * self.ranks.count)

    def training(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from the ``first`` on; a ``DataError`` names a bad picture."""
        batches = self._training_rows(epoch)[first:]
        keys = [_BatchKey(epoch, self.ranks.part(whole), whole) for whole in batches]
        return self._prepared(keys, self.sources.training)

    def validation(self) -> Iterator[Batch]:
        """The batches of `val` for this process; errors as in :meth:`training`."""
        keys = [_BatchKey(None, rows, rows) for rows in self._validation]
        return self._prepared(keys, self.sources.validation)

    def _prepared(
        self, keys: Sequence[_BatchKey], pictures: PictureDataset | Features
    ) -> Iterator[Batch]:
        # In place: this list is the sampler of the loader, whose workers live on from epoch to
        # epoch.
        self._keys[:] = keys
        for batch in self._loader:
            if batch.problems:
                raise UnreadablePictures.of(batch.problems, pictures.split.name)
            yield batch


def _split_batches(rows: Rows, batch_size: int, fewest: int = 1) -> list[Rows]:
    """Split ``rows`` into batches; a last one of fewer than ``fewest`` rows joins the one before.

    Batch normalisation cannot train on a single picture, in any of the processes.
    """
    cuts = list(range(batch_size, len(rows), batch_size))
    if cuts and len(rows) - cuts[-1] < fewest:
        cuts.pop()
    return np.split(rows, cuts)


def _uniforms(seed: int, epoch: int, rows: Rows, count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), ``(len(rows), count)``; they depend on seed, epoch and row alone.

    So no state has to be saved. A counter-based generator: three rounds of SplitMix64 hash (seed,
    epoch, row) to a stream, and a fourth hashes each count of that stream, all rows at once.

    References:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    stream = _mix(np.array([seed], dtype=np.uint64))
    stream = _mix(stream + np.uint64(epoch))
    streams = _mix(stream + rows.astype(np.uint64))  # (rows,)
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)  # (count,)
    bits = _mix(streams[:, None] + counters)  # (rows, count)
    # The 53 highest bits, as many as a float64 holds: every result is exact and below 1.
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of SplitMix64, which relies on unsigned arrays wrapping around."""
    state = state + np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed

"""The photos that a run uses, identified while they are read for the first time."""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from florilege.data.copies.fingerprints import WORDS
from florilege.data.dataset import Dataset, Split
from florilege.models.backbones.architecture import PRETRAINED
from florilege.models.backbones.weights import Weights
from florilege.models.photo_hashes import PhotoHashes
from florilege.training.config import TrainConfig
from florilege.training.loop.distributed import Ranks

Hashes = NDArray[np.uint64]
"""The `photo_hash` of each photo of a split, as a little-endian number; 0 while it is unknown."""
Fingerprints = NDArray[np.uint64]
"""The `fingerprint` of each training photo, ``(photos, WORDS)``; 0 while it is unknown."""

_BEFORE: Final = "before"  # beside the names of splits in a checkpoint
_FINGERPRINTS: Final = "fingerprints"


def _unknown_hashes(photos: int, words: int = 1) -> Hashes:
    """Hashes of photos that are yet to be read, in memory that forked processes share."""
    count = photos * words
    hashes = np.frombuffer(mmap.mmap(-1, max(1, 8 * count)), dtype="<u8", count=count)
    return hashes if words == 1 else hashes.reshape(photos, words)


def numbers_of(photos: Sequence[bytes]) -> Hashes:
    """The results of `photo_hash`, or the bytes of fingerprints, as numbers."""
    return np.frombuffer(b"".join(photos), dtype="<u8")


@dataclass
class RunPhotos:
    """The photos that train a network and choose its checkpoint, as far as they have been read.

    Reading all of them before the first step could take hours, so their readers note their hashes
    in the first epoch. A checkpoint holds the state until ``photos.npz`` is written.
    """

    splits: Mapping[str, Split] = field(default_factory=dict)  # train and val, if they are used
    before: PhotoHashes = field(default_factory=PhotoHashes.of)  # of networks it starts from
    recorded: bool = False  # whether `photos.npz` is written; the same in all processes

    def __post_init__(self) -> None:
        self.hashes = {name: _unknown_hashes(len(split)) for name, split in self.splits.items()}
        train = self.splits.get("train", ())
        self.fingerprints: Fingerprints = _unknown_hashes(len(train), WORDS)

    @classmethod
    def of(
        cls, dataset: Dataset, config: TrainConfig, weights: Weights | None, *, recorded: bool
    ) -> "RunPhotos":
        """Those of a run that starts from ``weights``, which are not read again on resuming."""
        names = ("train", "val") if config.epochs else ()
        splits = {name: dataset.split(name) for name in names}
        if weights is not None and weights.photos is not None:
            return cls(splits, weights.photos, recorded)
        unknown = weights is None and config.weights not in (None, PRETRAINED)
        return cls(splits, PhotoHashes.of(complete=not unknown), recorded)

    def gather(self, ranks: Ranks) -> None:
        """Let the first process know the photos that the others have read."""
        if self.recorded or ranks.alone:
            return
        ours = self._arrays()
        for others in ranks.gather(ours):
            for name, hashes in others.items():
                np.maximum(ours[name], hashes, out=ours[name])

    def _arrays(self) -> dict[str, NDArray[np.uint64]]:
        return {**self.hashes, _FINGERPRINTS: self.fingerprints}

    def all(self, identify: Callable[[Split], list[tuple[bytes, bytes]]]) -> PhotoHashes:
        """The hashes of all photos; ``identify`` reads photos that no process has read.

        These are those of a run that an older version began.
        """
        for name, split in self.splits.items():
            unknown = self.hashes[name] == 0
            if name == "train":
                unknown |= ~self.fingerprints.any(axis=1)
            rows = np.flatnonzero(unknown)
            if rows.size:
                photos, fingerprints = zip(
                    *identify(split.select_rows(rows, name=name)), strict=True
                )
                self.hashes[name][rows] = numbers_of(photos)
                if name == "train":
                    self.fingerprints[rows] = numbers_of(fingerprints).reshape(-1, WORDS)
        if not self.splits:
            return self.before
        train, val = (np.unique(self.hashes[name]) for name in ("train", "val"))
        ours = PhotoHashes(train=train, selection=val, fingerprints=self.fingerprints)
        return ours | self.before

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs to know; nothing once the photos are recorded."""
        if self.recorded:
            return {}
        before = np.frombuffer(self.before.to_bytes(), dtype=np.uint8)
        hashes = {name: hashes.view(np.int64) for name, hashes in self._arrays().items()}
        return {name: torch.tensor(array) for name, array in {**hashes, _BEFORE: before}.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state_dict`; without one, as of an older version, change nothing.

        Raises:
            KeyError, ValueError: It is damaged, or that of other photos.
        """
        if not state:
            return
        for name, hashes in self._arrays().items():
            if name in state or name in self.hashes:  # older versions had no fingerprints
                hashes[:] = state[name].numpy().view(np.uint64)
        self.before = PhotoHashes.from_bytes(state[_BEFORE].numpy().tobytes())

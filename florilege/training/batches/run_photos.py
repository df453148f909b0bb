"""The photos of a run: decoded on demand, kept in memory or cached on disk, and identified while
they are read for the first time."""

import mmap
import shutil
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from florilege.data.copies import WORDS, fingerprint, look_at
from florilege.data.records import Dataset, Split
from florilege.errors import DataError, UsageError, count_of, os_error_as
from florilege.files import atomic_writer
from florilege.models.backbones import PRETRAINED, Weights
from florilege.models.images import DECODER_VERSION, ImageError
from florilege.models.photo_hashes import HASH_BYTES, PhotoHashes, photo_hash
from florilege.terminal import progress
from florilege.training.config import TrainConfig
from florilege.training.machines import Ranks

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


def _numbers_of(photos: Sequence[bytes]) -> Hashes:
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
                # 0 is unknown, and all who know a hash know the same one.
                np.maximum(ours[name], hashes, out=ours[name])

    def note(
        self, name: str, ids: Sequence[bytes] | None, fingerprints: Fingerprints | None
    ) -> None:
        """Take note of the photos of a split that have been read to compute their features.

        They are known by the results of `photo_id`, which begin with those of `photo_hash`.
        """
        if ids is not None:
            self.hashes[name][:] = _numbers_of([photo[:HASH_BYTES] for photo in ids])
        if fingerprints is not None:
            self.fingerprints[:] = fingerprints

    def _arrays(self) -> dict[str, NDArray[np.uint64]]:
        return {**self.hashes, _FINGERPRINTS: self.fingerprints}

    def all(self, *, workers: int) -> PhotoHashes:
        """The hashes of all photos; those that no process has read are read now.

        These are those of a run that an older version began.
        """
        for name, split in self.splits.items():
            unknown = self.hashes[name] == 0
            if name == "train":
                unknown |= ~self.fingerprints.any(axis=1)
            rows = np.flatnonzero(unknown)
            if rows.size:
                photos, fingerprints = zip(
                    *_hash_photos(split.select_rows(rows, name=name), workers=workers), strict=True
                )
                self.hashes[name][rows] = _numbers_of(photos)
                if name == "train":
                    self.fingerprints[rows] = _numbers_of(fingerprints).reshape(-1, WORDS)
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
        """Restore the result of `state_dict`; without one, change nothing.

        Raises:
            KeyError, ValueError: It is damaged, or that of other photos.
        """
        if not state:
            return
        for name, hashes in self._arrays().items():
            hashes[:] = state[name].numpy().view(np.uint64)
        self.before = PhotoHashes.from_bytes(state[_BEFORE].numpy().tobytes())


Picture = NDArray[np.uint8]
CHUNK: Final = 64
_SHOWN: Final = 10
TAG: Final = "CACHEDIR.TAG"
_SIGNATURE: Final = "Signature: 8a477f597d28d172789f06886806bc55"  # bford.info/cachedir
_TEXT: Final = f"{_SIGNATURE}\n# Pictures of `florilege train`; remove the folder at any time.\n"
_FREE_SHARE: Final = 0.1  # of a disk that stays free


class PictureCache:
    """Decoded training pictures on disk, shared by runs and processes.

    The file of a picture is named by the hash of its photo. So any data set, split or order finds
    it, and a changed photo does not. A cached picture equals the decoded one bit for bit; it is not
    shrunk below a short side of ``side`` pixels.

    Raises:
        UsageError: The folder holds other files or cannot be written.
    """

    def __init__(self, folder: Path, side: int) -> None:
        self._root = folder
        self._folder = folder / f"{side}px-decoder-{DECODER_VERSION}-pillow-{PIL.__version__}"
        advice = "; give picture_cache a folder of its own"
        with os_error_as(UsageError, str(folder), advice):
            if folder.is_dir() and any(folder.iterdir()) and not (folder / TAG).is_file():
                raise UsageError(f"{folder} holds files other than decoded pictures{advice}")
            self._folder.mkdir(parents=True, exist_ok=True)
            (folder / TAG).write_text(_TEXT)

    @property
    def has_room(self) -> bool:
        """Whether more than a tenth of the disk is free."""
        disk = shutil.disk_usage(self._root)
        return disk.free > _FREE_SHARE * disk.total

    def read(self, photo: np.uint64, decode: Callable[[], Any]) -> Any:
        """The picture of a photo by its hash; the result of ``decode`` if it is missing."""
        name = photo.tobytes().hex()
        path = self._folder / name[:2] / f"{name}.npy"
        try:
            return np.load(path)
        except (OSError, EOFError, ValueError):  # missing or cut off
            picture = decode()
        if self.has_room:
            # The disk is full: the photo is decoded again next time.
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_writer(path) as file:
                    np.save(file, picture)
        return picture


@dataclass(frozen=True)
class PictureDataset(TorchDataset[Any]):
    """Pictures of a split by row, uint8 ``(height, width, 3)``.

    ``decoder`` turns the bytes of a file into a picture. Pictures come from ``in_memory`` if given,
    else from ``cache``, which needs ``hashes``, else from their files. Whoever reads a file notes
    its hash in ``hashes``, and what the picture shows in ``fingerprints``.
    """

    split: Split
    decoder: Callable[[bytes], Any]
    in_memory: Sequence[Picture] | None = None
    hashes: Hashes | None = None
    fingerprints: Fingerprints | None = None
    cache: PictureCache | None = None

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> Any:
        """One picture, or an error message about its file."""
        if self.in_memory is not None:
            return self.in_memory[row]
        try:
            return self._picture(row)
        except (ImageError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            return f"{self.split.names[row]}: {reason}"

    def _picture(self, row: int) -> Any:
        if self.hashes is None:
            return self.decoder(self.split.read(row))
        photo = None
        if not self.hashes[row]:
            photo = self.split.read(row)
            self.hashes[row] = _numbers_of([photo_hash(photo)])[0]

        def decode() -> Any:
            return self.decoder(self.split.read(row) if photo is None else photo)

        picture = decode() if self.cache is None else self.cache.read(self.hashes[row], decode)
        if photo is not None and self.fingerprints is not None:
            self.fingerprints[row] = fingerprint(look_at(Image.fromarray(np.asarray(picture))))
        return picture

    def read_all(self, activity: str, workers: int) -> list[Any]:
        """The result of the decoder for each file; a ``DataError`` names unreadable ones."""
        items, problems = list[Any](), list[str]()
        chunks = loader_of(self, chunk=CHUNK, workers=workers if len(self) > 4 * CHUNK else 0)
        with progress(len(self), f"{activity} {self.split.name}") as advance:
            for chunk in chunks:
                items += [item for item in chunk if not isinstance(item, str)]
                problems += [item for item in chunk if isinstance(item, str)]
                advance(len(chunk))
        if problems:
            raise UnreadablePictures.of(problems, self.split.name)
        return items


class UnreadablePictures(DataError):
    """Some pictures of one split cannot be read; others may be damaged as well."""

    @classmethod
    def of(cls, problems: Sequence[str], split: str) -> "UnreadablePictures":
        """The error for the pictures with these problems."""
        listed = "\n  ".join(problems[:_SHOWN])
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        return cls(
            f"{count_of(len(problems), 'picture')} of {split} cannot be read; repair or "
            f"remove them (`florilege data check` lists them all):\n  {listed}{more}"
        )


def _hash_photos(split: Split, *, workers: int) -> list[tuple[bytes, bytes]]:
    """`photo_hash` and `fingerprint` of every picture of a split; errors as in `read_all`."""
    return PictureDataset(split, _identified).read_all("identifying", workers)


def _identified(content: bytes) -> tuple[bytes, bytes]:
    return photo_hash(content), fingerprint(look_at(content)).tobytes()


def loader_of(
    items: TorchDataset[Any],
    *,
    workers: int,
    chunk: int | None = None,
    pin: bool = False,
    sampler: Sequence[Any] | None = None,
) -> DataLoader[Any]:
    """A loader of single items or lists of ``chunk``, by default all in order.

    Its workers live as long as it does.
    """
    # torch warns of more workers than cores, which may be asked for.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        return DataLoader(
            items,
            sampler=sampler,
            batch_size=chunk,
            num_workers=workers,
            collate_fn=lambda item: item,  # a whole batch already
            pin_memory=pin,
            worker_init_fn=_ignore_stop_signals,
            persistent_workers=workers > 0,
            # "forkserver" would copy the photos to each worker, which would survive a kill
            multiprocessing_context="fork" if workers else None,
            # Otherwise it would draw from the global generator, whose state a resumed run restores.
            generator=torch.Generator(),
        )


def _ignore_stop_signals(_worker: int) -> None:
    """Ctrl-C, and the SIGTERM that `torchrun` makes of it, are left to the main process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

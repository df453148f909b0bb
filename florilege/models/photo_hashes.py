"""Hashes of the photos that trained a network or chose its checkpoint, stored with the network.

Results on such photos are too optimistic for new photos, whatever their names. A photo is
identified by its bytes: a copy is recognised, a cropped or re-encoded version is not.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

PHOTOS: Final = "photos.npz"  # in a run folder and in a bundle
_HASH_BYTES: Final = 8
_DAMAGED: Final = (
    *(OSError, KeyError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error),
    *(MemoryError, RuntimeError),  # a shape of more than fits; a password
)


def photo_hash(content: bytes) -> bytes:
    """The first eight bytes of the SHA-256 of a photo."""
    return hashlib.sha256(content).digest()[:_HASH_BYTES]


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoHashes:
    """Hashes of the photos of a network and of the networks it started from, eight bytes each."""

    train: NDArray[np.uint64]  # of the training photos, ascending, shape (photos,)
    selection: NDArray[np.uint64]  # of the photos that chose its checkpoint
    complete: bool = True  # false if it started from weights whose photos are unknown

    @classmethod
    def of(
        cls, train: Iterable[bytes] = (), selection: Iterable[bytes] = (), *, complete: bool = True
    ) -> "PhotoHashes":
        """Build from the results of :func:`photo_hash`."""
        return cls(train=_numbers(train), selection=_numbers(selection), complete=complete)

    def __or__(self, other: "PhotoHashes") -> "PhotoHashes":
        return PhotoHashes(
            train=np.union1d(self.train, other.train),
            selection=np.union1d(self.selection, other.selection),
            complete=self.complete and other.complete,
        )

    def overlap(self, photos: Iterable[bytes]) -> tuple[int, int]:
        """How many of ``photos`` trained the network, and how many chose its checkpoint.

        ``photos`` are SHA-256 digests or results of :func:`photo_hash`.
        """
        hashes = _numbers(photos, unique=False)
        train, selection = (np.isin(hashes, known) for known in (self.train, self.selection))
        return int(train.sum()), int(selection.sum())

    def chose(self, photos: Iterable[bytes]) -> NDArray[np.bool_]:
        """Which of ``photos`` chose the checkpoint, shape ``(photos,)``."""
        return np.isin(_numbers(photos, unique=False), self.selection)

    def to_bytes(self) -> bytes:
        """The content of :data:`PHOTOS`; equal photos give equal bytes."""
        file = io.BytesIO()
        np.savez(file, train=self.train, selection=self.selection, complete=np.array(self.complete))
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "PhotoHashes":
        """Read the result of :meth:`to_bytes`; a `ValueError` if the content is damaged."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                names = ("train", "selection", "complete")
                train, selection, complete = (np.asarray(file[name]) for name in names)
        except _DAMAGED as error:
            raise ValueError(f"not a list of photos: {error}") from error
        for hashes in (train, selection):
            if hashes.dtype != np.uint64 or hashes.ndim != 1:
                raise ValueError(f"hashes must be a row of uint64, got {hashes.dtype}")
        if complete.dtype != np.bool_ or complete.ndim:
            raise ValueError(f"complete must be true or false, got {complete.dtype}")
        return cls(train=train, selection=selection, complete=bool(complete))


def _numbers(photos: Iterable[bytes], *, unique: bool = True) -> NDArray[np.uint64]:
    hashes = np.frombuffer(b"".join(photo[:_HASH_BYTES] for photo in photos), dtype="<u8")
    return np.unique(hashes) if unique else hashes

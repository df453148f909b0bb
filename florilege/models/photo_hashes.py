"""Hashes of the photos that trained a network or chose its checkpoint, stored with the network.

Results on such photos are too optimistic for new photos, whatever their names. A photo is
identified by its bytes. Fingerprints of the training photos also tell copies in other bytes:
resized, re-encoded or cropped ones.
"""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.lib.format import read_array
from numpy.typing import NDArray

from florilege.files import open_stored

PHOTOS: Final = "photos.npz"  # in a run folder and in a bundle
# Among a million photos and 100,000 others, two share eight bytes with a probability of 5e-9.
HASH_BYTES: Final = 8


def photo_hash(content: bytes) -> bytes:
    """The first eight bytes of the SHA-256 of a photo."""
    return hashlib.sha256(content).digest()[:HASH_BYTES]


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoHashes:
    """Hashes of the photos of a network and of the networks it started from, eight bytes each."""

    train: NDArray[np.uint64]  # of the training photos, ascending, shape (photos,)
    selection: NDArray[np.uint64]  # of the photos that chose its checkpoint
    complete: bool = True  # false if it started from weights whose photos are unknown
    # Of the training photos, (photos, words); None if those of some are unknown.
    fingerprints: NDArray[np.uint64] | None = None

    @classmethod
    def of(
        cls, train: Iterable[bytes] = (), selection: Iterable[bytes] = (), *, complete: bool = True
    ) -> "PhotoHashes":
        """Build from the results of :func:`photo_hash`."""
        return cls(train=_numbers(train), selection=_numbers(selection), complete=complete)

    def __or__(self, other: "PhotoHashes") -> "PhotoHashes":
        parts = [part.fingerprints for part in (self, other) if part.train.size]
        fingerprints = [part for part in parts if part is not None]
        every = bool(parts) and len(fingerprints) == len(parts)
        return PhotoHashes(
            fingerprints=np.unique(np.concatenate(fingerprints), axis=0) if every else None,
            train=np.union1d(self.train, other.train),
            selection=np.union1d(self.selection, other.selection),
            complete=self.complete and other.complete,
        )

    def trained(self, photos: Iterable[bytes]) -> NDArray[np.bool_]:
        """Which of ``photos`` trained the network, shape ``(photos,)``.

        ``photos`` are SHA-256 digests or results of :func:`photo_hash`.
        """
        return np.isin(_numbers(photos, unique=False), self.train)

    def chose(self, photos: Iterable[bytes]) -> NDArray[np.bool_]:
        """Which of ``photos`` chose the checkpoint, shape ``(photos,)``."""
        return np.isin(_numbers(photos, unique=False), self.selection)

    def to_bytes(self) -> bytes:
        """The content of :data:`PHOTOS`; equal photos give equal bytes."""
        file, arrays = io.BytesIO(), vars(self) | {"complete": np.array(self.complete)}
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "PhotoHashes":
        """Read the result of :meth:`to_bytes`; a `ValueError` if the content is damaged."""
        try:
            with open_stored(io.BytesIO(content)) as archive:

                def array(name: str) -> NDArray[Any]:
                    with archive.open(f"{name}.npy") as file:
                        return read_array(file, allow_pickle=False)

                train, selection, complete = map(array, ("train", "selection", "complete"))
                is_older = "fingerprints.npy" not in archive.namelist()
                fingerprints = None if is_older else array("fingerprints")
        except (ValueError, KeyError, MemoryError) as error:  # last: a shape of more than fits
            raise ValueError(f"not a list of photos: {error}") from error
        for hashes, dimensions in ((train, 1), (selection, 1), (fingerprints, 2)):
            if hashes is not None and (hashes.dtype != np.uint64 or hashes.ndim != dimensions):
                kind = f"{hashes.dtype} of shape {hashes.shape}"
                raise ValueError(f"hashes must be uint64, got {kind}")
        if complete.dtype != np.bool_ or complete.ndim:
            raise ValueError(f"complete must be true or false, got {complete.dtype}")
        return cls(
            train=train, selection=selection, complete=bool(complete), fingerprints=fingerprints
        )


def _numbers(photos: Iterable[bytes], *, unique: bool = True) -> NDArray[np.uint64]:
    hashes = np.frombuffer(b"".join(photo[:HASH_BYTES] for photo in photos), dtype="<u8")
    return np.unique(hashes) if unique else hashes

"""Features stored on disk by photo: computed once for a network, read by any number of runs.

The folder of a network holds ``features.f32``, a row of float32 for each photo, and ``photos.id``,
the 16 bytes that identify each. Both only grow, the features first: an interruption loses only the
rows being written.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilege.data.dataset import Split
from florilege.errors import BundleError
from florilege.models.images import DECODER_VERSION, Preprocess

ID_BYTES: Final = 16
ROWS_AT_ONCE: Final = 4096
CONSTANT: Final = 1e-6
"""A dimension whose deviation is at most this share of its scale is constant, but for rounding."""


def photo_id(content: bytes) -> bytes:
    """A hash of a photo's bytes, so that its features outlast its name, label and split."""
    return hashlib.blake2b(content, digest_size=ID_BYTES).digest()


def folder_name(
    name: str, backbone: nn.Module, preprocess: Preprocess, *, computed_by: str = "onnxruntime"
) -> str:
    """Folder of the features of a network: its name, and a hash of its weights and preprocessing.

    The hash covers the version of the decoder, and ``computed_by``, because a GPU, ONNX Runtime and
    OpenVINO differ in the last digits.
    """
    digest = hashlib.sha256(preprocess.to_json().encode())
    digest.update(f"decoder {DECODER_VERSION}".encode())
    if computed_by != "onnxruntime":  # which folders of older versions do not name
        digest.update(computed_by.encode())
    for key, value in backbone.state_dict().items():
        digest.update(key.encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return f"{safe}-{digest.hexdigest()[:16]}"


class FeatureStore:
    """The stored features of one network, ``dimensions`` numbers per photo."""

    def __init__(self, folder: Path, dimensions: int) -> None:
        self.folder, self.dimensions = folder, dimensions
        self._values, self._ids = folder / "features.f32", folder / "photos.id"
        self.row_of = self._read()

    def _read(self) -> dict[bytes, int]:
        """The row of each photo; rows that an interruption left half written are ignored."""
        if not self._ids.is_file() or not self._values.is_file():
            return {}
        ids = self._ids.read_bytes()
        rows = min(len(ids) // ID_BYTES, self._values.stat().st_size // (4 * self.dimensions))
        return {ids[row * ID_BYTES : (row + 1) * ID_BYTES]: row for row in range(rows)}

    def add(self, ids: Sequence[bytes], values: NDArray[np.float32]) -> None:
        """Store the features of new photos, ``values`` being ``(photos, dimensions)``.

        Raises:
            BundleError: They cannot be written, as on a full disk; earlier ones stay.
        """
        rows = len(self.row_of)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_at(self._values, 4 * self.dimensions * rows, values.astype("<f4").tobytes())
            _write_at(self._ids, ID_BYTES * rows, b"".join(ids))
        except OSError as error:
            raise BundleError(
                f"cannot store features in {self.folder}: {error.strerror or error}. Those of "
                f"{rows} photos are stored: make room, or name another folder with --features"
            ) from error
        self.row_of.update({photo: rows + index for index, photo in enumerate(ids)})

    def values(self) -> NDArray[np.float32]:
        """All rows, ``(photos, dimensions)``, memory-mapped."""
        shape = (len(self.row_of), self.dimensions)
        return np.memmap(self._values, dtype="<f4", mode="r", shape=shape)


def _write_at(path: Path, start: int, content: bytes) -> None:
    """Write from byte ``start`` on, over anything that an interruption left there."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(start)
        file.seek(start)
        file.write(content)


@dataclass(frozen=True)
class Features:
    """The features of a split by row, on which a head is trained in place of pictures."""

    split: Split
    values: NDArray[np.float32]  # (stored photos, dimensions), memory-mapped
    rows: NDArray[np.int64]  # the row of ``values`` of each picture, (len(split),)
    hashes: Sequence[bytes] | None = None  # `photo_hash` of each picture

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        """The features of one picture, ``(dimensions,)``."""
        features: NDArray[np.float32] = self.values[self.rows[row]]
        return features

    def blocks(self) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Features ``(pictures, dimensions)`` and labels, in order, in blocks of pictures."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            yield self.values[self.rows[part]], self.split.labels[part]

    def spread(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each dimension, float32; 1 for a constant dimension."""
        sums = sum(values.sum(0, dtype=np.float64) for values, _ in self.blocks())
        mean = sums / len(self)
        squares = sum(np.square(values - mean).sum(0) for values, _ in self.blocks())
        deviation = np.sqrt(squares / len(self))
        deviation[deviation <= CONSTANT * np.sqrt(np.square(mean) + squares / len(self))] = 1.0
        return torch.tensor(mean).float(), torch.tensor(deviation).float()

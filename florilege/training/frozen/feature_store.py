"""Features of the photos of a split, and the folder that stores those of a network."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilege.data.dataset import Split
from florilege.models.images import DECODER_VERSION, Preprocess

ROWS_AT_ONCE: Final = 4096
CONSTANT: Final = 1e-6
"""A dimension whose deviation is at most this share of its scale is constant, but for rounding."""


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


@dataclass(frozen=True)
class Features:
    """The features of a split by row, on which a head is trained in place of pictures."""

    split: Split
    values: NDArray[np.float32]  # (stored photos, dimensions), memory-mapped
    rows: NDArray[np.int64]  # the row of ``values`` of each picture, (len(split),)
    hashes: Sequence[bytes] | None = None  # `photo_hash` of each picture
    fingerprints: NDArray[np.uint64] | None = None  # of training photos, (len(split), words)

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

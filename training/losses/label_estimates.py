"""A matrix of estimated labels, one row per training image, that need not fit on the GPU."""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

OBSERVED = math.log(0.995 / 0.005)  # an observed label starts as almost certain
UNOBSERVED = math.log(0.6 / 0.4)  # the others start between 0.4 and 0.6
CHUNK = 1 << 22  # entries initialised at a time


class Observed(NamedTuple):
    """The observed labels of a batch, on the CPU, int64."""

    counted: Tensor  # rows of the batch that count, (counted,)
    rows: Tensor  # row of each label, (pairs,)
    classes: Tensor  # class of each label, (pairs,)


def observe(labels: Tensor, ignore_index: int) -> Observed:
    """Which classes are observed for which rows of a batch."""
    labels = labels.detach().cpu()
    if labels.is_floating_point():
        return Observed(torch.arange(len(labels)), *(labels > 0).nonzero().unbind(1))
    rows = (labels != ignore_index).nonzero().flatten()
    return Observed(rows, rows, labels[rows])


class Estimates:
    """Logits of the estimated labels, ``(rows, classes)``, in memory or in a mapped file.

    Only the rows of a batch are read or written. The observed label of a row is stored when the
    row is first updated; until then it is filled in on reading.

    Args:
        rows: Training images.
        classes: Classes.
        dtype: ``torch.float32``, or ``torch.float16`` for half the memory: steps below about
            0.001 are then lost.
        memory_map: File to keep the matrix in instead of memory. An existing file is replaced,
            not written into: a module or checkpoint that still reads the old one keeps it.
        seed: Seed of the initial values.
    """

    def __init__(
        self,
        rows: int,
        classes: int,
        *,
        dtype: torch.dtype = torch.float32,
        memory_map: Path | None = None,
        seed: int = 0,
    ) -> None:
        self.logits = _allocate(rows, classes, dtype, memory_map)
        self.is_observed = torch.zeros(rows, dtype=torch.bool)
        generator = torch.Generator().manual_seed(seed)
        for part in torch.split(self.logits, max(1, CHUNK // classes)):
            start = torch.empty(part.shape, dtype=torch.float32)
            part.copy_(start.uniform_(-UNOBSERVED, UNOBSERVED, generator=generator))

    def read(self, row_index: Tensor, observed: Observed) -> Tensor:
        """Rows of the batch in float32, on the CPU, ``(batch, classes)``.

        ``row_index``, int64 ``(batch,)``, are positions of the images in the training set.
        """
        rows = self.logits.index_select(0, row_index).float()
        new = ~self.is_observed[row_index[observed.rows]]
        rows[observed.rows[new], observed.classes[new]] = OBSERVED
        return rows

    def add(self, row_index: Tensor, observed: Observed, step: Tensor) -> None:
        """Add ``step``, ``(batch, classes)``; an image that appears twice takes both steps.

        Rows of ``step`` that are not finite, as when the classifier overflowed, are left out: the
        estimates would never recover.
        """
        finite = observed.counted[torch.isfinite(step.sum(1))[observed.counted]]
        new = ~self.is_observed[row_index[observed.rows]]
        self.logits[row_index[observed.rows[new]], observed.classes[new]] = OBSERVED
        self.is_observed[row_index[finite]] = True
        self.logits.index_add_(0, row_index[finite], step[finite].to(self.logits.dtype))


def _allocate(rows: int, classes: int, dtype: torch.dtype, memory_map: Path | None) -> Tensor:
    if memory_map is None:
        return torch.empty((rows, classes), dtype=dtype)
    memory_map.unlink(missing_ok=True)
    mapped = torch.from_file(str(memory_map), shared=True, size=rows * classes, dtype=dtype)
    return mapped.view(rows, classes)

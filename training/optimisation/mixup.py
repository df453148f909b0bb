"""Mixup: training on mixtures of two pictures, labelled with both in the same shares."""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class Mixture(NamedTuple):
    """How one batch is mixed: each picture with a partner of the same batch."""

    share: float  # of each picture itself
    partners: Tensor  # positions in the batch, int64, (batch,)

    @classmethod
    def draw(cls, seed: int, epoch: int, batch: int, *, alpha: float, size: int) -> Self:
        """One share for the batch from Beta(``alpha``, ``alpha``), and a permutation as partners.

        References:
            Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.
        """
        random = np.random.default_rng((seed, epoch, batch))
        share = float(random.beta(alpha, alpha))
        return cls(share, torch.from_numpy(random.permutation(size)))

    def mix(self, values: Tensor) -> Tensor:
        """Mixtures of ``values`` ``(batch, ...)`` of any number type, float32."""
        values = values.float()
        return self.share * values + (1 - self.share) * values[self.partners]

    def targets(self, labels: Tensor, *, classes: int) -> Tensor:
        """Soft targets of the mixtures, float32 ``(batch, classes)``, of labels int64 ``(batch,)``.

        Example:
            >>> Mixture(0.5, torch.tensor([1, 0])).targets(torch.tensor([0, 2]), classes=3)
            tensor([[0.5000, 0.0000, 0.5000],
                    [0.5000, 0.0000, 0.5000]])
        """
        return self.mix(F.one_hot(labels, classes))

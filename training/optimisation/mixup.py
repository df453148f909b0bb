"""Mixup: training on mixtures of two pictures, labelled with both in the same shares."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class Mixture(NamedTuple):
    """How one batch is mixed: each picture with a partner of the same batch."""

    share: float  # of each picture itself
    partners: Tensor  # positions in the batch, int64, (batch,)


def draw(seed: int, epoch: int, batch: int, *, alpha: float, size: int) -> Mixture:
    """The mixture of a batch, which depends on the arguments alone.

    One share for the batch is drawn from Beta(``alpha``, ``alpha``); the partners are a
    permutation.

    References:
        Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.
    """
    random = np.random.default_rng((seed, epoch, batch))
    share = float(random.beta(alpha, alpha))
    return Mixture(share, torch.from_numpy(random.permutation(size)))


def mix_pictures(images: Tensor, mixture: Mixture) -> Tensor:
    """Mixtures of ``images`` ``(batch, ...)`` of any number type, float32."""
    values = images.float()
    return mixture.share * values + (1 - mixture.share) * values[mixture.partners]


def mix_labels(labels: Tensor, mixture: Mixture, *, classes: int) -> Tensor:
    """Soft targets of the mixtures, float32 ``(batch, classes)``, of labels int64 ``(batch,)``.

    Example:
        >>> halves = Mixture(0.5, torch.tensor([1, 0]))
        >>> mix_labels(torch.tensor([0, 2]), halves, classes=3)
        tensor([[0.5000, 0.0000, 0.5000],
                [0.5000, 0.0000, 0.5000]])
    """
    targets = F.one_hot(labels, classes).float()
    return mixture.share * targets + (1 - mixture.share) * targets[mixture.partners]

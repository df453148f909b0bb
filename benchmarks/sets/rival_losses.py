"""Published losses for small sets that are not part of the product, to compare with.

Sources: rank-weighted cross-entropy, arXiv 2511.17861; class-adaptive conformal training, arXiv
2601.09522, on the soft set sizes of Stutz et al., ICLR 2022; the choice of a size for each photo,
arXiv 2407.07140. Written from the papers' formulas; each docstring names what it settles itself.
"""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from florilege.training.losses.base import Loss

SET_LEVEL = 0.1  # share of the photos whose set may miss, when a batch chooses its threshold
SIZES = (1, 2, 4, 8, 16)  # between which a size is chosen for each photo
STEPS = 300


class RankWeighted(Loss):
    """Cross-entropy weighted by the rank of the true class, which bounds the mean set size.

    Weights are ``rank ** power``, divided by their mean over the batch so that the learning rate
    means the same for every power. They have no gradient.
    """

    def __init__(self, *, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch."""
        true = logits.detach().gather(1, labels.unsqueeze(1))  # (batch, 1)
        weight = (1.0 + (logits.detach() > true).sum(1)) ** self.power  # (batch,)
        values = F.cross_entropy(logits, labels, reduction="none")
        return (weight * values).sum() / weight.sum()


class ClassAdaptive(Loss):
    """Cross-entropy with a limit on the soft set size of each class (augmented Lagrangian).

    A class is in a set by ``sigmoid((log p - threshold) / width)``, the threshold that of split
    conformal prediction on half of the batch. The multiplier of a class grows with the excess of
    its mean size over one, an average over batches, and never falls below 0.
    """

    momentum: ClassVar[float] = 0.9
    multiplier: Tensor
    excess: Tensor

    def __init__(self, *, classes: int, penalty: float, width: float = 0.5) -> None:
        super().__init__()
        self.penalty, self.width = penalty, width
        self.register_buffer("multiplier", torch.zeros(classes))
        self.register_buffer("excess", torch.zeros(classes))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch."""
        value = F.cross_entropy(logits, labels)
        half = len(labels) // 2
        if half < 2:
            return value
        log_p = logits.log_softmax(1)
        true = log_p[:half].gather(1, labels[:half].unsqueeze(1)).squeeze(1)
        threshold = true.quantile(SET_LEVEL)
        size = torch.sigmoid((log_p[half:] - threshold) / self.width).sum(1)  # (batch - half,)
        excess = size - 1.0
        ours = labels[half:]
        with torch.no_grad():
            count = torch.bincount(ours, minlength=len(self.excess))
            mean = torch.zeros_like(self.excess).index_add_(0, ours, excess) / count.clamp_min(1)
            moved = self.momentum * self.excess + (1 - self.momentum) * mean
            self.excess = torch.where(count > 0, moved, self.excess)
            raised = self.multiplier + self.penalty * (1 - self.momentum) * self.excess
            self.multiplier = torch.where(count > 0, raised, self.multiplier).clamp_min(0.0)
        force = (self.multiplier[ours] + self.penalty * excess).clamp_min(0.0)
        return value + ((force**2 - self.multiplier[ours] ** 2) / (2 * self.penalty)).mean()


def chosen_sizes(
    features: Tensor, hits: NDArray[np.bool_], cost: float, weight_decay: float
) -> Tensor:
    """The layer ``(sizes, dimensions + 1)`` that chooses one of ``SIZES`` for each photo.

    Trained with the cost-sensitive logistic loss: the cost of a size is a miss, or else ``cost``
    times its logarithm, which the paper uses as well.

    Args:
        features: Standardised, ``(rows, dimensions)``.
        hits: Whether the k best classes hold the true one, ``(rows, sizes)``, of heads that were
            trained without the row.
        cost: Weight of the size against a miss.
        weight_decay: On the layer.
    """
    ones = torch.ones(len(features), 1)
    inputs = torch.cat([features, ones], 1)
    costs = torch.tensor(1.0 - hits, dtype=torch.float32) + cost * torch.tensor(SIZES).log()
    gains = 1.0 - costs / costs.max()  # (rows, sizes), in [0, 1]
    layer = torch.zeros(len(SIZES), inputs.shape[1], requires_grad=True)
    optimizer = torch.optim.AdamW([layer], lr=0.01, weight_decay=weight_decay)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -(gains * (inputs @ layer.T).log_softmax(1)).sum(1).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch declares none
        optimizer.step()
    return layer.detach()

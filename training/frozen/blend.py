"""A head blended of several: the mean of linear heads of different losses, and the discriminant.

Heads that different losses have trained err on different photos, and the discriminant follows wrong
labels least of all; what they have in common is more often right than any one of them. The mean of
linear layers is one linear layer.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch

from training.frozen.lda import Discriminant, Linear
from training.frozen.store import Features

SHRINKAGE: Final = 0.4
SHARES: Final = (0.25, 0.1, 0.5)
SHARPNESS: Final = (1.0, 1.5, 2.0, 3.0)
ROWS_AT_ONCE: Final = 4096


class Candidate(NamedTuple):
    """A blend."""

    head: Linear
    share: float  # of the discriminant
    sharpness: float  # its logits are multiplied by this


def candidates(heads: Sequence[Linear], train: Features) -> Iterator[Candidate]:
    r"""Blends of ``heads`` and the discriminant of ``train``, those to prefer in a tie first.

    .. math:: z = \tau\, \Bigl((1 - \rho)\, \bar z + \rho\, \frac{\bar\sigma}{\sigma_d} z_d\Bigr)

    for :math:`\bar z` the mean of the heads' logits, :math:`z_d` those of the discriminant,
    :math:`\sigma` the root mean square on ``train`` of logits around the mean of their photo
    (:math:`\bar\sigma` the mean over the heads), :math:`\rho` a share and :math:`\tau` a sharpness:
    a head that wrong labels have taught to doubt doubts too much about photos whose labels are
    right. So a few photos with checked labels are to choose.

    Args:
        heads: Trained on ``train``, for features as they are kept; at least one.
        train: With the labels that trained the heads.
    """
    mean = Linear(
        torch.stack([head.weight for head in heads]).mean(0),
        torch.stack([head.bias for head in heads]).mean(0),
    )
    discriminant = Discriminant(train, len(mean.bias)).layer(SHRINKAGE)
    level = sum(_spread(head, train) for head in heads) / len(heads)
    scale = level / _spread(discriminant, train)
    for share, sharpness in itertools.product(SHARES, SHARPNESS):
        whole = mean.times(1 - share).plus(discriminant, share * scale).times(sharpness)
        yield Candidate(whole, share, sharpness)


def _spread(layer: Linear, train: Features) -> float:
    """Root mean square of logits around the mean of their photo."""
    squares = 0.0
    for first in range(0, len(train), ROWS_AT_ONCE):
        rows = train.rows[first : first + ROWS_AT_ONCE]
        logits = layer.logits(torch.from_numpy(train.values[rows]))
        squares += float(logits.var(axis=1, dtype="float64").sum())
    return float((squares / len(train)) ** 0.5)

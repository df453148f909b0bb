"""Each loss beside its oracle, for tests of all losses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.training.losses import oracles

CLASSES = 5
COUNTS = [400, 3, 50, 7, 1]
WEIGHT = [0.5, 2.0, 0.0, 1.0, 3.0]


@dataclass(frozen=True, kw_only=True)
class Example:
    """A key of ``LOSSES``, its parameters and the oracle for one row."""

    key: str
    parameters: dict[str, Any]
    oracle: Callable[[oracles.Row, int], float]


PER_EXAMPLE = [
    Example(key="cross_entropy", parameters={}, oracle=oracles.cross_entropy),
    Example(
        key="cross_entropy",
        parameters={"label_smoothing": 0.3},
        oracle=lambda s, y: oracles.smoothed_cross_entropy(s, y, 0.3),
    ),
    Example(key="focal", parameters={"gamma": 1.5}, oracle=lambda s, y: oracles.focal(s, y, 1.5)),
    Example(
        key="generalised_cross_entropy",
        parameters={"q": 0.6},
        oracle=lambda s, y: oracles.generalised_cross_entropy(s, y, 0.6),
    ),
    Example(
        key="ldam",
        parameters={"class_counts": COUNTS, "max_margin": 0.7, "scale": 3.0},
        oracle=lambda s, y: oracles.ldam(s, y, COUNTS, 0.7, 3.0),
    ),
    Example(
        key="top_k_hinge", parameters={"k": 2}, oracle=lambda s, y: oracles.top_k_hinge(s, y, 2)
    ),
    Example(
        key="convex_top_k_hinge",
        parameters={"k": 3},
        oracle=lambda s, y: oracles.convex_top_k_hinge(s, y, 3),
    ),
    Example(
        key="calibrated_top_k_hinge",
        parameters={"k": 2},
        oracle=lambda s, y: oracles.calibrated_top_k_hinge(s, y, 2),
    ),
    Example(
        key="smooth_top_k",
        parameters={"k": 2, "tau": 0.5, "margin": 0.8},
        oracle=lambda s, y: oracles.smooth_top_k(s, y, 2, 0.5, 0.8),
    ),
    Example(
        key="noised_top_k",
        parameters={"k": 2, "epsilon": 1e-13},
        oracle=lambda s, y: oracles.calibrated_top_k_hinge(s, y, 2),
    ),
    Example(
        key="imbalanced_noised_top_k",
        parameters={"k": 1, "epsilon": 1e-13, "class_counts": COUNTS, "scale": 7.0},
        oracle=lambda s, y: oracles.noised_top_k(
            s, y, 1, 0, [[0.0] * CLASSES], oracles.margin(COUNTS, y, 0.2), 7.0
        ),
    ),
    Example(key="assume_negative", parameters={}, oracle=oracles.assume_negative),
    Example(key="positive_bce", parameters={}, oracle=oracles.positive_bce),
]

COUPLED: dict[str, dict[str, Any]] = {
    "expected_positive": {"average_k": 2.5, "beta": 0.3},
    "role": {"average_k": 2.5, "rows": 8, "reg_weight": 0.6, "classes": CLASSES},
    "two_head_average_k": {"average_k": 2.5, "alpha": 0.4},
}


def scores(rows: int = 8, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random scores ``(rows, CLASSES)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, CLASSES, generator=generator, dtype=dtype) * 2


def labels(rows: int = 8, *, seed: int = 0) -> Tensor:
    """Random labels ``(rows,)``."""
    return torch.randint(CLASSES, (rows,), generator=torch.Generator().manual_seed(seed))


def soft_targets(rows: int = 8, *, seed: int = 0) -> Tensor:
    """Mixtures of two classes, some of one, ``(rows, CLASSES)``; they sum to one."""
    first = torch.nn.functional.one_hot(labels(rows, seed=seed), CLASSES).double()
    second = torch.nn.functional.one_hot(labels(rows, seed=seed + 1), CLASSES).double()
    share = torch.linspace(0, 1, rows, dtype=torch.float64).unsqueeze(1)
    return share * first + (1 - share) * second

"""Each loss beside its oracle, for tests of all losses."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.training.losses import oracles

CLASSES = 5
COUNTS = [400, 3, 50, 7, 1]
WEIGHT = [0.5, 2.0, 0.0, 1.0, 3.0]


class Example(NamedTuple):
    """A key of ``LOSSES``, its parameters and the oracle for one row."""

    key: str
    parameters: dict[str, Any]
    oracle: Callable[[oracles.Row, int], float]


PER_EXAMPLE = [
    Example("cross_entropy", {}, oracles.cross_entropy),
    Example(
        "cross_entropy",
        {"label_smoothing": 0.3},
        partial(oracles.smoothed_cross_entropy, smoothing=0.3),
    ),
    Example("focal", {"gamma": 1.5}, partial(oracles.focal, gamma=1.5)),
    Example(
        "generalised_cross_entropy", {"q": 0.6}, partial(oracles.generalised_cross_entropy, q=0.6)
    ),
    Example(
        "ldam",
        {"class_counts": COUNTS, "max_margin": 0.7, "scale": 3.0},
        partial(oracles.ldam, counts=COUNTS, max_margin=0.7, scale=3.0),
    ),
    Example("top_k_hinge", {"k": 2}, partial(oracles.top_k_hinge, k=2)),
    Example("convex_top_k_hinge", {"k": 3}, partial(oracles.convex_top_k_hinge, k=3)),
    Example("calibrated_top_k_hinge", {"k": 2}, partial(oracles.calibrated_top_k_hinge, k=2)),
    Example(
        "smooth_top_k",
        {"k": 2, "tau": 0.5, "margin": 0.8},
        partial(oracles.smooth_top_k, k=2, tau=0.5, alpha=0.8),
    ),
    Example(
        "noised_top_k", {"k": 2, "epsilon": 1e-13}, partial(oracles.calibrated_top_k_hinge, k=2)
    ),
    Example(
        "imbalanced_noised_top_k",
        {"k": 1, "epsilon": 1e-13, "class_counts": COUNTS, "scale": 7.0},
        lambda s, y: oracles.noised_top_k(
            s, y, 1, 0, [[0.0] * CLASSES], oracles.margin(COUNTS, y, 0.2), 7.0
        ),
    ),
    Example("assume_negative", {}, oracles.assume_negative),
    Example("positive_bce", {}, oracles.positive_bce),
]

COUPLED: dict[str, dict[str, Any]] = {
    "expected_positive": {"average_k": 2.3, "beta": 0.3},
    "role": {"average_k": 2.3, "rows": 8, "reg_weight": 0.6, "classes": CLASSES},
    "two_head_average_k": {"average_k": 2.5, "alpha": 0.4},
}


class _Parameters(dict[str, dict[str, Any]]):
    """Parameters of a loss by key; for a new loss, where they are missing."""

    def __missing__(self, key: str) -> dict[str, Any]:
        raise AssertionError(
            f"{key!r} has no example: add its parameters and its oracle to PER_EXAMPLE in "
            "tests/training/losses/examples.py, or to COUPLED if it needs the whole batch"
        )


PARAMETERS = _Parameters({e.key: e.parameters for e in PER_EXAMPLE} | COUPLED)


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


def one_hot(labels: Tensor, classes: int) -> list[list[float]]:
    """Rows of numbers for an oracle."""
    hot: list[list[float]] = torch.nn.functional.one_hot(labels, classes).double().tolist()
    return hot


def call(key: str, loss: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss whatever its head and whether it needs positions."""
    heads = (logits, logits / 2) if key == "two_head_average_k" else (logits,)
    rows = (torch.arange(len(labels)),) if key == "role" else ()
    value: Tensor = loss(*heads, labels, *rows)
    return value

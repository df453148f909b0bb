"""The ranks of the gloo test: each computes the loss and gradients of its part of a batch.

``tests.training.several`` forks them.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

from florilege.training.losses import TwoHeadAverageK, two_head_average_k

RANKS = 4
Case = tuple[Tensor, Tensor, Tensor, dict[str, float | str]]


def cases() -> dict[str, Case]:
    """Batches of 256: ordinary, tied, and with so many ignored rows that a rank has none."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(256, 12, generator=generator, dtype=torch.float64)
    sccp = 3 * torch.randn(256, 12, generator=generator, dtype=torch.float64)
    labels = torch.randint(12, (256,), generator=generator)
    uneven = labels.clone()
    uneven[60:130] = -100
    return {
        "ordinary": (z, sccp, labels, {"average_k": 3, "alpha": 0.7}),
        "fractional": (z, sccp, labels, {"average_k": 1.003}),
        "tied": (z, torch.zeros_like(sccp), labels, {"average_k": 3.5}),
        "half tied": (z, (sccp / 4).round(), labels, {"average_k": 2.7}),
        "uneven": (z, sccp, uneven, {"average_k": 2}),
        "sum": (z, sccp, uneven, {"average_k": 2, "reduction": "sum"}),
        "no candidate": (z, sccp, labels, {"average_k": 1}),
    }


def gradients(case: Case, part: slice) -> dict[str, Tensor]:
    """Value, gradients and set size for some rows of a case."""
    z, sccp, labels, parameters = case
    z, sccp = z[part].clone().requires_grad_(), sccp[part].clone().requires_grad_()
    loss = TwoHeadAverageK(**parameters)  # type: ignore[arg-type]
    value = loss(z, sccp, labels[part])
    slopes = torch.autograd.grad(value, (z, sccp))
    plain = {name: value for name, value in parameters.items() if name != "reduction"}
    return {
        "value": value.detach(),
        "mean": two_head_average_k(z, sccp, labels[part], **plain).detach(),  # type: ignore[arg-type]
        "z": slopes[0],
        "sccp": slopes[1],
        "size": loss.mean_set_size,
    }


def work(folder: Path, rank: int, _say: object) -> None:
    """Write the results of a rank into the folder."""
    dist.init_process_group("gloo")
    part = slice(rank * 256 // RANKS, (rank + 1) * 256 // RANKS)
    results = {name: gradients(case, part) for name, case in cases().items()}
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()

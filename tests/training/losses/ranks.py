"""The ranks of the gloo test: each computes the loss and gradients of its part of a batch.

``python -m tests.training.losses.ranks RANKS FOLDER`` forks them from one process, so that torch is
imported once.
"""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

from florilege.training.losses import TwoHeadAverageK, two_head_average_k

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


def work(rank: int, ranks: int, folder: Path) -> None:
    """Write the results of a rank into the folder."""
    meeting = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    part = slice(rank * 256 // ranks, (rank + 1) * 256 // ranks)
    results = {name: gradients(case, part) for name, case in cases().items()}
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


def main(ranks: int, folder: Path) -> int:
    """Run all ranks; 0 if all succeed."""
    torch.set_num_threads(1)
    children = list[int]()
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
        else:
            work(rank, ranks, folder)
            os._exit(0)  # an error ends with another code
    return max(os.waitpid(child, 0)[1] for child in children) and 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))

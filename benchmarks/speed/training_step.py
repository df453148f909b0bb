"""The cost of a whole training step with each loss, against cross-entropy.

Two networks that differ in their head alone would differ in more than the loss, so every loss
trains the same backbone with one linear head; a two-head loss gets both its inputs from it.
Steps are compared as a whole and, because their noise may hide a small loss, the loss is timed
alone too: its forward and backward down to the logits, less cross-entropy's, as a share of a step.
"""

import time
from collections.abc import Callable, Collection
from inspect import signature
from statistics import median
from typing import Any

import torch
import torchvision
from torch import Tensor

from florilege.training.losses import LOSSES, build

CLASSES = 1_000
LARGEST_SURPLUS = 0.02  # of a step with cross-entropy, the goal


def print_table(
    backbone: str,
    device: str,
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
    names: Collection[str] = tuple(LOSSES),
) -> None:
    """Print seconds per step of the losses and their surplus over cross-entropy, as Markdown."""
    batch, side = (256, 224) if device == "cuda" else (4, 96)
    network = torchvision.models.get_model(backbone, num_classes=CLASSES).to(device)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    unit_first = dict.fromkeys(["cross_entropy", *names])
    losses = {name: _loss(name, batch, device) for name in unit_first}
    times = _interleaved(
        {
            name: _step(network, optimiser, images, labels, loss, device)
            for name, loss in losses.items()
        },
        repetitions,
        clock,
    )
    logits = torch.randn(batch, CLASSES, device=device, requires_grad=True)
    alone = _interleaved(
        {name: _alone(loss, logits, labels, device) for name, loss in losses.items()},
        repetitions,
        clock,
    )
    unit = times["cross_entropy"]
    print(f"{backbone}, {device}, batch {batch} of {side} x {side}, {CLASSES:,} classes, k = 5\n")
    print("| loss | ms per step | against cross_entropy | loss alone, ms | its surplus in a step |")
    print("|---|---|---|---|---|")
    for name, seconds in times.items():
        surplus = seconds / unit - 1
        mark = " ✗" if surplus > LARGEST_SURPLUS else ""
        share = (alone[name] - alone["cross_entropy"]) / unit
        print(
            f"| {name} | {seconds * 1e3:.2f} | {surplus:+.1%}{mark} "
            f"| {alone[name] * 1e3:.2f} | {share:+.2%} |"
        )


def _loss(name: str, batch: int, device: str) -> Callable[[Tensor, Tensor], Tensor]:
    wanted: dict[str, Any] = {"class_counts": torch.arange(1, CLASSES + 1), "rows": batch}
    given = {
        key: value for key, value in wanted.items() if key in signature(LOSSES[name]).parameters
    }
    module: Any = build(name, **given).to(device)
    if name == "role":
        rows = torch.arange(batch)
        return lambda logits, labels: module(logits, labels, rows)
    if module.head == "two_head":
        return lambda logits, labels: module(logits, logits, labels)
    result: Callable[[Tensor, Tensor], Tensor] = module
    return result


def _step(
    network: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    device: str,
) -> Callable[[], None]:
    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = network(images)
        torch.autograd.backward(loss(logits.float(), labels))
        optimiser.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def _alone(
    loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor, device: str
) -> Callable[[], None]:
    def step() -> None:
        logits.grad = None
        torch.autograd.backward(loss(logits, labels))
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def _interleaved(
    steps: dict[str, Callable[[], None]], repetitions: int, clock: Callable[[], float]
) -> dict[str, float]:
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repetitions):
        for name, step in steps.items():
            start = clock()
            step()
            times[name].append(clock() - start)
    return {name: median(taken) for name, taken in times.items()}

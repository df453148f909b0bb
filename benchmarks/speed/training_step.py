"""The cost of a whole training step with each loss, against cross-entropy.

Two networks that differ in their head alone would differ in more than the loss, so every loss
trains the same backbone with one linear head; a two-head loss gets both its inputs from it.
Steps are compared as a whole and, because their noise may hide a small loss, the loss is timed
alone too: its forward and backward down to the logits, less cross-entropy's, as a share of a step.
"""

import time
from collections.abc import Callable, Collection

import torch
import torchvision
from torch import Tensor

from benchmarks.speed.losses import Clock, Step, medians, our_loss
from florilege.training.losses import LOSSES

CLASSES = 1_000
Loss = Callable[[Tensor, Tensor], Tensor]

LARGEST_SURPLUS = 0.02  # of a step with cross-entropy, the goal


def print_table(
    backbone: str,
    device: str,
    repetitions: int,
    clock: Clock = time.perf_counter,
    names: Collection[str] = tuple(LOSSES),
) -> None:
    """Print seconds per step of the losses and their surplus over cross-entropy, as Markdown."""
    batch, side = (256, 224) if device == "cuda" else (4, 96)
    network = torchvision.models.get_model(backbone, num_classes=CLASSES).to(device)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    unit_first = list(dict.fromkeys(["cross_entropy", *names]))
    losses = [_of_one_head(name, batch, device) for name in unit_first]
    steps = [_step(network, optimiser, images, labels, loss, device) for loss in losses]
    times = medians(steps, repetitions, device, clock)
    logits = torch.randn(batch, CLASSES, device=device, requires_grad=True)
    steps_alone = [_alone(loss, logits, labels) for loss in losses]
    alone = medians(steps_alone, repetitions, device, clock)
    print(f"{backbone}, {device}, batch {batch} of {side} x {side}, {CLASSES:,} classes, k = 5\n")
    print("| loss | ms per step | against cross_entropy | loss alone, ms | its surplus in a step |")
    print("|---|---|---|---|---|")
    for name, seconds, seconds_alone in zip(unit_first, times, alone, strict=True):
        surplus = seconds / times[0] - 1
        mark = " ✗" if surplus > LARGEST_SURPLUS else ""
        share = (seconds_alone - alone[0]) / times[0]
        print(
            f"| {name} | {seconds * 1e3:.2f} | {surplus:+.1%}{mark} "
            f"| {seconds_alone * 1e3:.2f} | {share:+.2%} |"
        )


def _of_one_head(name: str, batch: int, device: str) -> Loss:
    loss = our_loss(name, CLASSES, batch, device)
    if LOSSES[name].head == "two_head":
        return lambda logits, labels: loss(logits, logits, labels)
    return loss


def _step(
    network: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    loss: Loss,
    device: str,
) -> Step:
    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = network(images)
        torch.autograd.backward(loss(logits.float(), labels))
        optimiser.step()

    return step


def _alone(loss: Loss, logits: Tensor, labels: Tensor) -> Step:
    def step() -> None:
        logits.grad = None
        torch.autograd.backward(loss(logits, labels))

    return step

"""Checks for authors of losses: :func:`check_loss`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

# Two numbers, or a loss with its axes exchanged would pass.
_BATCH, _CLASSES = 12, 7
_ROWS = torch.arange(_BATCH)


def check_loss(loss: nn.Module) -> None:
    """Check that ``florilege train --loss package.module:Class`` can use a loss.

    Args:
        loss: Called as ``loss(logits, labels)`` with logits ``(batch, classes)`` and int64 labels
            ``(batch,)``. With ``head = "two_head"`` it takes the logits of both heads, with
            ``takes_rows = True`` also the keyword ``row_index``.

    Raises:
        AssertionError: One line for each thing to change.

    Example:
        >>> check_loss(torch.nn.CrossEntropyLoss())
    """
    value: Any = loss
    name = getattr(value, "__name__", type(value).__name__)
    findings = list(_findings(loss)) if isinstance(value, nn.Module) else [_not_a_module(value)]
    assert not findings, f"{name}:\n" + "\n".join(findings)


def _not_a_module(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, nn.Module):
        return f"it is a class: check a loss of it, as {value.__name__}()"
    return "it is no torch module: derive a class from torch.nn.Module and compute in its forward"


def _findings(loss: nn.Module) -> Iterator[str]:
    call = _caller(loss)
    logits, labels = _batch(loss)
    copies = [head.detach().clone() for head in logits]
    try:
        value = call(logits, labels)
    except Exception as error:
        yield f"it fails for {len(logits)} logits and labels: {type(error).__name__}: {error}"
        return
    if not isinstance(value, Tensor) or value.dim():
        yield f"it must return one number for the batch, a tensor of shape (), got {value!r}"
        return
    if not all(map(torch.equal, logits, copies)):
        yield "it changes its logits: copy them first"
    if any(True for _ in loss.parameters()):
        yield "it has parameters of its own, which a run neither trains nor stores: use buffers"
    if not torch.isfinite(call([30 * head for head in logits], labels)):
        yield "it is not finite for large logits: use log_softmax, logsumexp or softplus"
    yield from _findings_of_values(loss, value, logits, labels)
    # Last, as a backward pass may change its state.
    yield from _finding_of_gradient(value, logits)


def _findings_of_values(
    loss: nn.Module, value: Tensor, logits: list[Tensor], labels: Tensor
) -> Iterator[str]:
    call = _caller(loss)
    if not torch.equal(value, call(logits, labels)):
        yield "two calls with one seed of torch differ: draw random numbers from torch alone"
    order = torch.randperm(_BATCH, generator=torch.Generator().manual_seed(1))
    rows = [head[order] for head in logits]
    is_random = not torch.equal(value, call(logits, labels, seed=1))
    if not is_random and not torch.isclose(value, call(rows, labels[order], order)):
        yield "it depends on the order of the batch"
    twice = call([torch.cat([head, head]) for head in logits], torch.cat([labels, labels]))
    if getattr(loss, "reduction", "mean") == "mean" and torch.isclose(2 * value, twice):
        yield "it is a sum: return the mean, or set reduction = 'sum'"


def _finding_of_gradient(value: Tensor, logits: list[Tensor]) -> Iterator[str]:
    if not torch.isfinite(value):
        yield f"it is {value.item()} for ordinary logits"
    if not value.requires_grad:
        yield "it has no gradient: do not detach the logits"
        return
    gradients = torch.autograd.grad(value, logits, allow_unused=True)
    if any(gradient is None for gradient in gradients):
        yield "it does not use the logits of every head"
    elif any(not torch.isfinite(gradient).all() for gradient in gradients):
        yield "its gradient is not finite"
    elif not any(gradient.any() for gradient in gradients):
        yield "its gradient is zero everywhere"


def _batch(loss: nn.Module) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = 2 if getattr(loss, "head", "linear") == "two_head" else 1
    shape = (_BATCH, _CLASSES)
    logits = [torch.randn(shape, generator=generator).requires_grad_() for _ in range(heads)]
    return logits, torch.randint(_CLASSES, (_BATCH,), generator=generator)


def _caller(loss: nn.Module) -> Callable[..., Any]:
    """Call the loss as a run does, with the same random numbers each time."""

    def call(logits: list[Tensor], labels: Tensor, rows: Tensor = _ROWS, *, seed: int = 0) -> Any:
        rows = rows.repeat(len(labels) // _BATCH)
        extra = {"row_index": rows} if getattr(loss, "takes_rows", False) else {}
        torch.manual_seed(seed)
        return loss(*logits, labels, **extra)

    return call

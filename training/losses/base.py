"""The options that every loss module shares: reduction, class weights, ignored labels."""

import inspect
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from training.losses.inputs import check_batch, class_weights, is_integer, whole

Head: TypeAlias = Literal["linear", "cosine", "two_head"]
Reduction: TypeAlias = Literal["mean", "sum", "none"]
Weight: TypeAlias = Tensor | Sequence[float] | np.ndarray | None


class Options(TypedDict, total=False):
    """The parameters that every loss module takes beside its own."""

    reduction: Reduction
    weight: Weight
    ignore_index: int


class Loss(nn.Module):
    """A loss as a module; ``LOSSES`` lists them by name.

    Args:
        reduction: ``"mean"``, ``"sum"`` or, where the loss is one value per example, ``"none"``.
        weight: One weight per class, shape ``(classes,)``. As in ``torch.nn.CrossEntropyLoss``
            the weighted mean divides by the weights of the labels met, or by the number of
            rows with soft targets.
        ignore_index: Rows with this label count for nothing; soft targets have no such rows.

    A batch without a counted row gives 0, with a gradient of 0. Values are computed and
    returned in float32 for half-precision logits, in the type of the logits otherwise.
    """

    head: ClassVar[Head] = "linear"
    """The head of the network that fits this loss."""

    reductions: ClassVar[tuple[Reduction, ...]] = ("mean", "sum", "none")

    weight: Tensor | None

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        weight: Weight = None,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        if reduction not in self.reductions:
            allowed = ", ".join(map(repr, self.reductions))
            why = "" if "none" in self.reductions else ": it is one value for the whole batch"
            raise ValueError(f"reduction must be one of {allowed}, got {reduction!r}{why}")
        if not is_integer(ignore_index):
            raise ValueError(f"ignore_index must be an integer, got {ignore_index}")
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.register_buffer("weight", class_weights(weight))

    def extra_repr(self) -> str:
        """Numbers and words among the parameters, as they were given."""
        shown = ((name, getattr(self, name, None)) for name in parameters(type(self)))
        return ", ".join(f"{n}={v!r}" for n, v in shown if isinstance(v, int | float | str))

    def total(self, loss: Tensor, labels: Tensor) -> Tensor:
        """A loss of the whole batch, reduced: its sum is the mean times the counted rows."""
        if self.reduction == "mean":
            return loss
        if labels.is_floating_point():
            return loss * labels.shape[0]
        return loss * (whole(labels) != self.ignore_index).sum()


class ExampleLoss(Loss):
    """A loss with one value per example; a subclass says which in ``per_example``."""

    def per_example(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Unweighted values ``(batch,)``; ``labels`` int64 ``(batch,)`` or soft targets."""
        raise NotImplementedError

    def weighted(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """Values ``(batch,)`` with the class weights in them.

        A soft target is a mixture of losses, ``sum_c t_c loss(., c)``: weighting class ``c``
        is multiplying ``t_c``.
        """
        if weight is None:
            return self.per_example(logits, labels)
        if labels.is_floating_point():
            return self.per_example(logits, labels * weight)
        values = self.per_example(logits, labels)
        return values * weight.to(values.dtype)[labels]

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of the batch.

        Args:
            logits: Raw class scores, shape ``(batch, classes)``, floating point.
            labels: int64 ``(batch,)``, or soft targets ``(batch, classes)``.

        Returns:
            A scalar, or ``(batch,)`` for ``reduction="none"``.

        Raises:
            ValueError: Shapes, types or labels that do not fit.
        """
        check_weight(self.weight, logits)
        labels = whole(labels)
        if labels.is_floating_point():
            check_batch(logits, labels)
            values = self.weighted(logits, labels, self.weight)
            return _reduce(values, torch.ones_like(values), self.reduction)
        kept = labels != self.ignore_index
        safe = labels.masked_fill(~kept, 0)
        check_batch(logits, safe)
        values = self.weighted(logits, safe, self.weight).where(kept, 0.0)
        counted = kept.to(values.dtype)
        if self.weight is not None:
            counted = counted * self.weight.to(values.dtype)[safe]
        return _reduce(values, counted, self.reduction)


def parameters(loss: type[Loss]) -> dict[str, inspect.Parameter]:
    """The parameters of a loss by name: its own first, then the shared options."""
    own = inspect.signature(loss).parameters
    shared = inspect.signature(Loss).parameters
    named = {**own, **shared}
    return {n: p for n, p in named.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}


def check_weight(weight: Tensor | None, logits: Tensor) -> None:
    """Refuse class weights that are not one per class."""
    if weight is not None and weight.shape != logits.shape[-1:]:
        raise ValueError(
            f"weight must have shape ({logits.shape[-1]},) for these logits, "
            f"got {tuple(weight.shape)}"
        )


def _reduce(values: Tensor, counted: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return values
    total = values.sum()
    return total if reduction == "sum" else divide(total, counted.sum())


def divide(total: Tensor, count: Tensor) -> Tensor:
    """``total / count``, and 0 with a gradient where nothing was counted."""
    return total / count.where(count > 0, 1.0)


def mix(values: Tensor, targets: Tensor) -> Tensor:
    """``sum_c t_c values_c``, shape ``(batch,)``; a target of 0 leaves out an infinite value too.

    A masked class (``-inf``) has one, and 0 times infinity would be NaN.
    """
    shares = targets.to(values.dtype)
    return (shares * values.masked_fill(shares == 0, 0.0)).sum(1)

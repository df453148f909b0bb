"""What losses share: modules, reduction, class weights, ignored labels, sums over processes."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from florilege.training.losses.arguments import (
    BatchLabels,
    check_parameters,
    class_weights,
    count_classes,
    is_integer,
    whole,
)

Head: TypeAlias = Literal["linear", "cosine", "two_head"]
# Beyond it softplus(x) is x to the last bit of a float64.
SOFTPLUS_LIMIT = 40.0
Reduction: TypeAlias = Literal["mean", "sum", "none"]
Value = TypeVar("Value")
Weight: TypeAlias = Tensor | Sequence[float] | np.ndarray | None

_CALL_KEYWORDS = ("noise", "estimates", "weight", "ignore_index")
"""Keywords of a function that are not parameters of its module."""


def _keywords(function: Callable[..., Any], without: Sequence[str] = ()) -> inspect.Signature:
    """The keyword-only parameters of a function."""
    parameters = inspect.signature(function).parameters.values()
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in without]
    return inspect.Signature(keywords)


class Loss(nn.Module):
    """A loss as a module; ``LOSSES`` lists them by name.

    The module of a function takes each of its parameters by keyword, with the same default and
    meaning, checks it on construction and keeps it as an attribute. Parameters that a subclass
    adds in its own ``__init__`` come after those. A function that takes ``ignore_index`` is one
    value for the whole batch; it is called with ``weight`` too, and so is one that takes it alone.

    Args:
        reduction: ``"mean"``, ``"sum"`` or, where the loss is one value per example, ``"none"``.
            The sum of a coupled loss is its mean times the counted rows.
        weight: One weight per class, shape ``(classes,)``. As in ``torch.nn.CrossEntropyLoss``
            the weighted mean divides by the total weight of the labels, or with soft targets by
            the number of rows. A coupled loss weights its terms of the label.
        ignore_index: Rows with this label do not count; soft targets have no such rows.

    A batch without a counted row gives 0, with a gradient of 0.
    """

    # what a training run needs to know about a loss

    head: ClassVar[Head] = "linear"
    """The head of the network that fits this loss."""

    coupled: ClassVar[bool] = False
    """Whether it is one value for the batch of all processes instead of one per example."""

    takes_rows: ClassVar[bool] = False
    """Whether its forward also takes ``row_index``, the rows of the batch in the training set."""

    # parameters that depend on the data or the head; None if a loss has no such parameter

    k: int | None = None
    average_k: float | None = None
    scale: float | None = None
    rows: int | None = None
    classes: int | None = None
    class_counts: Tensor | None
    weight: Tensor | None

    # set by the subclass

    function: ClassVar[Callable[..., Tensor]]
    own: ClassVar[inspect.Signature] = inspect.Signature()  # the keywords of the function
    _call_options: ClassVar[Sequence[str]] = ()  # what else it takes
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None) -> None:
        super().__init_subclass__()
        if function is not None:
            keywords = _keywords(function).parameters
            cls.function, cls.coupled = staticmethod(function), "ignore_index" in keywords
            cls.own = _keywords(function, without=_CALL_KEYWORDS)
            cls._call_options = tuple(keywords.keys() & {"weight", "ignore_index"})
        added, shared = _keywords(cls.__init__), _keywords(Loss.__init__)
        every = {**cls.own.parameters, **added.parameters, **shared.parameters}
        cls.__signature__ = inspect.Signature(list(every.values()))

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        weight: Weight = None,
        ignore_index: int = -100,
        **parameters: Any,
    ) -> None:
        super().__init__()
        allowed = ("mean", "sum") if self.coupled else ("mean", "sum", "none")
        if reduction not in allowed:
            listed = ", ".join(map(repr, allowed))
            why = ": it is one value for the whole batch" if self.coupled else ""
            raise ValueError(f"reduction must be one of {listed}, got {reduction!r}{why}")
        if not is_integer(ignore_index) or not -(2**63) <= ignore_index < 2**63:
            raise ValueError(f"ignore_index must be an integer of 64 bits, got {ignore_index}")
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.register_buffer("weight", class_weights(weight))
        self.register_buffer("class_counts", None)
        bound = self.own.bind(**parameters)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if value is not None or self.own.parameters[name].default is not None:
                check_parameters(**{name: value})
            setattr(self, name, count_classes(value) if name == "class_counts" else value)

    def _values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What the function gives for its parameters."""
        names = (*self.own.parameters, *self._call_options)
        return self.function(logits, labels, **{name: getattr(self, name) for name in names})

    def extra_repr(self) -> str:
        """The parameters that are numbers or strings."""
        settings = ((name, getattr(self, name, None)) for name in self.__signature__.parameters)
        return ", ".join(f"{n}={v!r}" for n, v in settings if isinstance(v, int | float | str))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of the batch: a scalar, or ``(batch,)`` for ``reduction="none"``.

        A soft target is a mixture of losses, ``sum_c t_c loss(., c)``, so to weight class ``c`` is
        to multiply ``t_c``.
        """
        if self.coupled:
            return self.total(self._values(logits, labels), labels)
        facts = (logits, labels, self.weight, self.ignore_index)
        batch = BatchLabels.of(*facts, check_range=False)  # the function checks it
        labels, soft = batch.labels, batch.labels.is_floating_point()
        weight = None if self._call_options else self.weight  # the function takes them
        values = self._values(logits, labels * weight if weight is not None and soft else labels)
        if weight is not None and not soft:
            values = values * weight.to(values.dtype)[labels]
        values = values.where(batch.counted, 0.0)
        if self.reduction == "none":
            return values
        total = values.sum()
        if self.reduction == "sum":
            return total
        return _divide(total, batch.shares(self.weight, values.dtype).sum())

    def total(self, loss: Tensor, labels: Tensor) -> Tensor:
        """A loss of the whole batch, reduced: its sum is the mean times the counted rows."""
        if self.reduction == "mean":
            return loss
        if labels.is_floating_point():
            # `new_tensor` would wait for a GPU.
            rows = loss.new_full((), labels.shape[0])
            return loss * over_ranks(rows)
        return loss * over_ranks((whole(labels) != self.ignore_index).sum())


def _divide(total: Tensor, count: Tensor) -> Tensor:
    """``total / count``; ``total`` itself, a 0 with a gradient, if nothing was counted."""
    if count.is_floating_point():  # by a tiny number, a scaled gradient would overflow
        return total / count.where(count > 0, 1)
    return total / count.clamp_min(1)


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def over_ranks(value: Tensor) -> Tensor:
    """The sum of ``value`` over all processes; ``value`` itself in a single one.

    Its gradient with respect to ``value`` is the number of processes instead of 1: averaged over
    the processes afterwards, gradients become those of the sum.
    """
    total: Tensor = value if ranks() == 1 else _OverRanks.apply(value)
    return total


class _OverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad * ranks()


def mean_over_ranks(values: Tensor, counts: Tensor) -> Tensor:
    """The sum of ``values`` divided by that of ``counts``, over the rows of all processes."""
    return _divide(over_ranks(values.sum()), over_ranks(counts.sum()))


def softplus(values: Tensor) -> Tensor:
    """``log(1 + e^x)``."""
    return F.softplus(values, threshold=SOFTPLUS_LIMIT)


def mix(values: Tensor, targets: Tensor) -> Tensor:
    """``sum_c t_c values_c``, shape ``(batch,)``; a target of 0 leaves out an infinite value too.

    A masked class (``-inf``) has such a value, and 0 times infinity would be NaN.
    """
    shares = targets.to(values.dtype)
    return (shares * values.masked_fill(shares == 0, 0.0)).sum(1)


def refuse_second_derivative() -> None:
    """Raise an error in a backward pass that is asked for a graph (``create_graph=True``).

    ``once_differentiable`` refuses only if the incoming gradient itself needs a gradient; in a sum
    with another term, the missing part would silently count as 0.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("this loss has no second derivative: call backward without create_graph")


class _GivenGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: tuple[Tensor, ...], factor: float, *_scores: Tensor) -> Tensor:
        # In a tuple, because torch would copy an input that it sees returned.
        values, *gradients = result
        ctx.save_for_backward(*gradients)
        ctx.factor = factor
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        slope = grad if ctx.factor == 1 else grad * ctx.factor
        slope = slope.unsqueeze(1) if grad.dim() else slope
        return None, None, *(gradient * slope for gradient in ctx.saved_tensors)


def with_gradients(values: Tensor, *pairs: tuple[Tensor, Tensor], factor: float = 1.0) -> Tensor:
    """``values``, ``(batch,)`` or a scalar, with ``factor`` times the gradient given to each score.

    Each pair is scores and their gradient. The caller computes all together, so that backward only
    multiplies.
    """
    scores, gradients = zip(*pairs, strict=True)
    result: Tensor = _GivenGradients.apply((values, *gradients), factor, *scores)
    return result

"""The loss of a run: made from its settings and the data, applied to what the network puts out."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from models.errors import UsageError
from training import losses

_FROM_DATA: Final = ("class_counts", "rows")
_HEAD_SCALE: Final = 10.0


@dataclass(frozen=True)
class Objective:
    """A loss and how to call it.

    Attributes:
        loss_fn: A module of ``training.losses``.
        head: The head it trains.
        takes_rows: Its forward wants ``row_index``, the rows of the batch in the data set.
        notes: What was chosen for the user and is worth saying.
        head_scale: What multiplies the cosines before the loss, for a cosine head and a loss
            without a scale of its own.
    """

    loss_fn: nn.Module
    head: str
    takes_rows: bool
    notes: tuple[str, ...]
    head_scale: float | None = None

    def __call__(
        self, outputs: Tensor | tuple[Tensor, ...], labels: Tensor, rows: Tensor
    ) -> Tensor:
        """The mean loss of a batch, a scalar.

        Args:
            outputs: Logits ``(batch, classes)``, or one such tensor for each head.
            labels: int64, ``(batch,)``.
            rows: Rows of the batch in the training split, int64, ``(batch,)``.
        """
        logits = outputs if isinstance(outputs, tuple) else (outputs,)
        extra = {"row_index": rows} if self.takes_rows else {}
        scale = 1.0 if self.head_scale is None else self.head_scale
        value: Tensor = self.loss_fn(*(scale * item.float() for item in logits), labels, **extra)
        return value

    @property
    def scale(self) -> float | None:
        """What cosines are multiplied with, by the loss or before it, where anything is."""
        scale = getattr(self.loss_fn, "scale", self.head_scale)
        return None if scale is None else float(scale)

    @property
    def average_k(self) -> float | None:
        """The mean set size the loss trains for, where it has one."""
        average_k = getattr(self.loss_fn, "average_k", None)
        return None if average_k is None else float(average_k)


def make_objective(
    name: str,
    parameters: Mapping[str, Any],
    *,
    head: str,
    head_scale: float | None = None,
    class_counts: Sequence[int],
    rows: int,
) -> Objective:
    """Build a loss; what it needs to know about the data and the user did not say is filled in.

    Args:
        name: A key of ``LOSSES``.
        parameters: What the user set.
        head: ``auto``, or a head the user insists on.
        head_scale: Scale of a cosine head for a loss that has none; 10 where nothing is said.
        class_counts: Training pictures of each class.
        rows: Training pictures.

    Raises:
        UsageError: An unknown loss or parameter, a value out of range, or a head that the loss
            cannot train.
    """
    fitting = head_of(name, head)
    kind = losses.LOSSES[name]
    known = inspect.signature(kind).parameters
    facts: dict[str, Any] = {"class_counts": list(class_counts), "rows": rows}
    filled = {key: facts[key] for key in _FROM_DATA if key in known and key not in parameters}
    smaller, notes = _sizes_that_fit(name, known, parameters, classes=len(class_counts))
    if kind.head == "cosine" != fitting and "scale" not in parameters:
        filled["scale"] = 1.0
        notes += (f"loss {name}: scale is 1, its default is for the cosines of a cosine head",)
    try:
        loss_fn = losses.build(name, **filled, **smaller, **parameters)
    except (ValueError, TypeError) as error:
        raise UsageError(f"loss {name}: {error}") from error
    _check_sizes(parameters, classes=len(class_counts))
    _check_fit(loss_fn, classes=len(class_counts), rows=rows)
    takes_scale = fitting == "cosine" and not hasattr(loss_fn, "scale")
    if head_scale is not None and not takes_scale:
        raise UsageError(
            f"head_scale is for a cosine head and a loss without a scale; {name} trains a "
            f"{fitting} head{' with loss.scale' if hasattr(loss_fn, 'scale') else ''}"
        )
    return Objective(
        loss_fn=loss_fn,
        head=fitting,
        takes_rows="row_index" in inspect.signature(loss_fn.forward).parameters,
        notes=notes,
        head_scale=(head_scale or _HEAD_SCALE) if takes_scale else None,
    )


def _sizes_that_fit(
    name: str,
    known: Mapping[str, inspect.Parameter],
    parameters: Mapping[str, Any],
    *,
    classes: int,
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Defaults of ``k`` and ``average_k`` lowered where the data have too few classes for them."""
    lowered = {
        key: classes - 1
        for key in ("k", "average_k")
        if key in known
        and key not in parameters
        and known[key].default is not inspect.Parameter.empty
        and known[key].default >= classes
    }
    notes = tuple(
        f"loss {name}: {key} is {value}, the largest for {classes} classes"
        for key, value in lowered.items()
    )
    return lowered, notes


def _check_sizes(parameters: Mapping[str, Any], *, classes: int) -> None:
    """Refuse a ``k`` or ``average_k`` of the user that the data have too few classes for."""
    for key, largest in (("k", classes - 1), ("average_k", classes)):
        if key in parameters and parameters[key] > largest:
            raise UsageError(
                f"loss.{key} must be in [1, {largest}] for {classes} classes, got "
                f"{parameters[key]}; leave it out for the default, lowered where it must be"
            )


def _check_fit(loss_fn: nn.Module, *, classes: int, rows: int) -> None:
    """Refuse parameters of the user that belong to other data, or to another loop than ours."""
    for key in ("weight", "class_counts"):
        numbers = getattr(loss_fn, key, None)
        if numbers is not None and len(numbers) != classes:
            raise UsageError(
                f"loss.{key} must hold one number for each of {classes} classes, got {len(numbers)}"
            )
    if (given := getattr(loss_fn, "classes", None)) not in (None, classes):
        raise UsageError(f"loss.classes must be {classes}, as many as the data have, got {given}")
    if (images := getattr(loss_fn, "rows", rows)) < rows:
        raise UsageError(f"loss.rows must be at least {rows}, the training pictures, got {images}")
    if getattr(loss_fn, "reduction", None) == "none":
        raise UsageError("loss.reduction must be mean or sum to train with, got none")


def head_of(name: str, wanted: str) -> str:
    """The head a run trains: the one ``wanted``, or for ``auto`` the one its loss asks for.

    Raises:
        UsageError: An unknown loss, or a head that the loss cannot train.
    """
    if name not in losses.LOSSES:
        raise UsageError(f"there is no loss {name!r}; there are: {', '.join(losses.LOSSES)}")
    own: str = losses.LOSSES[name].head
    head = own if wanted == "auto" else wanted
    if (head == "two_head") != (own == "two_head"):
        raise UsageError(f"loss {name} trains a {own} head, not {head}; leave head at auto")
    return head

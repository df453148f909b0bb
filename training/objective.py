"""The loss of a run: made from its settings and the data, applied to what the network puts out."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from models.errors import UsageError
from training import losses
from training.losses import Loss

_HEAD_SCALE: Final = 10.0


@dataclass(frozen=True)
class Objective:
    """A loss and how to call it."""

    loss_fn: Loss
    head: str  # that it trains
    notes: tuple[str, ...]  # what was chosen for the user and is worth saying
    head_scale: float | None = None  # of cosines, before a loss without a scale of its own

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
        extra = {"row_index": rows} if self.loss_fn.takes_rows else {}
        scale = 1.0 if self.head_scale is None else self.head_scale
        value: Tensor = self.loss_fn(*(scale * item.float() for item in logits), labels, **extra)
        return value

    @property
    def mean_set_size(self) -> float:
        """Classes a picture of the last batch was taught, its label included; 0 if not told."""
        return float(getattr(self.loss_fn, "mean_set_size", 0.0))

    @property
    def scale(self) -> float | None:
        """What cosines are multiplied with, by the loss or before it, where anything is."""
        return self.head_scale if self.loss_fn.scale is None else float(self.loss_fn.scale)


def make_objective(
    name: str,
    parameters: Mapping[str, Any],
    *,
    head: str,
    head_scale: float | None = None,
    class_counts: Sequence[int],
) -> Objective:
    """Build a loss; what it needs to know about the data and the user did not say is filled in.

    Args:
        name: A key of ``LOSSES``.
        parameters: What the user set.
        head: ``auto``, or a head the user insists on.
        head_scale: Scale of a cosine head for a loss that has none; 10 where nothing is said.
        class_counts: Training pictures of each class.

    Raises:
        UsageError: An unknown loss or parameter, a value out of range, or a head that the loss
            cannot train.
    """
    fitting, kind = head_of(name, head), losses.LOSSES[name]
    classes, rows = len(class_counts), sum(class_counts)
    known = inspect.signature(kind).parameters
    facts = {"class_counts": list(class_counts), "rows": rows}
    filled: dict[str, Any] = {key: fact for key, fact in facts.items() if key in known}
    notes: list[str] = []
    for key in ("k", "average_k"):
        if key in known and key not in parameters and known[key].default >= classes:
            filled[key] = classes - 1
            notes.append(f"loss {name}: {key} is {classes - 1}, the largest for {classes} classes")
    if kind.head == "cosine" != fitting and "scale" not in parameters:
        filled["scale"] = 1.0
        notes.append(f"loss {name}: scale is 1, its default is for the cosines of a cosine head")
    try:
        loss_fn = losses.build(name, **{**filled, **parameters})
    except (ValueError, TypeError) as error:
        raise UsageError(f"loss {name}: {error}") from error
    _check_fit(loss_fn, classes=classes, rows=rows)
    takes_scale = fitting == "cosine" and loss_fn.scale is None
    if head_scale is not None and not takes_scale:
        raise UsageError(
            f"head_scale is for a cosine head and a loss without a scale; {name} trains a "
            f"{fitting} head{'' if loss_fn.scale is None else ' with loss.scale'}"
        )
    scale = (head_scale or _HEAD_SCALE) if takes_scale else None
    return Objective(loss_fn, fitting, tuple(notes), head_scale=scale)


def _check_fit(loss_fn: Loss, *, classes: int, rows: int) -> None:
    """Refuse parameters of the user that belong to other data, or to another loop than ours."""
    sizes = {"k": (loss_fn.k, classes - 1), "average_k": (loss_fn.average_k, classes)}
    for key, (size, largest) in sizes.items():
        if size is not None and size > largest:
            raise UsageError(
                f"loss.{key} must be in [1, {largest}] for {classes} classes, got {size}; leave "
                "it out for the default, lowered where it must be"
            )
    for key, numbers in {"weight": loss_fn.weight, "class_counts": loss_fn.class_counts}.items():
        if numbers is not None and len(numbers) != classes:
            raise UsageError(
                f"loss.{key} must hold one number for each of {classes} classes, got {len(numbers)}"
            )
    if loss_fn.classes not in (None, classes):
        raise UsageError(
            f"loss.classes must be {classes}, as many as the data have, got {loss_fn.classes}"
        )
    if loss_fn.rows is not None and loss_fn.rows < rows:
        raise UsageError(
            f"loss.rows must be at least {rows}, the training pictures, got {loss_fn.rows}"
        )
    if loss_fn.reduction == "none":
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

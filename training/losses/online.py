"""ROLE as a module: it keeps the estimates of all training images and moves those it met."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch import distributed as dist

from models.errors import UsageError
from training.losses.base import Loss, Options, Reduction
from training.losses.estimates import Estimates, Observed
from training.losses.inputs import check_at_least, check_batch, is_integer, whole, working
from training.losses.mutual import check_parameters, half
from training.losses.positives import expected_positive


class Role(Loss):
    """Module of :func:`training.losses.role`, with the estimates of all training images.

    The estimates stay in the memory of the CPU, or in a file, whatever ``.to()`` says; only
    the rows of a batch travel. The backward pass of a loss moves them, once: one step of
    gradient descent on the second half, at their own rate. Rows whose step is not finite stay
    as they are; a step of the network that a gradient scaler skips still moves the others.
    ``state_dict`` holds the estimates themselves, not a copy.

    In ``eval`` mode nothing moves and no ``row_index`` is needed: without one the value is the
    part of the loss that needs no estimate, that of ``expected_positive``.

    Args:
        rows: Training images, at least 1.
        classes: Number of classes; taken from the first batch where None.
        average_k: Wanted mean number of positive classes.
        reg_weight: Weight of that wish, at least 0.
        theta_lr: Step of an estimate along its own image's gradient, at least 0; it does not
            depend on batch size, loss scaling or the rate of the network. Where [A] and Cole
            et al. tie it to the optimiser of the network, an image is seen once an epoch and
            its estimates hardly move.
        dtype: Of the stored estimates, ``"float32"`` or ``"float16"``.
        memory_map: File to keep them in instead of memory, in a folder that exists; a file
            that is there is replaced. A pickled or deep copy keeps them in memory again.
        seed: Of their initial values.
        reduction: ``"mean"``, or ``"sum"``: the mean times the counted rows.
        weight: Class weights of the terms of the label.
        ignore_index: Rows with this label count for nothing.
    """

    reductions: ClassVar[tuple[Reduction, ...]] = ("mean", "sum")

    def __init__(
        self,
        *,
        rows: int,
        classes: int | None = None,
        average_k: float = 5.0,
        reg_weight: float = 1.0,
        theta_lr: float = 1.0,
        dtype: str = "float32",
        memory_map: str | Path | None = None,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        check_parameters(average_k, reg_weight)
        check_at_least("theta_lr", theta_lr, 0)
        _check_storage(rows, classes, dtype, memory_map, seed)
        self.rows = rows
        self.classes = classes
        self.average_k = average_k
        self.reg_weight = reg_weight
        self.theta_lr = theta_lr
        self.dtype = dtype
        self.memory_map = None if memory_map is None else Path(memory_map)
        self.seed = seed
        self.estimates: Estimates | None = None
        if classes is not None:
            self.estimates = self._allocate(classes)

    def forward(self, logits: Tensor, labels: Tensor, row_index: Tensor | None = None) -> Tensor:
        """Loss of the batch.

        Args:
            logits: Raw class scores, shape ``(batch, classes)``, floating point.
            labels: int64 ``(batch,)``, or soft targets ``(batch, classes)``.
            row_index: Position of each image in the training set, int64 ``(batch,)``; not
                needed in ``eval`` mode.

        Raises:
            ValueError: Tensors that do not fit, or a position outside the training set.
            UsageError: Several processes train together: each would estimate on its own.
        """
        labels = whole(labels)
        if row_index is None:
            return self.total(self._without_estimates(logits, labels), labels)
        _refuse_several_processes()
        check_batch(logits, labels.masked_fill(labels == self.ignore_index, 0))
        where, seen = self._locate(row_index, logits), self._seen(labels)
        if self.estimates is None:
            self.estimates = self._allocate(logits.shape[1])
        theta = self.estimates.read(where, seen).to(working(logits))
        classifier, estimator, step = self._both_halves(working(logits), theta, labels)
        loss = (classifier + estimator) / 2
        if step is not None:
            kept = _counted(labels.cpu(), self.ignore_index).nonzero().flatten()
            move = partial(self.estimates.add, where, seen, kept, step.cpu())
            loss = _ThenMove.apply(loss, move)
        return self.total(loss, labels)

    def _both_halves(
        self, scores: Tensor, theta: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Both values, and the step of each estimate along its own image's gradient.

        There is no step in ``eval`` mode, nor where no gradient is taken.
        """
        settings = (labels, self.average_k, self.reg_weight, self.weight, self.ignore_index)
        p, q = torch.sigmoid(scores.detach()), torch.sigmoid(theta)
        classifier = half(scores, p, q, *settings)
        if not (classifier.requires_grad and self.training):
            return classifier, half(theta, q, p, *settings).detach(), None
        estimator = half(theta.requires_grad_(), q, p, *settings)
        (slope,) = torch.autograd.grad(estimator, theta)
        rows = int(_counted(labels, self.ignore_index).sum())
        return classifier, estimator.detach(), slope.mul_(-self.theta_lr * rows / 2)

    def _without_estimates(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.training:
            raise ValueError("row_index must be given while training, got None")
        return expected_positive(
            logits,
            labels,
            average_k=self.average_k,
            beta=self.reg_weight / logits.shape[-1],
            weight=self.weight,
            ignore_index=self.ignore_index,
        )

    def _locate(self, row_index: Tensor, logits: Tensor) -> Tensor:
        """The positions on the CPU, all inside the training set."""
        where = row_index.detach().cpu()
        if where.dtype != torch.int64 or where.shape != logits.shape[:1]:
            raise ValueError(
                f"row_index must be int64 of shape ({logits.shape[0]},), "
                f"got {where.dtype} {tuple(where.shape)}"
            )
        if where.numel() and not 0 <= int(where.min()) <= int(where.max()) < self.rows:
            raise ValueError(
                f"row_index must be in [0, {self.rows - 1}], "
                f"got {int(where.min())} to {int(where.max())}"
            )
        if self.classes is not None and logits.shape[1] != self.classes:
            raise ValueError(f"logits must have {self.classes} classes, got {logits.shape[1]}")
        return where

    def _seen(self, labels: Tensor) -> Observed:
        """Which classes were seen for which rows of the batch, on the CPU."""
        labels = labels.detach().cpu()
        if labels.is_floating_point():
            rows, classes = (labels > 0).nonzero().unbind(1)
            return Observed(rows=rows, classes=classes)
        rows = _counted(labels, self.ignore_index).nonzero().flatten()
        return Observed(rows=rows, classes=labels[rows])

    def _allocate(self, classes: int) -> Estimates:
        self.classes = classes
        with torch.inference_mode(False):  # what is made inside could never be written to again
            return Estimates(
                self.rows,
                classes,
                dtype=getattr(torch, self.dtype),
                memory_map=self.memory_map,
                seed=self.seed,
            )

    def get_extra_state(self) -> dict[str, Tensor]:
        """The estimates, as part of ``state_dict``."""
        if self.estimates is None:
            return {}
        return {"logits": self.estimates.logits, "seen": self.estimates.seen}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Take up the estimates of a checkpoint.

        Raises:
            ValueError: They belong to another number of images or classes.
        """
        if not state:
            self.estimates = None
            return
        rows, classes = state["logits"].shape
        if rows != self.rows or self.classes not in (None, classes):
            raise ValueError(
                f"estimates must have shape ({self.rows}, {self.classes}), got {(rows, classes)}"
            )
        self.estimates = self.estimates or self._allocate(classes)
        self.estimates.logits.copy_(state["logits"])
        self.estimates.seen.copy_(state["seen"])


class _ThenMove(torch.autograd.Function):
    """Leaves the loss as it is and moves the estimates in the backward pass, once."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, move: Callable[[], None]) -> Tensor:
        ctx.move = move
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        move, ctx.move = ctx.move, None
        if move is not None:
            move()
        return grad, None


def _counted(labels: Tensor, ignore_index: int) -> Tensor:
    """Which rows count, bool ``(batch,)``."""
    if labels.is_floating_point():
        return torch.ones(labels.shape[0], dtype=torch.bool, device=labels.device)
    return labels != ignore_index


def _check_storage(
    rows: int, classes: int | None, dtype: str, memory_map: str | Path | None, seed: int
) -> None:
    for name, value in (("rows", rows), ("classes", 1 if classes is None else classes)):
        if not is_integer(value) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value}")
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype must be 'float32' or 'float16', got {dtype!r}")
    if not is_integer(seed):
        raise ValueError(f"seed must be an integer, got {seed!r}")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must have at most 64 bits, got {seed}")
    if memory_map is not None and not Path(memory_map).parent.is_dir():
        raise ValueError(f"memory_map must lie in an existing folder, got {memory_map}")
    if memory_map is not None and Path(memory_map).is_dir():
        raise ValueError(f"memory_map must be a file, got the folder {memory_map}")


def _refuse_several_processes() -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise UsageError(
            "the loss role keeps one estimate per training image and cannot be trained in "
            f"{dist.get_world_size()} processes, which would estimate apart; use one process, "
            "or expected_positive or two_head_average_k"
        )

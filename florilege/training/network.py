"""The loss and the network of a run, built from its settings and its data."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from florilege.data.records import Dataset
from florilege.errors import DataError, UsageError
from florilege.models.backbones import Network, Weights, build, warm_start
from florilege.models.heads import CosineHead, TwoHead
from florilege.training import losses
from florilege.training.config import TrainConfig
from florilege.training.losses import Loss
from florilege.training.machines import ALONE, Ranks

_HEAD_SCALE: Final = 10.0
# An ONNX file ends at 2 GiB, as every protobuf does; the graph needs what is left.
_MOST_BYTES: Final = 2**31 - 2**24


@dataclass(frozen=True)
class Objective:
    """A loss and how to call it."""

    loss_fn: Loss
    head: str  # the head it trains
    notes: tuple[str, ...]  # for the user, on defaults that depend on the data
    head_scale: float | None = None  # multiplies cosines, for a loss without a scale of its own

    @classmethod
    def of(cls, config: TrainConfig, dataset: Dataset, ranks: Ranks = ALONE) -> "Objective":
        """The loss of a run on its data."""
        labels, fewest = dataset.split("train").labels, 2 * ranks.count
        if len(labels) < fewest:
            raise DataError(
                f"{config.data} has {len(labels)} training pictures; at least {fewest} are needed"
            )
        if config.batch_size < fewest:
            raise UsageError(
                f"batch_size must be at least {fewest}, two pictures for each of {ranks.count} "
                f"processes, got {config.batch_size}: it counts those of all processes"
            )
        counts = np.bincount(labels, minlength=len(dataset.classes)).tolist()
        return _make_objective(config, counts)

    def __call__(
        self, outputs: Tensor | tuple[Tensor, ...], labels: Tensor, rows: Tensor
    ) -> Tensor:
        """The mean loss of a batch, a scalar.

        ``outputs`` are logits ``(batch, classes)``, or one such tensor for each head; ``labels``
        int64 ``(batch,)``, or soft targets; ``rows`` those of the batch in the training split.
        """
        logits = outputs if isinstance(outputs, tuple) else (outputs,)
        extra = {"row_index": rows} if self.loss_fn.takes_rows else {}
        scale = 1.0 if self.head_scale is None else self.head_scale
        value: Tensor = self.loss_fn(*(scale * item.float() for item in logits), labels, **extra)
        return value

    def shares(self, labels: Sequence[Tensor], *, soft: bool, ranks: Ranks = ALONE) -> list[float]:
        """Weight of each batch's loss in the loss of all of them as one batch.

        ``labels`` are those of each batch over all processes, int64 ``(batch,)``, and ``soft`` says
        whether the loss takes soft targets made from them. Each process computes the loss of its
        part; the mean of the gradients over processes is then that of the whole.
        """
        # A loss of single rows has a mean in each process, a coupled one is of the whole batch.
        parts = 1 if self.loss_fn.coupled else ranks.count
        if self.loss_fn.reduction == "sum":
            return [float(parts)] * len(labels)
        if parts == len(labels) == 1:
            return [1.0]
        divisors = [
            [len(part) if soft else self._divisor(part) for part in targets.tensor_split(parts)]
            for targets in labels
        ]
        # Without a counted row all shares are 0, whatever they are divided by.
        total = sum(map(sum, divisors)) or 1.0
        return [parts * by_part[ranks.rank if parts > 1 else 0] / total for by_part in divisors]

    def _divisor(self, labels: Tensor) -> float:
        """The divisor of the mean over rows with these labels."""
        labels, weight = labels[labels != self.loss_fn.ignore_index], self._weight
        return len(labels) if weight is None else float(weight[labels].sum())

    @cached_property
    def _weight(self) -> Tensor | None:
        """The class weights on the CPU, where labels are counted."""
        return None if self.loss_fn.weight is None else self.loss_fn.weight.cpu()

    @property
    def mean_set_size(self) -> Tensor:
        """Mean classes taught per picture of the last batch, label included; 0 if unknown."""
        return torch.as_tensor(getattr(self.loss_fn, "mean_set_size", 0.0), dtype=torch.float64)

    @property
    def scale(self) -> float | None:
        """Multiplier of the cosines, in the loss or before it; None if there is none."""
        return self.head_scale if self.loss_fn.scale is None else float(self.loss_fn.scale)


def _make_objective(config: TrainConfig, class_counts: Sequence[int]) -> Objective:
    """Build the loss of a run, filling in what it needs to know about the data unless it is set.

    Raises:
        UsageError: An unknown loss or parameter, a value out of range, or a head that the loss
            cannot train.
    """
    name, head = config.loss_name, head_of(config.loss_name, config.head)
    defaults, notes = _fit_to_run(config, head, class_counts)
    if config.class_weight_power:
        weight = defaults["weight"] = _class_weights(class_counts, config.class_weight_power)
        notes.append(f"loss {name}: class weights from {min(weight):.3g} to {max(weight):.3g}")
    try:
        loss_fn = losses.build(name, **{**defaults, **config.loss_parameters})
    except (ValueError, TypeError) as error:
        raise UsageError(f"loss {name}: {str(error).removeprefix(f'loss {name} ')}") from error
    _check_fit(loss_fn, classes=len(class_counts), rows=sum(class_counts))
    if loss_fn.reduction == "none":
        raise UsageError("loss.reduction must be mean or sum in training, got none")
    if config.mixes and (loss_fn.takes_rows or loss_fn.ignore_index >= 0):
        why = "estimates the labels of each picture" if loss_fn.takes_rows else "ignores labels"
        raise UsageError(
            f"{config.mixes} cannot be used with loss {name}, which {why}: leave it at 0"
        )
    scale = _cosine_scale(name, loss_fn, head, config.head_scale)
    return Objective(loss_fn, head, tuple(notes), scale)


def _fit_to_run(
    config: TrainConfig, head: str, class_counts: Sequence[int]
) -> tuple[dict[str, Any], list[str]]:
    """Defaults that depend on the data, the head or other settings, and notes on them."""
    name, classes, recent = config.loss_name, len(class_counts), config.accumulate - 1
    loss_class = losses.loss_class(name)
    signature = inspect.signature(loss_class).parameters
    unset = signature.keys() - config.loss.keys()
    # mixup and CutMix mix a picture with one other
    facts = {"class_counts": list(class_counts), "rows": sum(class_counts), "positives": 2}
    defaults: dict[str, Any] = {key: fact for key, fact in facts.items() if key in unset}
    notes = list[str]()
    for key in ("k", "average_k"):
        if key in unset and signature[key].default >= classes:
            defaults[key] = classes - 1
            notes.append(f"loss {name}: {key} is {classes - 1}, the largest for {classes} classes")
    if loss_class.head == "cosine" != head and "scale" not in config.loss:
        defaults["scale"] = 1.0
        notes.append(f"loss {name}: scale is 1, because its default is for a cosine head")
    if recent and "recent_batches" in unset:
        defaults["recent_batches"] = recent
        notes.append(
            f"loss {name}: recent_batches is {recent}, so that candidates are chosen over the "
            f"{recent + 1} batches of a step"
        )
    return defaults, notes


def _cosine_scale(name: str, loss_fn: Loss, head: str, head_scale: float | None) -> float | None:
    """Multiplier of the cosines before a loss without a scale; None for other heads."""
    if head == "cosine" and loss_fn.scale is None:
        return head_scale or _HEAD_SCALE
    if head_scale is not None:
        raise UsageError(
            f"head_scale is for a cosine head and a loss without a scale; {name} trains a "
            f"{head} head{'' if loss_fn.scale is None else ' with loss.scale'}"
        )
    return None


def _class_weights(counts: Sequence[int], power: float) -> list[float]:
    """``count ** -power`` with a mean of one over the pictures; a class without any counts as 1."""
    pictures = np.asarray(counts, dtype=np.float64)
    weights = np.maximum(pictures, 1.0) ** -power
    return [float(weight) for weight in weights * pictures.sum() / (weights @ pictures)]


def _check_fit(loss_fn: Loss, *, classes: int, rows: int) -> None:
    """Refuse parameters that do not fit the data."""
    sizes = {"k": (loss_fn.k, classes - 1), "average_k": (loss_fn.average_k, classes)}
    for key, (size, largest) in sizes.items():
        if size is not None and size > largest:
            raise UsageError(
                f"loss.{key} must be in [1, {largest}] for {classes} classes, got {size}; leave "
                "it out for the default, which is lowered if necessary"
            )
    for key, numbers in {"weight": loss_fn.weight, "class_counts": loss_fn.class_counts}.items():
        if numbers is not None and len(numbers) != classes:
            raise UsageError(
                f"loss.{key} must hold one number for each of {classes} classes, got {len(numbers)}"
            )
    if loss_fn.classes not in (None, classes):
        raise UsageError(
            f"loss.classes must be {classes}, the classes of the data, got {loss_fn.classes}"
        )
    if loss_fn.rows is not None and loss_fn.rows < rows:
        raise UsageError(
            f"loss.rows must be at least {rows}, the training pictures, got {loss_fn.rows}"
        )


def head_of(name: str, head: str) -> str:
    """The head a run trains, for ``auto`` that of its loss; a ``UsageError`` if it cannot be."""
    try:
        own: str = losses.loss_class(name).head
    except ValueError as error:
        raise UsageError(str(error)) from error
    head = own if head == "auto" else head
    if (head == "two_head") != (own == "two_head"):
        raise UsageError(f"loss {name} trains a {own} head, not {head}; leave head at auto")
    return head


def build_network(config: TrainConfig, head: str, classes: int) -> Network:
    """The network that the settings describe, with weights drawn from torch's random state."""
    try:
        network = build(config.backbone, classes, head, image_size=config.preprocess.image_size)
    except ValueError as error:
        raise UsageError(str(error)) from error
    size = sum(value.nbytes for value in network.state_dict().values())
    if size >= _MOST_BYTES:
        raise UsageError(
            f"{config.backbone} has {size / 2**30:.1f} GiB of weights, and an ONNX file holds less "
            f"than {_MOST_BYTES / 2**30:.0f}: choose a smaller backbone"
        )
    return network


def seeded(
    config: TrainConfig, dataset: Dataset, ranks: Ranks = ALONE
) -> tuple[Objective, Network]:
    """The loss and the network of a run, with random weights from its seed; see `start`."""
    torch.manual_seed(config.seed)
    objective = Objective.of(config, dataset, ranks)
    return objective, build_network(config, objective.head, len(dataset.classes))


def start(
    network: Network,
    config: TrainConfig,
    objective: Objective,
    dataset: Dataset,
    weights: Weights | None,
) -> list[str]:
    """Give a new network its initial weights; returns notes for the user."""
    classes, notes = dataset.classes, list[str]()
    prior = config.multi_label_prior
    if prior is not None and objective.head != "two_head":
        raise UsageError(
            f"multi_label_prior is for a two_head head; {config.loss_name} trains a "
            f"{objective.head} head"
        )
    average_k = objective.loss_fn.average_k if prior is None else prior * len(classes)
    if isinstance(network.head, TwoHead) and average_k is not None and average_k < len(classes):
        network.head.start_multi_label_at(average_k)
        notes.append(
            f"multi-label head: a fresh class starts at probability {average_k / len(classes):.3g},"
            f" bias {network.head.multi_label.bias[0]:.2f}; --set multi_label_prior=0.5 for bias 0"
        )
    if isinstance(network.head, CosineHead) and objective.scale is not None:
        network.head.scale.fill_(objective.scale)
    if weights is not None:
        notes.append(warm_start(network, weights, classes.ids))
    return notes


def unfreeze(network: Network, config: TrainConfig) -> list[str]:
    """Freeze all blocks but the last ``config.unfreeze``; returns notes for the user."""
    if config.unfreeze is not None:
        network.keep_statistics()
    if not isinstance(config.unfreeze, int):
        return []
    try:
        network.train_only(config.unfreeze)
    except ValueError as error:
        raise UsageError(f"unfreeze: {error}") from error
    total = sum(parameter.numel() for parameter in network.parameters())
    trainable = sum(
        parameter.numel() for parameter in network.parameters() if parameter.requires_grad
    )
    few_blocks = {0: "alone, nothing", 1: "and the last block"}
    blocks = few_blocks.get(config.unfreeze, f"and the last {config.unfreeze} blocks")
    return [
        f"training the head {blocks} of {config.backbone}: "
        f"{trainable / 1e6:.3g} of {total / 1e6:.3g} million weights"
    ]

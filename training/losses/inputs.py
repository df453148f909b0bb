"""What every loss asks of its tensors and parameters, checked once and in the same words."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

ClassCounts: TypeAlias = Any
"""Training images per class: list, array, tensor, mapping from class index, or a data set."""


def working(logits: Tensor) -> Tensor:
    """Logits in the precision of the computation: float32 for half precision, else as given."""
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Refuse tensors whose shapes or types do not belong together.

    The range of integer labels is checked on the CPU only: on a GPU the check would wait for
    the device at every step.
    """
    if logits.dim() != 2:
        raise ValueError(f"logits must have shape (batch, classes), got {tuple(logits.shape)}")
    batch, classes = logits.shape
    if labels.is_floating_point():
        if labels.shape != logits.shape:
            raise ValueError(
                f"soft targets must have the shape of the logits {(batch, classes)}, "
                f"got {tuple(labels.shape)}"
            )
        return
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64 or floating point, got {labels.dtype}")
    if labels.shape != (batch,):
        raise ValueError(f"labels must have shape ({batch},), got {tuple(labels.shape)}")
    if labels.device.type == "cpu" and batch and not torch.compiler.is_compiling():
        lowest, highest = (int(edge) for edge in labels.aminmax())
        if lowest < 0 or highest >= classes:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"labels must be in [0, {classes - 1}], got {wrong}")


def check_k(k: int, classes: int | None = None) -> None:
    """Refuse a ``k`` that is no whole number or leaves no (k+1)-th class to compare with."""
    if not is_integer(k) or k < 1:
        raise ValueError(f"k must be an integer of at least 1, got {k}")
    if classes is not None and k >= classes:
        raise ValueError(f"k must be in [1, {classes - 1}] for {classes} classes, got {k}")


def check_at_least(name: str, value: float, bound: float) -> None:
    """Refuse NaN, infinity and anything below ``bound``."""
    if not bound <= value < float("inf"):
        raise ValueError(f"{name} must be finite and at least {bound}, got {value}")


def check_positive(name: str, value: float) -> None:
    """Refuse NaN, infinity, zero and negative values."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be finite and positive, got {value}")


def is_integer(value: object) -> bool:
    """Whether ``value`` is a whole number type; ``True`` and 5.0 are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def class_weights(weight: Tensor | Sequence[float] | np.ndarray | None) -> Tensor | None:
    """Weights of the classes as a tensor: a tensor keeps its type, numbers become float64."""
    if weight is None:
        return None
    given = weight if isinstance(weight, Tensor) else np.asarray(weight, dtype=np.float64)
    weights = torch.as_tensor(given).detach()
    if weights.dim() != 1 or not weights.is_floating_point():
        raise ValueError(
            f"weight must be floating point of shape (classes,), got {weights.dtype} "
            f"{tuple(weights.shape)}"
        )
    if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise ValueError(f"weight must be finite and at least 0, got {weights.tolist()}")
    return weights


def count_classes(class_counts: ClassCounts) -> Tensor:
    """Training images per class as int64 ``(classes,)``.

    Args:
        class_counts: A list, array or tensor with one count per class, a mapping from class
            index to count, or a data set: anything with integer ``labels`` or ``targets``
            (torchvision's data sets, a split of ours), or our own data set, whose ``train``
            split is counted.

    Raises:
        ValueError: A count is not a whole number, or a class has no image at all.
    """
    if isinstance(class_counts, Tensor) and _leave_unread(class_counts):
        return class_counts
    counts = torch.as_tensor(_counts(class_counts)).detach()
    if counts.dim() != 1 or counts.numel() == 0:
        raise ValueError(f"class_counts must have shape (classes,), got {tuple(counts.shape)}")
    if counts.is_floating_point() and not bool((counts == counts.round()).all()):
        raise ValueError(f"class_counts must be whole numbers, got {counts.tolist()}")
    missing = (counts < 1).nonzero().flatten().tolist()
    if missing:
        raise ValueError(
            f"class_counts must be at least 1 for every class, got none for {missing[:10]}: "
            "a margin needs at least one training image"
        )
    return counts.to(torch.int64)


def _leave_unread(counts: Tensor) -> bool:
    """Counts that a module has checked, where reading them again would stall the device."""
    elsewhere = torch.compiler.is_compiling() or counts.device.type != "cpu"
    return elsewhere and counts.dtype == torch.int64


def _counts(given: ClassCounts) -> Any:
    if isinstance(given, Tensor | np.ndarray | list | tuple):
        return given
    if isinstance(given, Mapping):
        return [given.get(index, 0) for index in range(max(given) + 1)]
    if hasattr(given, "split") and hasattr(given, "classes"):
        labels = np.asarray(given.split("train").labels)
        return np.bincount(labels, minlength=len(given.classes))
    found = getattr(given, "labels", getattr(given, "targets", None))
    if found is None:
        raise ValueError(
            "class_counts must be a list, array, tensor, mapping or a data set with labels, "
            f"got {type(given).__name__}"
        )
    return np.bincount(np.asarray(found))

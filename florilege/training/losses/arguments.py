"""Checks of tensors and parameters that all losses share."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

ClassCounts: TypeAlias = Tensor | Sequence[int] | np.ndarray
"""Training images per class."""


def working(logits: Tensor) -> Tensor:
    """Logits in the precision of the computation: float32 for half precision, else as given."""
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def on_host(values: Tensor) -> bool:
    """Whether values can be read at once: a GPU would stall, and compiled code cannot read."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def whole(labels: Tensor) -> Tensor:
    """The labels, with uint8 converted to int64.

    Call this before any comparison: in uint8 the ignored label -100 is 156.
    """
    return labels.long() if labels.dtype == torch.uint8 else labels


def _check_batch(logits: Tensor, labels: Tensor, *, check_range: bool = True) -> Tensor:
    """Refuse tensors whose shapes or types do not fit; returns the labels, :func:`whole`.

    The range of integer labels is checked on the CPU only.
    """
    if logits.dim() != 2:
        raise ValueError(f"logits must have shape (batch, classes), got {tuple(logits.shape)}")
    labels, (batch, classes) = whole(labels), logits.shape
    if labels.is_floating_point():
        if labels.shape != logits.shape:
            raise ValueError(
                f"labels must be classes, int64 ({batch},), or soft targets "
                f"{(batch, classes)}, got {labels.dtype} {tuple(labels.shape)}"
            )
        return labels
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64 or floating point, got {labels.dtype}")
    if labels.shape != (batch,):
        raise ValueError(f"labels must have shape ({batch},), got {tuple(labels.shape)}")
    if check_range:
        _check_range(labels, classes)
    return labels


def _check_range(labels: Tensor, classes: int) -> None:
    if on_host(labels) and not labels.clamp(0, classes - 1).equal(labels):
        lowest, highest = map(int, labels.aminmax())
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"labels must be in [0, {classes - 1}], got {wrong}")


class BatchLabels(NamedTuple):
    """The labels of a batch, checked."""

    labels: Tensor  # with 0 in place of ignored ones
    counted: Tensor  # which rows count, bool (batch,)

    @classmethod
    def of(
        cls,
        logits: Tensor,
        labels: Tensor,
        weight: Tensor | None,
        ignore_index: int,
        *,
        check_range: bool = True,
    ) -> "BatchLabels":
        """Check labels and class weights; no row of soft targets is ignored.

        ``check_range=False`` leaves labels that are no class to a later :func:`checked`.
        """
        if weight is not None and weight.shape != logits.shape[-1:]:
            raise ValueError(
                f"weight must have shape ({logits.shape[-1]},) for these logits, "
                f"got {tuple(weight.shape)}"
            )
        labels = whole(labels)
        if labels.is_floating_point():
            counted = torch.ones(labels.shape[:1], dtype=torch.bool, device=labels.device)
            return cls(_check_batch(logits, labels), counted)
        counted = labels != ignore_index
        labels = _check_batch(logits, labels.where(counted, 0), check_range=check_range)
        return cls(labels, counted)

    def shares(self, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What each row adds to the divisor of the weighted mean, ``(batch,)``.

        The weight of its label; 1, which is the bool itself, without weights or with soft targets.
        """
        if weight is None or self.labels.is_floating_point():
            return self.counted
        return self.counted * weight.to(dtype)[self.labels]


def checked(logits: Tensor, labels: Tensor, **parameters: Any) -> tuple[Tensor, Tensor]:
    """Logits to compute with and the labels :func:`whole`, after checking all arguments."""
    labels = _check_batch(logits, labels)
    check_parameters(**parameters)
    classes = logits.shape[1]
    if "k" in parameters and parameters["k"] >= classes:  # there is no (k+1)-th to compare with
        k = parameters["k"]
        raise ValueError(f"k must be in [1, {classes - 1}] for {classes} classes, got {k}")
    return working(logits), labels


_AT_LEAST_0 = ("alpha", "beta", "gamma", "margin", "max_margin", "reg_weight", "theta_lr")
_POSITIVE = ("epsilon", "scale", "tau")
_NUMBERS: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "average_k": ("finite and at least 1", lambda x: 1 <= x < math.inf),
    "label_smoothing": ("in [0, 1)", lambda x: 0 <= x < 1),
    "q": ("in (0, 1]", lambda x: 0 < x <= 1),
    **dict.fromkeys(_AT_LEAST_0, ("finite and at least 0", lambda x: 0 <= x < math.inf)),
    **dict.fromkeys(_POSITIVE, ("finite and positive", lambda x: 0 < x < math.inf)),
}
_WHOLE: Final = {
    "classes": 1,
    "k": 1,
    "noise_samples": 1,
    "positives": 1,
    "recent_batches": 0,
    "rows": 1,
}


def check_parameters(**parameters: Any) -> None:
    """Refuse parameters that are out of range; a name has the same range in every loss."""
    for name, value in parameters.items():
        if name in _NUMBERS:
            _check_number(name, value)
        elif name in _WHOLE and (not is_integer(value) or value < _WHOLE[name]):
            raise ValueError(f"{name} must be an integer of at least {_WHOLE[name]}, got {value}")
        elif name == "sharing" and value not in ("per_sample", "shared"):
            raise ValueError(f"sharing must be 'per_sample' or 'shared', got {value!r}")
        elif name == "generator" and not isinstance(value, Generator | None):
            raise ValueError(f"generator must be a torch.Generator, got {value!r}")


def _check_number(name: str, value: object) -> None:
    allowed, is_allowed = _NUMBERS[name]
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not is_allowed(value):  # NaN never is
        raise ValueError(f"{name} must be {allowed}, got {value}")


def check_average_k(average_k: float, classes: int) -> None:
    """Refuse a mean set size larger than the number of classes."""
    if average_k > classes:
        raise ValueError(f"average_k must be in [1, {classes}], got {average_k}")


def is_integer(value: object) -> bool:
    """Whether ``value`` is of an integer type; ``True`` and 5.0 are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def class_weights(weight: Tensor | Sequence[float] | np.ndarray | None) -> Tensor | None:
    """Weights of the classes: a floating point tensor keeps its type, numbers become float64."""
    if weight is None:
        return None
    weights = _tensor(weight)
    if weights is None or weights.dim() != 1 or weights.is_complex():
        raise ValueError(f"weight must be real numbers of shape (classes,), got {weight!r}")
    weights = weights if weights.is_floating_point() else weights.double()
    finite = bool(torch.isfinite(weights).all())
    if not finite or bool((weights < 0).any()) or not bool(weights.any()):
        raise ValueError(f"weight must be finite, at least 0 and not all 0, got {weights.tolist()}")
    return weights


def count_classes(class_counts: ClassCounts) -> Tensor:
    """Training images per class as int64 ``(classes,)``; a class without any is refused.

    Counts of a module, on another device, are not read again: that would stall the device.
    """
    counts = _tensor(class_counts)
    if counts is not None and counts.dtype == torch.int64 and not on_host(counts):
        return counts
    if counts is None or not _are_whole(counts):
        raise ValueError(f"class_counts must be whole numbers, one per class, got {class_counts}")
    if counts.dim() != 1 or counts.numel() == 0:
        raise ValueError(f"class_counts must have shape (classes,), got {tuple(counts.shape)}")
    if bool(counts.amin() < 1):
        missing = (counts < 1).nonzero().flatten().tolist()
        raise ValueError(
            f"class_counts must be at least 1 for every class, got none for {missing[:10]}: "
            "a margin needs at least one training image"
        )
    return counts.to(torch.int64)


def _are_whole(counts: Tensor) -> bool:
    # Those of a module are, and must not be read in every step.
    if counts.dtype == torch.int64:
        return True
    return not counts.is_complex() and not bool((counts % 1 != 0).any())


def _tensor(numbers: Any) -> Tensor | None:
    """A tensor as it is, other numbers as float64; None if they are not numbers."""
    if isinstance(numbers, Tensor):
        return numbers.detach() if numbers.requires_grad else numbers
    try:
        # "same_kind" refuses text and complex numbers, which a plain cast would take or cut.
        return torch.from_numpy(np.asarray(numbers).astype(np.float64, casting="same_kind"))
    except (TypeError, ValueError):
        return None

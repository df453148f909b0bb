"""The losses by name: ``LOSSES`` as modules, and the pure functions of the same names.

Every function takes ``logits``, raw class scores, floating point, ``(batch, classes)``, then
``labels``, true class indices, int64 ``(batch,)``, or soft targets ``(batch, classes)``, which
mean ``sum_c t_c loss(., c)``; its parameters are keywords. It returns one loss per example,
``(batch,)``, or a scalar where the loss is defined on the whole batch: in float32 for
half-precision logits, in the type of the logits otherwise. A parameter out of range or tensors
that do not fit raise a ``ValueError``. A function defined on the whole batch also takes ``weight``
and ``ignore_index``, as every module does; :class:`Loss` says what they mean. Each docstring
describes only what is specific to its loss.

A module has the parameters of its function and the options of :class:`Loss`.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from florilege.errors import UsageError, suggestion
from florilege.settings import is_extension, load_extension
from florilege.training.losses.base import Head, Loss, adapted
from florilege.training.losses.entropy import (
    CrossEntropy,
    Focal,
    GeneralisedCrossEntropy,
    Ldam,
    cross_entropy,
    focal,
    generalised_cross_entropy,
    ldam,
)
from florilege.training.losses.hinges import (
    CalibratedTopKHinge,
    ConvexTopKHinge,
    TopKHinge,
    calibrated_top_k_hinge,
    convex_top_k_hinge,
    top_k_hinge,
)
from florilege.training.losses.noise import (
    ImbalancedNoisedTopK,
    NoisedTopK,
    imbalanced_noised_top_k,
    noised_top_k,
)
from florilege.training.losses.online_labels import Role, role
from florilege.training.losses.single_positive import (
    AssumeNegative,
    ExpectedPositive,
    PositiveBce,
    assume_negative,
    expected_positive,
    positive_bce,
)
from florilege.training.losses.smooth_hinge import SmoothTopK, smooth_top_k
from florilege.training.losses.two_heads import TwoHeadAverageK, two_head_average_k

LOSSES: Mapping[str, type[Loss]] = {
    loss.function.__name__: loss
    for loss in (
        *(CrossEntropy, Focal, GeneralisedCrossEntropy, Ldam),
        *(TopKHinge, ConvexTopKHinge, CalibratedTopKHinge, SmoothTopK),
        *(NoisedTopK, ImbalancedNoisedTopK),
        *(AssumeNegative, PositiveBce, ExpectedPositive, Role, TwoHeadAverageK),
    )
}


def loss_class(name: str) -> type[Loss]:
    """The class of the loss called ``name``, or of somebody's ``package.module:Class``.

    Raises:
        ValueError: There is no such loss.
        UsageError: Somebody's loss cannot be imported, or is no torch module.
    """
    if is_extension(name):
        kind = load_extension(name)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise UsageError(f"{name} is no class of torch.nn.Module: make the loss one")
        return kind if issubclass(kind, Loss) else adapted(kind)
    if name not in LOSSES:
        listed = ", ".join(LOSSES)
        raise ValueError(f"loss must be one of {listed}, got {name!r}{suggestion(name, LOSSES)}")
    return LOSSES[name]


def build(name: str, **parameters: Any) -> Loss:
    """Make the loss called ``name``.

    Raises:
        ValueError: There is no such loss, it has no such parameter, or a parameter is missing.
        UsageError: See :func:`loss_class`.

    Example:
        >>> build("cross_entropy", label_smoothing=0.1).head
        'linear'
    """
    kind = loss_class(name)
    signature = inspect.signature(kind).parameters
    required = {key for key, parameter in signature.items() if parameter.default is parameter.empty}
    listed = f"its parameters are {', '.join(signature)}"
    if unknown := [key for key in parameters if key not in signature]:
        hints = f"{_owner(unknown)}; {listed}{suggestion(unknown[0], signature)}"
        raise ValueError(f"loss {name} has no {', '.join(unknown)}{hints}")
    if missing := [key for key in signature if key in required - parameters.keys()]:
        raise ValueError(f"loss {name} needs {', '.join(missing)}; {listed}")
    return kind(**parameters)


def _owner(parameters: Sequence[str]) -> str:
    """The only loss that has these parameters, for a message; empty if there is none or several."""
    names = [k for k, loss in LOSSES.items() if {*parameters} <= {*loss.__signature__.parameters}]
    return f" ({names[0]} has)" if len(names) == 1 else ""


__all__ = [
    "LOSSES", "AssumeNegative", "CalibratedTopKHinge", "ConvexTopKHinge", "CrossEntropy",
    "ExpectedPositive", "Focal", "GeneralisedCrossEntropy", "Head", "ImbalancedNoisedTopK", "Ldam",
    "Loss", "NoisedTopK", "PositiveBce", "Role", "SmoothTopK", "TopKHinge", "TwoHeadAverageK",
    "assume_negative", "build", "calibrated_top_k_hinge", "convex_top_k_hinge", "cross_entropy",
    "expected_positive", "focal", "generalised_cross_entropy", "imbalanced_noised_top_k", "ldam",
    "loss_class",
    "noised_top_k", "positive_bce", "role", "smooth_top_k", "top_k_hinge",
    "two_head_average_k",
]  # fmt: skip

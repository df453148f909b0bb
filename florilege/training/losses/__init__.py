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

The docstrings name these papers by a letter:

    [A] Garcin, Servajean, Salmon and Joly, "A two-head loss function for deep Average-K
        classification", 2023; [S] is its supplement.
    [B] Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
        ICLR 2018.
    [N] Garcin, Servajean, Joly and Salmon, "Stochastic smoothing of the top-K calibrated hinge loss
        for deep imbalanced classification", ICML 2022; [N2] is its page on arXiv, with more
        experiments.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor, nn

from florilege.errors import FlorilegeError, UsageError, suggestion
from florilege.settings import is_extension, load_extension
from florilege.training.losses.base import Head, Loss, with_gradients
from florilege.training.losses.entropy import (
    assume_negative,
    cross_entropy,
    expected_positive,
    focal,
    generalised_cross_entropy,
    ldam,
    positive_bce,
)
from florilege.training.losses.hinges import (
    calibrated_top_k_hinge,
    convex_top_k_hinge,
    imbalanced_noised_top_k,
    noised_top_k,
    top_k_hinge,
)
from florilege.training.losses.online_labels import Role, role
from florilege.training.losses.smooth_hinge import smooth_top_k
from florilege.training.losses.two_heads import TwoHeadAverageK, two_head_average_k

_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FACTS = ("head", "coupled", "takes_rows")
_ATTRIBUTES = ("reduction", "ignore_index", "weight", "k", "average_k", "scale")


def _module_of(function: Callable[..., Tensor], *, head: Head = "linear") -> type[Loss]:
    """The module of a loss, to be kept under its name: ``TopKHinge = _module_of(top_k_hinge)``."""
    name = function.__name__.title().replace("_", "")
    about = f"Module of :func:`{function.__name__}`."
    members = {"__doc__": about, "head": head}
    return type(name, (Loss,), members, function=function)


CrossEntropy = _module_of(cross_entropy)
Focal = _module_of(focal)
GeneralisedCrossEntropy = _module_of(generalised_cross_entropy)
Ldam = _module_of(ldam, head="cosine")
TopKHinge = _module_of(top_k_hinge)
ConvexTopKHinge = _module_of(convex_top_k_hinge)
CalibratedTopKHinge = _module_of(calibrated_top_k_hinge)
SmoothTopK = _module_of(smooth_top_k)
NoisedTopK = _module_of(noised_top_k)
ImbalancedNoisedTopK = _module_of(imbalanced_noised_top_k, head="cosine")
AssumeNegative = _module_of(assume_negative)
PositiveBce = _module_of(positive_bce)
ExpectedPositive = _module_of(expected_positive)

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
        return kind if issubclass(kind, Loss) else _adapted(kind)
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


def _adapted(kind: type[nn.Module]) -> type[Loss]:
    """A loss whose parameters are those of a torch module, and whose value is the module's.

    A module is called as ``module(logits, labels)`` and returns the mean loss of the batch. It may
    have the attributes of :class:`Loss` that a run reads, such as ``head = "two_head"``.
    """

    def initialise(self: Any, **parameters: Any) -> None:
        Loss.__init__(self)
        self.module = _made(kind, parameters)
        for name in _ATTRIBUTES:
            value = getattr(self.module, name, None)
            if value is not None and not (name == "weight" and isinstance(value, Real)):
                setattr(self, name, value)

    def forward(self: Any, *arguments: Tensor, **options: Tensor) -> Tensor:
        return _value_of(self.module, arguments, options)

    facts = {name: getattr(kind, name) for name in _FACTS if hasattr(kind, name)}
    members = {"__init__": initialise, "forward": forward, "__doc__": kind.__doc__, **facts}
    result: Any = type(kind.__name__, (Loss,), members)
    named = [p for p in inspect.signature(kind).parameters.values() if p.kind not in _STARRED]
    result.__signature__ = inspect.Signature(named)
    return cast(type[Loss], result)


def _made(kind: type[nn.Module], parameters: dict[str, Any]) -> nn.Module:
    """Somebody's module; a ``ValueError`` or ``TypeError`` if it cannot be made."""
    weight = parameters.get("weight")
    if weight is not None and not isinstance(weight, Real):  # of classes
        parameters = {**parameters, "weight": torch.as_tensor(weight, dtype=torch.float32)}
    try:
        return kind(**parameters)
    except (ValueError, TypeError, FlorilegeError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _value_of(module: nn.Module, logits_and_labels: Sequence[Tensor], options: Any) -> Tensor:
    """The loss of somebody's module, a scalar; a ``UsageError`` if it fails.

    Its gradient is computed at once: in the backward pass of a run nobody would know whose it is.
    """
    *logits, labels = logits_and_labels
    try:
        if torch.is_grad_enabled() and logits[0].requires_grad:
            leaves = [head.detach().requires_grad_() for head in logits]
            value = _scalar(module, module(*(head.clone() for head in leaves), labels, **options))
            gradients = torch.autograd.grad(
                value, leaves, allow_unused=True, materialize_grads=True
            )
            return with_gradients(value.detach(), *zip(logits, gradients, strict=True))
        return _scalar(module, module(*logits_and_labels, **options))
    except (Exception, SystemExit) as error:
        full = isinstance(error, MemoryError) or "memory" in str(error)  # torch has many types
        if full or isinstance(error, FlorilegeError):
            raise
        raise UsageError(
            f"loss {type(module).__name__} fails for {len(logits)} logits and labels: "
            f"{type(error).__name__}: {error}; florilege.testing.check_loss says what to change"
        ) from error


def _scalar(module: nn.Module, value: Any) -> Tensor:
    if isinstance(value, Tensor) and not value.dim():
        return value
    got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    name = type(module).__name__
    raise UsageError(f"{name} must return one number for the batch, a tensor, got {got}")


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

"""Losses of other people as losses of a run."""

import inspect
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from florilege.errors import UsageError
from florilege.training.losses.base import Loss

_STARRED: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FACTS: Final = ("head", "coupled", "takes_rows")
_ATTRIBUTES: Final = ("reduction", "ignore_index", "weight", "k", "average_k", "scale")


def adapted(kind: type[nn.Module]) -> type[Loss]:
    """A loss whose parameters are those of a torch module, and whose value is the module's.

    A module is called as ``module(logits, labels)`` and returns the mean loss of the batch. It may
    have the attributes of :class:`Loss` that a run reads, such as ``head = "two_head"``.
    """

    def initialise(self: Any, **parameters: Any) -> None:
        Loss.__init__(self)
        weight = parameters.get("weight")
        if weight is not None:
            parameters["weight"] = torch.as_tensor(weight, dtype=torch.float32)
        self.module = kind(**parameters)
        for name in _ATTRIBUTES:
            setattr(self, name, getattr(self.module, name, getattr(self, name)))

    def forward(self: Any, *arguments: Tensor, **options: Tensor) -> Tensor:
        value: Any = self.module(*arguments, **options)
        if not isinstance(value, Tensor) or value.dim():
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(f"{kind.__name__} must return one number for the batch, got {got}")
        return value

    facts = {name: getattr(kind, name) for name in _FACTS if hasattr(kind, name)}
    members = {"__init__": initialise, "forward": forward, "__doc__": kind.__doc__, **facts}
    result: Any = type(kind.__name__, (Loss,), members)
    named = [p for p in inspect.signature(kind).parameters.values() if p.kind not in _STARRED]
    result.__signature__ = inspect.Signature(named)
    return cast(type[Loss], result)

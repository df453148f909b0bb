"""Backward passes that are written by hand: once, and refused where a second would be wrong."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.autograd.function import once_differentiable

Slopes = ParamSpec("Slopes")
Result = TypeVar("Result")


def first_derivative_only(
    backward: Callable[Concatenate[Any, Slopes], Result],
) -> Callable[Concatenate[Any, Slopes], Result]:
    """Mark the ``backward`` of a ``torch.autograd.Function`` as one that cannot be derived.

    ``once_differentiable`` alone refuses only where the incoming gradient asks for a gradient
    itself; elsewhere, as beside another term, what is missing silently counts as 0.

    Raises:
        RuntimeError: The backward pass is asked for a graph (``create_graph=True``).
    """
    once = once_differentiable(backward)

    @wraps(backward)
    def checked(ctx: Any, /, *slopes: Slopes.args, **named: Slopes.kwargs) -> Result:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "this loss has no second derivative: call backward without create_graph"
            )
        return once(ctx, *slopes, **named)

    return checked

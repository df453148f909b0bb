"""Choose the output of a graph to serve, from its shape, the graph and its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from florilege.errors import UsageError
from florilege.models.imported.graph import Graph
from florilege.models.imported.input_format import Description

Arrays = Mapping[str, npt.NDArray[Any]]

_SUM_TOLERANCE: Final = 0.02  # of the sum that identifies probabilities
_DECLARED_SUM_TOLERANCE: Final = 0.25  # for declared probabilities: in eight bits, errors add up


@dataclass(frozen=True, kw_only=True)
class OutputChoice:
    """The tensors of a graph to serve.

    ``link`` is the function from ``logits`` to the graph's output: ``softmax``, ``sigmoid``, or
    None for the identity. ``log`` marks probabilities whose logits are not in the graph.
    """

    output: str
    logits: str  # the tensor
    link: str | None
    log: bool
    features: str | None  # the tensor; None for no features

    @property
    def kind(self) -> str:
        return "logits" if self.link is None else "probabilities"


def choose_output(
    graph: Graph, outputs: Arrays, description: Description, *, classes: int
) -> OutputChoice:
    """Choose the output and the tensor of its logits.

    ``outputs`` are those for a batch of pictures; ``classes`` is the number of rows of the class
    table. Raises `UsageError` if no output or several have one number per class, or the numbers
    contradict the preprocess file.
    """
    output = _output_name(graph, outputs, description.output, classes)
    rows = outputs[output].reshape(len(outputs[output]), -1).astype(np.float64)
    logits, link = graph.logits_behind(output)
    kind = _kind(output, rows, link, description.kind)
    if link is None:
        logits, link = output, "softmax" if kind == "probabilities" else None
    return OutputChoice(
        output=output,
        logits=logits,
        link=link,
        log=link is not None and logits == output,
        features=graph.features_behind(logits),
    )


def _output_name(graph: Graph, outputs: Arrays, name: str | None, classes: int) -> str:
    numbers = _candidates(outputs, name)
    fits = [name for name, value in numbers.items() if _columns(value) == classes]
    if not fits:
        raise UsageError(_no_fit(numbers or outputs, classes))
    logits = {tensor for each in fits if (tensor := graph.logits_behind(each)[0]) != each}
    logits &= set(fits)
    if len(logits) == 1:  # served instead of their softmax, which is an output too
        return logits.pop()
    if len(fits) > 1:
        raise UsageError(
            f"several outputs hold a number for each of the {classes:,} classes: choose one in the "
            f'file given with --preprocess, {{"output": "{fits[0]}"}}; there are '
            f"{', '.join(fits)}"
        )
    return fits[0]


def _candidates(outputs: Arrays, name: str | None) -> Arrays:
    """The floating-point outputs, or only the one named ``name``."""
    numbers = {key: row for key, row in outputs.items() if np.issubdtype(row.dtype, np.floating)}
    if name is None:
        return numbers
    if name not in numbers:
        raise UsageError(f"the graph has no output {name!r} of numbers; it has {_listed(outputs)}")
    return {name: numbers[name]}


def _columns(value: npt.NDArray[Any]) -> int | None:
    """The number of values per picture; None if they have several axes."""
    sides = [side for side in value.shape[1:] if side != 1]
    return int(np.prod(sides)) if value.ndim > 1 and len(sides) <= 1 else None


def _no_fit(outputs: Arrays, classes: int) -> str:
    message = (
        f"classes.csv must have one row for each number of the output, in its order; it has "
        f"{classes:,} rows, but the graph has {_listed(outputs)}"
    )
    if any(_columns(value) == classes + 1 for value in outputs.values()):
        message += (
            ": one more, perhaps a background class, which comes first in TensorFlow networks. "
            "Add a row for it in its place"
        )
    return message


def _listed(outputs: Arrays) -> str:
    each = (
        f"`{name}` ({', '.join(['batch', *map(str, value.shape[1:])])})"
        for name, value in outputs.items()
    )
    return ", ".join(each) or "no array"


def _kind(
    output: str, rows: npt.NDArray[np.float64], link: str | None, declared: str | None
) -> str:
    """``logits`` or ``probabilities``."""
    sums = rows.sum(axis=1)
    tolerance = _DECLARED_SUM_TOLERANCE if declared == "probabilities" else _SUM_TOLERANCE
    likely = "probabilities" if link or _sum_to_one(rows, tolerance) else "logits"
    if declared is None and likely == "logits" and rows.min() >= 0 and rows.max() <= 1:
        raise UsageError(
            f"`{output}` holds numbers from 0 to 1 that do not sum to one: specify their kind in "
            'the file given with --preprocess, {"kind": "logits"} or {"kind": "probabilities"}'
        )
    if declared not in (None, likely):
        fault = (
            'logits, but these are probabilities: leave out "kind"'
            if declared == "logits"
            else f"probabilities, but they do not sum to one: {sums.min():.3g} to {sums.max():.3g}"
        )
        raise UsageError(f"the preprocess file says that `{output}` holds {fault}")
    return likely


def _sum_to_one(rows: npt.NDArray[np.float64], tolerance: float) -> bool:
    """Whether each row holds the probabilities of several classes."""
    if rows.shape[1] == 1 or not (rows >= 0).all():
        return False
    return bool(np.abs(rows.sum(axis=1) - 1).max() < tolerance)

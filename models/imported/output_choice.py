"""Which output of a graph is served: told from its shape, from the graph and from its numbers."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from florilege.errors import UsageError
from florilege.models.imported.description import Description
from florilege.models.imported.graph import Graph
from florilege.models.imported.wrapper import Chosen

Arrays = Mapping[str, npt.NDArray[Any]]

SUM_SLACK: Final = 0.02  # of probabilities that are told by their sum
SAID_SLACK: Final = 0.25  # of those that someone calls so: of eight bits, many classes add up to it


def choose(graph: Graph, found: Arrays, said: Description, *, classes: int) -> Chosen:
    """Choose the output, and what of the graph gives its logits.

    Args:
        graph: What was read.
        found: Its outputs for a batch of pictures.
        said: What the preprocess file says.
        classes: Number of rows of the class table.

    Raises:
        UsageError: No output has a number for each class, several have, or its numbers are not
            what the preprocess file says.
    """
    output = _output(graph, found, said, classes)
    rows = found[output].reshape(len(found[output]), -1).astype(np.float64)
    logits, link = graph.logits_behind(output)
    kind = _kind(output, rows, link, said)
    if link is None:
        logits, link = output, "softmax" if kind == "probabilities" else None
    return Chosen(
        output=output,
        logits=logits,
        link=link,
        log=link is not None and logits == output,
        features=graph.features_behind(logits),
    )


def _output(graph: Graph, found: Arrays, said: Description, classes: int) -> str:
    numbers = {
        name: value for name, value in found.items() if np.issubdtype(value.dtype, np.floating)
    }
    if said.output is not None and said.output not in numbers:
        raise UsageError(
            f"the graph has no output {said.output!r} of numbers; it has {_shown(found)}"
        )
    among = numbers if said.output is None else {said.output: numbers[said.output]}
    fits = [name for name, value in among.items() if _columns(value) == classes]
    if not fits:
        raise UsageError(_no_fit(among or found, classes))
    behind = [name for name in fits if any(_is_of(graph, other, name) for other in fits)]
    fits = behind if len(behind) == 1 else fits  # the logits, where their softmax is given too
    if len(fits) > 1:
        raise UsageError(
            f"several outputs hold a number for each of the {classes:,} classes: say which one in "
            f'the file given with --preprocess, {{"output": "{fits[0]}"}}; there are '
            f"{', '.join(fits)}"
        )
    return fits[0]


def _is_of(graph: Graph, output: str, logits: str) -> bool:
    return output != logits and graph.logits_behind(output)[0] == logits


def _columns(value: npt.NDArray[Any]) -> int | None:
    """How many numbers a picture gets; None where they lie along several axes."""
    sides = [side for side in value.shape[1:] if side != 1]
    return int(np.prod(sides)) if value.ndim > 1 and len(sides) <= 1 else None


def _no_fit(outputs: Arrays, classes: int) -> str:
    said = (
        f"classes.csv has {classes:,} rows, one for each number of the output and in its order, "
        f"but the graph gives {_shown(outputs)}"
    )
    if any(_columns(value) == classes + 1 for value in outputs.values()):
        said += (
            ": one more, perhaps a background class, which networks of TensorFlow have first. "
            "Give it a row in its place"
        )
    return said


def _shown(outputs: Arrays) -> str:
    each = (
        f"`{name}` ({', '.join(['batch', *map(str, value.shape[1:])])})"
        for name, value in outputs.items()
    )
    return ", ".join(each) or "no array"


def _kind(output: str, rows: npt.NDArray[np.float64], link: str | None, said: Description) -> str:
    """``logits`` or ``probabilities``."""
    slack = SAID_SLACK if said.kind == "probabilities" else SUM_SLACK
    sums = rows.sum(axis=1)
    shares = bool((rows >= 0).all() and rows.shape[1] > 1 and np.abs(sums - 1).max() < slack)
    likely = "probabilities" if link or shares else "logits"
    if said.kind == "probabilities" and likely == "logits":
        raise UsageError(
            f"the preprocess file says that `{output}` holds probabilities, but they do not sum "
            f"to one: {sums.min():.3g} to {sums.max():.3g}"
        )
    if said.kind == "logits" and likely == "probabilities":
        raise UsageError(
            f"the preprocess file says that `{output}` holds logits, but these are probabilities: "
            'leave out "kind"'
        )
    if likely == "logits" and said.kind is None and rows.min() >= 0 and rows.max() <= 1:
        raise UsageError(
            f"`{output}` holds numbers from 0 to 1 that do not sum to one: say what they are in "
            'the file given with --preprocess, {"kind": "logits"} or {"kind": "probabilities"}'
        )
    return likely

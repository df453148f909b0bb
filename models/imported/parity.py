"""Whether the bundle's graph says what the original says, picture by picture."""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from florilege.errors import BundleError
from florilege.models.imported.graph import Graph
from florilege.models.imported.input_format import Form
from florilege.models.imported.wrapper import LOGITS, Chosen, wrapped
from florilege.models.session import FEATURES, INPUT, open_graph

Numbers = npt.NDArray[np.float64]
Pictures = npt.NDArray[np.uint8]

TOLERANCE: Final = 1e-4
"""What outputs may differ by: of the largest one, and beside it."""
FEW_BITS_TOLERANCE: Final = 1e-2
"""The same for graphs in half precision or eight bits."""
TOGETHER: Final = 4  # pictures of the batch that is compared with one picture at a time


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far apart the original and the bundle's graph are on the same pictures."""

    max_difference: float  # between numbers of the original's output, absolute
    tolerance: float  # largest difference allowed
    same_best_class: int  # of the pictures
    pictures: int

    @property
    def holds(self) -> bool:
        """Whether the difference is allowed and every best class is the same."""
        return self.same_best_class == self.pictures and self.max_difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Proven:
    """A graph with our ends that agrees with the original."""

    model: onnx.ModelProto
    batch: bool  # whether it takes several pictures at once
    agreement: Agreement
    logits: Numbers  # of the pictures compared
    dimensions: int | None  # of the features; None if there are none


def agreement(original: Numbers, ours: Numbers, *, relative: float) -> Agreement:
    """Compare outputs ``(pictures, classes)``.

    Where the original's two best are closer than what is allowed, either counts as its best class.
    ``relative`` is what they may differ by, of the largest number and beside it.
    """
    worst = float(np.abs(original - ours).max())
    tolerance = relative * (1 + float(np.abs(original).max()))
    theirs = np.take_along_axis(original, ours.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
    return Agreement(
        max_difference=worst if np.isfinite(worst) else float("inf"),
        tolerance=tolerance,
        same_best_class=int((theirs >= original.max(axis=1) - tolerance).sum()),
        pictures=len(original),
    )


def original_outputs(graph: Graph, form: Form, pictures: Pictures) -> dict[str, npt.NDArray[Any]]:
    """What the original gives, its input made in plain NumPy, as many at once as it takes."""
    found = []
    for start in range(0, len(pictures), graph.batch):
        rows = np.arange(start, start + graph.batch) % len(pictures)
        batch = graph.run(form.prepared(pictures[rows]))
        left = len(pictures) - start
        found.append({name: value[:left] for name, value in batch.items()})
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def proven(
    graph: Graph, form: Form, chosen: Chosen, pictures: Pictures, original: Numbers
) -> Proven:
    """Give the graph our ends and compare it with what the original said of the pictures.

    It then takes any number of pictures at once, or one where it was made for one and batches of it
    fail or say something else.

    Args:
        graph, form, chosen: What was read, how it wants its pictures, what of it is served.
        pictures: RGB, ``(pictures, size, size, 3)``.
        original: Its output for them, ``(pictures, classes)``.

    Raises:
        BundleError: They disagree.
    """
    try:
        return _tried(graph, form, chosen, pictures, original, batch=True)
    except BundleError:
        return _tried(graph, form, chosen, pictures, original, batch=False)


def _tried(
    graph: Graph, form: Form, chosen: Chosen, pictures: Pictures, original: Numbers, *, batch: bool
) -> Proven:
    model = wrapped(graph, form, chosen, classes=original.shape[1], one_at_a_time=not batch)
    parts = [row[np.newaxis] for row in pictures] + ([pictures[:TOGETHER]] if batch else [])
    try:
        session = open_graph(model.SerializeToString(), threads=1, quiet=True)
        found = [session.run(None, {INPUT: part}) for part in parts]
    except Exception as error:  # each kind of failure raises another class of the runtime's own
        raise BundleError(f"the bundle's graph does not run: {error}") from error
    names = [value.name for value in session.get_outputs()]
    outputs = {
        name: np.concatenate(v) for name, v in zip(names, zip(*found, strict=True), strict=True)
    }
    logits = outputs[LOGITS].astype(np.float64)
    if chosen.log:  # of few bits, they sum to one with an error
        original = original / original.sum(axis=1, keepdims=True)
    relative = FEW_BITS_TOLERANCE if graph.few_bits else TOLERANCE
    compared = _compared(original, _linked(logits, chosen.link), relative)
    if not compared.holds:
        raise BundleError(
            f"the bundle's graph and the original differ by {compared.max_difference:.3g} (allowed "
            f"{compared.tolerance:.3g}), with the same best class for {compared.same_best_class} "
            f"of {compared.pictures} pictures; nothing was written"
        )
    dimensions = _dimensions(model, outputs.get(FEATURES))
    return Proven(
        model=model,
        batch=batch,
        agreement=compared,
        logits=logits[: len(pictures)],
        dimensions=dimensions,
    )


def _compared(original: Numbers, ours: Numbers, relative: float) -> Agreement:
    """The agreement of pictures one at a time, with the worst of the batch that follows them."""
    count = len(original)
    singly = agreement(original, ours[:count], relative=relative)
    if len(ours) == count:
        return singly
    together = agreement(original[: len(ours) - count], ours[count:], relative=relative)
    return replace(singly, max_difference=max(singly.max_difference, together.max_difference))


def _linked(logits: Numbers, link: str | None) -> Numbers:
    """The original's output as it follows from logits."""
    if link is None:
        return logits
    if link == "sigmoid":
        with np.errstate(over="ignore"):
            found: Numbers = 1 / (1 + np.exp(-logits))
        return found
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Numbers = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _dimensions(model: onnx.ModelProto, features: npt.NDArray[np.float32] | None) -> int | None:
    """Say in the graph how many numbers its features are, as a session wants to know."""
    if features is None:
        return None
    for value in model.graph.output:
        if value.name == FEATURES:
            value.type.tensor_type.shape.dim[1].dim_value = features.shape[1]
    return int(features.shape[1])

"""Compare the outputs of the wrapped graph with the original, picture by picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from florilege.errors import BundleError, DataError
from florilege.models.images import ImageError, Preprocess, load
from florilege.models.images.sniff import ENDINGS
from florilege.models.imported.graph import Graph
from florilege.models.imported.input_format import InputFormat
from florilege.models.imported.output_choice import OutputChoice
from florilege.models.imported.wrapper import wrap_graph
from florilege.models.session import INPUT, open_graph

Numbers = npt.NDArray[np.float64]
Pictures = npt.NDArray[np.uint8]

TOLERANCE: Final = 1e-4  # relative, of the largest output, and absolute, added to it
_FEW_BITS_TOLERANCE: Final = 1e-2  # the same for graphs in half precision or eight bits
BATCH: Final = 4  # size of the batch that is compared with single pictures


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """Differences between the original and the bundle's graph on the same pictures."""

    max_difference: float  # largest absolute difference between outputs
    tolerance: float  # largest difference allowed
    same_best_class: int  # pictures with the same best class
    pictures: int

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance and every best class is the same."""
        return self.same_best_class == self.pictures and self.max_difference <= self.tolerance


class WrappedModel(NamedTuple):
    """A wrapped graph that agrees with the original."""

    model: onnx.ModelProto
    batch: bool  # whether it takes several pictures at once
    comparison: OutputComparison
    logits: Numbers  # of the compared pictures
    dimensions: int | None  # of the features; None if there are none


def compare_outputs(original: Numbers, ours: Numbers, *, relative: float) -> OutputComparison:
    """Compare outputs ``(pictures, classes)``.

    If the original's two best outputs are closer than the tolerance, either counts as its best
    class. The tolerance is ``relative`` times one plus the largest absolute output.
    """
    difference = float(np.abs(original - ours).max())
    tolerance = relative * (1 + float(np.abs(original).max()))
    at_our_best = np.take_along_axis(original, ours.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
    return OutputComparison(
        max_difference=difference if np.isfinite(difference) else float("inf"),
        tolerance=tolerance,
        same_best_class=int((at_our_best >= original.max(axis=1) - tolerance).sum()),
        pictures=len(original),
    )


def original_outputs(
    graph: Graph, input_format: InputFormat, pictures: Pictures
) -> dict[str, npt.NDArray[Any]]:
    """The outputs of the original, in batches of its size, with input prepared in plain NumPy."""
    batches = []
    for start in range(0, len(pictures), graph.batch):
        rows = np.arange(start, start + graph.batch) % len(pictures)
        outputs = graph.run(input_format.prepare(pictures[rows]))
        count = len(pictures) - start
        batches.append({name: value[:count] for name, value in outputs.items()})
    return {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}


def wrap_and_compare(
    graph: Graph,
    input_format: InputFormat,
    choice: OutputChoice,
    pictures: Pictures,
    original: Numbers,
) -> WrappedModel:
    """Wrap the graph for any number of pictures, or for one at a time if batches fail or differ.

    ``original`` holds its output for ``pictures``, ``(pictures, classes)``. Raises `BundleError`
    if the wrapped graph differs from it.
    """
    try:
        return _wrap_and_compare(graph, input_format, choice, pictures, original, batch=True)
    except BundleError:
        return _wrap_and_compare(graph, input_format, choice, pictures, original, batch=False)


def _wrap_and_compare(
    graph: Graph,
    input_format: InputFormat,
    choice: OutputChoice,
    pictures: Pictures,
    original: Numbers,
    *,
    batch: bool,
) -> WrappedModel:
    count, classes = original.shape
    model = wrap_graph(graph, input_format, choice, classes=classes, batch=batch)
    singles = [picture[np.newaxis] for picture in pictures]
    logits, *features = _outputs(model, [*singles, pictures[:BATCH]] if batch else singles)
    ours = _apply_link(logits.astype(np.float64), choice.link)
    if choice.log:  # in few bits, probabilities do not sum exactly to one
        original = original / original.sum(axis=1, keepdims=True)
    relative = _FEW_BITS_TOLERANCE if graph.few_bits else TOLERANCE
    comparison = compare_outputs(original, ours[:count], relative=relative)
    if batch:
        others = compare_outputs(original[:BATCH], ours[count:], relative=relative)
        largest = max(comparison.max_difference, others.max_difference)
        comparison = replace(comparison, max_difference=largest)
    if not comparison.holds:
        raise BundleError(
            f"the bundle's graph and the original differ by {comparison.max_difference:.3g} "
            f"(allowed {comparison.tolerance:.3g}), with the same best class for "
            f"{comparison.same_best_class} of {comparison.pictures} pictures; nothing was written"
        )
    dimensions = features[0].shape[1] if features else None
    if dimensions is not None:  # a session needs it
        model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = dimensions
    return WrappedModel(model, batch, comparison, logits[:count].astype(np.float64), dimensions)


def _outputs(model: onnx.ModelProto, batches: Sequence[Pictures]) -> list[npt.NDArray[Any]]:
    try:
        session = open_graph(model.SerializeToString(), quiet=True)
        results = [session.run(None, {INPUT: batch}) for batch in batches]
    except Exception as error:  # the runtime raises a different class for each kind of failure
        raise BundleError(f"the bundle's graph does not run: {error}") from error
    return [np.concatenate(parts) for parts in zip(*results, strict=True)]


def _apply_link(logits: Numbers, link: str | None) -> Numbers:
    """The original's output, computed from logits."""
    if link is None:
        return logits
    if link == "sigmoid":
        with np.errstate(over="ignore"):
            probabilities: Numbers = 1 / (1 + np.exp(-logits))
        return probabilities
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Numbers = powers / powers.sum(axis=1, keepdims=True)
    return shares


MOST_PHOTOS: Final = 32  # compared; of more, a sample spread evenly over the sorted list


def comparison_pictures(
    photos: Sequence[Path], preprocess: Preprocess
) -> tuple[list[str], Pictures]:
    """Photos, given as files or folders, decoded like on the server; synthetic ones if none.

    Returns their names, and RGB pixels, uint8, shape ``(pictures, size, size, 3)``; a `DataError`
    if a folder holds no photo, or a photo cannot be read.
    """
    if not photos:
        pictures = dict(_synthetic_pictures(preprocess.image_size))
        return list(pictures), np.stack(list(pictures.values()))
    paths = [path for photo_or_folder in photos for path in _photos_of(photo_or_folder)]
    rows = np.linspace(0, len(paths) - 1, min(len(paths), MOST_PHOTOS)).astype(int)
    pixels = []
    for row in rows:
        try:
            pixels.append(load(paths[row].read_bytes(), preprocess))
        except OSError as error:
            raise DataError(f"--photos {paths[row]} cannot be read: {error.strerror}") from error
        except ImageError as error:
            raise DataError(f"--photos {paths[row]}: {error}") from error
    return [str(paths[row]) for row in rows], np.stack(pixels)


def _photos_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    photos = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
    if not photos:
        raise DataError(f"--photos {path} holds no photo: {', '.join(sorted(ENDINGS))}")
    return photos


def _synthetic_pictures(side: int) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    """Very different pictures that reveal swapped channels or axes."""
    random = np.random.default_rng(0)
    shape = (side, side, 3)
    yield "noise", random.integers(0, 256, shape, dtype=np.uint8)
    rows, columns = np.mgrid[0:side, 0:side] * (255 / max(side - 1, 1))
    slope = np.stack([rows, columns, 255 - rows], axis=2)
    yield "slopes", slope.astype(np.uint8)
    for number in range(4):
        patches = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        steps = np.arange(side) * 4 // side
        yield f"patches {number + 1}", patches[steps][:, steps]
    yield "black", np.zeros(shape, np.uint8)
    yield "white", np.full(shape, 255, np.uint8)

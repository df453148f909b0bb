"""A classifier trained elsewhere: read from an ONNX file, and written as a bundle.

Its graph becomes one like ours, which needs onnx, but not torch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from florilege.errors import BundleError, DataError, installed
from florilege.files import read_regular
from florilege.models.bundle import THUMBNAILS, Bundle, write_bundle
from florilege.models.classes import ClassTable
from florilege.models.images import ENDINGS, MAX_BYTES, ImageError, Preprocess, load
from florilege.models.imported.graph import Graph
from florilege.models.imported.signature import Description, InputFormat, OutputChoice
from florilege.models.imported.wrapper import (
    OutputComparison,
    Pictures,
    WrappedModel,
    original_outputs,
    wrap_and_compare,
)
from florilege.models.runtime import without_origins

MOST_PHOTOS: Final = 32  # to compare; of more, a sample spread evenly over the sorted list
NO_SPLIT: Final = "none"  # of ``--chosen-on``, if no photo of the data chose the checkpoint
_LIBRARIES: Final = ("florilege", "torch", "torchvision", "timm", "onnx", "onnxruntime", "numpy")


@dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A classifier trained elsewhere, compared with the original."""

    name: str
    model: bytes  # ONNX, with the input and outputs of a bundle
    preprocess: Preprocess
    files: Mapping[str, str]  # SHA-256 of the original files by name
    facts: Mapping[str, str]  # properties by name, for people
    agreement: OutputComparison  # with the original
    pictures: Sequence[str]  # names of the compared pictures
    synthetic: bool  # whether these pictures are made up, not photos
    logits: npt.NDArray[np.float64]  # of these pictures, (pictures, classes)

    @property
    def agreement_text(self) -> str:
        comparison, kind = self.agreement, "made-up pictures" if self.synthetic else "photos"
        return (
            f"original and bundle differ by at most {comparison.max_difference:.2g} (allowed "
            f"{comparison.tolerance:.2g}) on {comparison.pictures} {kind}, with the same best "
            f"class for {comparison.same_best_class}"
        )

    def write(
        self, classes: ClassTable, thumbnails: bytes, out: Path, *, chosen_on: str | None = None
    ) -> Bundle:
        """Write the bundle, which then needs calibration; errors are those of `write_bundle`.

        ``thumbnails`` is the content of ``thumbnails.zip`` or empty. ``chosen_on`` is the split
        whose photos chose the checkpoint, or `NO_SPLIT`; None if unknown.
        """
        files: dict[str, bytes | Path] = {
            "metrics.json": b"{}\n",
            "MODEL_CARD.md": _model_card(self, classes).encode(),
            "provenance.json": _provenance(self, chosen_on),
        }
        if thumbnails:
            files[THUMBNAILS] = thumbnails
        return write_bundle(
            out,
            name=self.name,
            heads={"linear": "logits"},
            model=self.model,
            classes=classes,
            preprocess=self.preprocess,
            files=files,
        )


def import_onnx(
    path: Path, description: Description, *, classes: int, photos: Sequence[Path]
) -> ImportedModel:
    """Wrap the graph so that it takes raw pictures and returns logits, and compare the two.

    ``classes`` is the number of rows of the class table; ``photos`` are photos or folders for the
    comparison, which otherwise takes synthetic pictures.

    Raises:
        UsageError: The graph and the preprocess file do not determine or fit the input and output.
        BundleError: The file is not a usable ONNX graph, or the wrapped graph differs from it.
        DataError: A photo cannot be read.
    """
    graph = Graph.read(path)
    input_format = InputFormat.of(graph, description)
    preprocess = input_format.preprocess
    names, pixels = comparison_pictures(photos, preprocess)
    outputs = original_outputs(graph, input_format, pixels)
    choice = OutputChoice.of(graph, outputs, input_format, classes=classes)
    original = outputs[choice.output].reshape(len(names), -1).astype(np.float64)
    if not np.isfinite(original).all():
        raise BundleError(
            f"the output `{choice.output}` holds infinite numbers or NaN: in float16 they overflow "
            "beyond 65,504; check scale, mean and std, or export the graph in float32"
        )
    wrapped_model = wrap_and_compare(graph, input_format, choice, pixels, original)
    return ImportedModel(
        name=path.stem,
        model=without_origins(wrapped_model.model),
        preprocess=preprocess,
        files=graph.files,
        facts=_onnx_facts(graph, input_format, choice, wrapped_model),
        agreement=wrapped_model.comparison,
        pictures=names,
        synthetic=not photos,
        logits=wrapped_model.logits,
    )


def _onnx_facts(
    graph: Graph, input_format: InputFormat, choice: OutputChoice, wrapped_model: WrappedModel
) -> dict[str, str]:
    size = f"{input_format.size} x {input_format.size} pixels"
    output = f"`{choice.output}`, {choice.kind}"
    if choice.log:
        output += ", served as logarithms"
    elif choice.logits != choice.output:
        output += f", the {choice.link} of the logits `{choice.logits}`, which are served"
    dimensions, weights = wrapped_model.dimensions, list(graph.files)[1:]
    return {
        **({"weights": f"from {', '.join(f'`{name}`' for name in weights)}"} if weights else {}),
        "input": f"`{graph.input.name}`, {input_format.type}, {input_format.layout}, "
        f"{input_format.channels}, {size}",
        **input_format.facts,
        "output": output,
        "features": f"`{choice.features}`, {dimensions:,} numbers" if dimensions else "none found",
        "batch": "any" if wrapped_model.batch else "one picture at a time",
    }


def _provenance(imported: ImportedModel, chosen_on: str | None) -> bytes:
    """The content of ``provenance.json``; ``checkpoint_chosen_on`` is left out if unknown."""
    content: dict[str, Any] = {}
    if chosen_on is not None:
        content["checkpoint_chosen_on"] = None if chosen_on == NO_SPLIT else chosen_on
    content |= {
        "imported_from": dict(imported.files),
        "facts": dict(imported.facts),
        "agreement": {**asdict(imported.agreement), "made_up_pictures": imported.synthetic},
        "libraries": {name: installed(name) for name in _LIBRARIES},
    }
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _model_card(imported: ImportedModel, classes: ClassTable) -> str:
    files = "\n".join(
        f"- file: `{name}`, sha256 `{digest}`" for name, digest in imported.files.items()
    )
    facts = "\n".join(f"- {name}: {fact}" for name, fact in imported.facts.items())
    return f"""# {imported.name}

A network trained elsewhere that distinguishes {len(classes)} classes. Its answer to a photo is a
set of classes: those whose score reaches a threshold calibrated for a mean set size K.

## Origin

{files}
{facts}

Checked at import: {imported.agreement_text}.
Ask its authors how and on which data it was trained, and for its licence.

## Limits

- The sets hold K classes on average only on photos like those of the calibration.
- A photo of something that belongs to none of the classes still gets a set, unless the server
  rejects it.
- Compare scores only with the threshold calibrated for them; they guarantee nothing about a single
  photo.
"""


def comparison_pictures(
    photos: Sequence[Path], preprocess: Preprocess
) -> tuple[list[str], Pictures]:
    """Decode photos, given as files or folders, as the server does; without any, make up pictures.

    Returns their names, and RGB pixels, uint8, shape ``(pictures, size, size, 3)``. Raises
    `DataError` if a folder holds no photo, or a photo cannot be read.
    """
    if not photos:
        pictures = dict(_synthetic_pictures(preprocess.image_size))
        return list(pictures), np.stack(list(pictures.values()))
    paths = [path for photo_or_folder in photos for path in _photos_of(photo_or_folder)]
    rows = np.linspace(0, len(paths) - 1, min(len(paths), MOST_PHOTOS)).astype(int)
    pixels = []
    for row in rows:
        try:
            pixels.append(load(read_regular(paths[row], most=MAX_BYTES), preprocess))
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

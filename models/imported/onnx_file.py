"""Import an ONNX file of any classifier of single pictures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from florilege.models.imported.comparison_pictures import comparison_pictures
from florilege.models.imported.description import Description
from florilege.models.imported.graph import Graph, read_graph
from florilege.models.imported.imported_model import ImportedModel
from florilege.models.imported.input_format import InputFormat, infer_input_format
from florilege.models.imported.output_choice import OutputChoice, choose_output
from florilege.models.imported.parity import WrappedModel, original_outputs, wrap_and_compare
from florilege.models.onnx_graph import without_origins


def import_onnx(
    path: Path, description: Description, *, classes: int, photos: Sequence[Path]
) -> ImportedModel:
    """Wrap the graph so that it takes raw pictures and returns logits, and compare the two.

    Args:
        path: The ONNX file; its weight files are beside it.
        description: The preprocess file.
        classes: Number of rows of the class table.
        photos: Photos or folders for the comparison; synthetic pictures if empty.

    Raises:
        UsageError: Neither the graph nor the preprocess file determines the input or output, or
            they do not fit.
        BundleError: The file is not a usable ONNX graph, or the wrapped graph differs from it.
        DataError: A photo cannot be read.
    """
    graph = read_graph(path)
    input_format = infer_input_format(graph, description)
    preprocess = input_format.preprocess(description)
    pictures = comparison_pictures(photos, preprocess)
    outputs = original_outputs(graph, input_format, pictures.pixels)
    choice = choose_output(graph, outputs, description, classes=classes)
    original = outputs[choice.output].reshape(len(pictures.names), -1).astype(np.float64)
    wrapped_model = wrap_and_compare(graph, input_format, choice, pictures.pixels, original)
    return ImportedModel(
        name=path.stem,
        model=without_origins(wrapped_model.model),
        preprocess=preprocess,
        files=graph.files,
        facts=_facts(graph, input_format, choice, wrapped_model, description),
        agreement=wrapped_model.comparison,
        pictures=pictures.names,
        synthetic=not photos,
        logits=wrapped_model.logits,
    )


def _facts(
    graph: Graph,
    input_format: InputFormat,
    choice: OutputChoice,
    wrapped_model: WrappedModel,
    description: Description,
) -> dict[str, str]:
    size = f"{input_format.size} x {input_format.size} pixels"
    output = f"`{choice.output}`, {choice.kind}"
    if choice.log:
        output += ", served as logarithms"
    elif choice.logits != choice.output:
        output += f", the {choice.link} of the logits `{choice.logits}`, which are served"
    features = "none found"
    if wrapped_model.dimensions is not None:
        features = f"`{choice.features}`, {wrapped_model.dimensions:,} numbers"
    return {
        "input": f"`{graph.input.name}`, {input_format.type}, {input_format.layout}, "
        f"{input_format.channels}, {size}",
        "normalisation": input_format.normalisation,
        "photos": f"{description.resize}, centre square of {description.crop:.4g} of the short "
        "side",
        "output": output,
        "features": features,
        "batch": "any" if wrapped_model.batch else "one picture at a time",
    }

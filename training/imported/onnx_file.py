"""An ONNX file of any classifier of single pictures, as what a bundle holds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from florilege.models.imported.description import Description
from florilege.models.imported.graph import Graph, read_graph
from florilege.models.imported.input_format import Form, form_of
from florilege.models.imported.output_choice import choose
from florilege.models.imported.parity import Proven, original_outputs, proven
from florilege.models.imported.wrapper import Chosen
from florilege.models.onnx_graph import without_origins
from florilege.training.imported.bundle import Imported
from florilege.training.imported.pictures import samples


def import_onnx(path: Path, said: Description, *, classes: int, photos: Sequence[Path]) -> Imported:
    """Give the graph raw pictures to take and logits to give, and prove that it is the same.

    Args:
        path: The ONNX file; files with its weights lie beside it.
        said: What the preprocess file says.
        classes: Number of rows of the class table.
        photos: Photos or folders to compare it on with the original; made-up pictures if empty.

    Raises:
        UsageError: What the graph does not say and the preprocess file does not either, or what
            does not fit.
        BundleError: No ONNX graph of a classifier, or one that does not agree with the original.
        DataError: A photo that cannot be read.
    """
    graph = read_graph(path)
    form = form_of(graph, said)
    preprocess = form.preprocess(said)
    pictures = samples(photos, preprocess)
    outputs = original_outputs(graph, form, pictures.pixels)
    chosen = choose(graph, outputs, said, classes=classes)
    original = outputs[chosen.output].reshape(len(pictures.names), -1).astype(np.float64)
    made = proven(graph, form, chosen, pictures.pixels, original)
    return Imported(
        name=path.stem,
        model=without_origins(made.model),
        preprocess=preprocess,
        files=graph.files,
        facts=_facts(graph, form, chosen, made, said),
        agreement=made.agreement,
        pictures=pictures.names,
        made_up=not photos,
        logits=made.logits,
    )


def _facts(
    graph: Graph, form: Form, chosen: Chosen, made: Proven, said: Description
) -> dict[str, str]:
    scaled = "pixels as they are"
    if form.type != "uint8":
        scaled = f"pixel x {form.scale:.6g}, minus {_three(form.mean)}, over {_three(form.std)}"
    output = f"`{chosen.output}`, {chosen.kind}"
    if chosen.log:
        output += ", whose logarithms are served"
    elif chosen.logits != chosen.output:
        output += f", the {chosen.link} of the logits `{chosen.logits}`, which are served"
    features = "none found"
    if made.dimensions is not None:
        features = f"`{chosen.features}`, {made.dimensions:,} numbers"
    return {
        "input": f"`{graph.input.name}`, {form.type}, {form.layout}, {form.channels}, "
        f"{form.size} x {form.size} pixels",
        "normalisation": scaled,
        "photos": f"{said.resize}, centre square of {said.crop:.4g} of the short side",
        "output": output,
        "features": features,
        "batch": "any" if made.batch else "one picture at a time",
    }


def _three(numbers: tuple[float, float, float]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)

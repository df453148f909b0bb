"""Import a checkpoint of a torchvision or timm network."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from florilege.errors import BundleError, UsageError
from florilege.models.backbones import Network, build, own_preprocess
from florilege.models.backbones.weights import PRETRAINED, Weights, open_weights, warm_start
from florilege.models.export import export_onnx
from florilege.models.images import Preprocess
from florilege.models.imported.imported_model import ImportedModel
from florilege.models.imported.input_format import Description, InputFormat, format_numbers
from florilege.models.imported.parity import TOLERANCE, compare_outputs, comparison_pictures
from florilege.models.session import INPUT, open_graph

_FIXED_KEYS = ("layout", "type", "channels", "output", "kind")  # the same for all these networks


def import_checkpoint(
    name: str,
    weights: str | None,
    description: Description,
    *,
    classes: int,
    photos: Sequence[Path],
) -> ImportedModel:
    """Build the network, load the checkpoint, and export it like our own networks.

    Args:
        name: A network, as for ``--backbone``.
        weights: Weights, as for ``--weights``; None downloads the network's own. No code in a
            file is run.
        description: Size, resize, crop, scale, mean and std, if they differ from the network's.
        classes: Number of rows of the class table, which the last layer must have too.
        photos: As for :func:`florilege.models.imported.imported_model.import_onnx`.

    Raises:
        UsageError: There is no such network, it does not take the size, or the preprocess file has
            keys that the network determines.
        BundleError: The weights do not fit, or the exported graph differs from torch.
        DataError: A photo cannot be read.
    """
    if fixed := [key for key in _FIXED_KEYS if key in description.model_fields_set]:
        raise UsageError(f"a checkpoint determines these keys, leave them out: {', '.join(fixed)}")
    weights = weights or PRETRAINED
    try:
        preprocess = _preprocess(own_preprocess(name, weights), description)
        network = build(name, classes, "linear", image_size=preprocess.image_size)
    except ValueError as error:
        raise UsageError(str(error)) from error
    source = open_weights(weights, name)
    _load_weights(network, source, classes)
    names, pixels = comparison_pictures(photos, preprocess)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        mean, std = preprocess.mean, preprocess.std
        export_onnx(network, image_size=preprocess.image_size, mean=mean, std=std, path=path)
        model = path.read_bytes()
    original = _torch_logits(network, preprocess, pixels)
    graph = open_graph(model, threads=1)
    outputs = [graph.run(["logits"], {INPUT: row[np.newaxis]})[0] for row in pixels]
    logits = np.concatenate(outputs).astype(np.float64)
    comparison = compare_outputs(original, logits, relative=TOLERANCE)
    if not comparison.holds:
        raise BundleError(
            f"the exported graph differs from torch by {comparison.max_difference:.3g} on these "
            f"pictures (allowed {comparison.tolerance:.3g}); nothing was written"
        )
    provenance = source.provenance
    return ImportedModel(
        name=name.rpartition(":")[2].replace("/", "-"),
        model=model,
        preprocess=preprocess,
        files={} if provenance is None else {provenance.file: provenance.sha256 or "unknown"},
        facts=_facts(name, network, source, preprocess),
        agreement=comparison,
        pictures=names,
        synthetic=not photos,
        logits=logits,
    )


def _preprocess(own: Preprocess, description: Description) -> Preprocess:
    """The network's own preprocessing with the changes of the preprocess file."""
    per_unit = 255 * (description.scale or 1 / 255)  # ours is for pixels from 0 to 1
    mean, std = (
        tuple(number / per_unit for number in numbers) if numbers else default
        for numbers, default in ((description.mean, own.mean), (description.std, own.std))
    )
    explicit = description.model_fields_set
    return replace(
        own,
        image_size=description.size or own.image_size,
        resample=description.resize if "resize" in explicit else own.resample,
        crop_fraction=description.crop if "crop" in explicit else own.crop_fraction,
        mean=(mean[0], mean[1], mean[2]),
        std=(std[0], std[1], std[2]),
    )


def _load_weights(network: Network, source: Weights, classes: int) -> None:
    """Load all weights, the rows of the last layer in order."""
    before = {key: value.clone() for key, value in network.head.state_dict().items()}
    warm_start(network, replace(source, classes=None))
    after = network.head.state_dict()
    if any(torch.equal(before[key], after[key]) for key in before):
        raise BundleError(
            f"the last layer of {source.origin} is of another kind, or does not have {classes:,} "
            "rows, one for each class of classes.csv in its order"
        )


@torch.no_grad()
def _torch_logits(
    network: Network, preprocess: Preprocess, pixels: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float64]:
    """Torch's logits, one picture at a time, normalised in plain NumPy."""
    input_format = InputFormat(
        layout="nchw",
        type="float32",
        channels="rgb",
        size=preprocess.image_size,
        scale=1 / 255,
        mean=preprocess.mean,
        std=preprocess.std,
    )
    batches = (input_format.prepare(row[np.newaxis]) for row in pixels)
    return torch.cat([network(torch.from_numpy(batch)) for batch in batches]).double().numpy()


def _facts(name: str, network: Network, source: Weights, preprocess: Preprocess) -> dict[str, str]:
    side, provenance = preprocess.image_size, source.provenance
    mean, std = format_numbers(preprocess.mean), format_numbers(preprocess.std)
    return {
        "network": f"`{name}`, {sum(each.numel() for each in network.parameters()):,} weights",
        "licence": (provenance and provenance.licence) or "unknown",
        "input": f"{side} x {side} pixels",
        "normalisation": f"values from 0 to 1, minus {mean}, over {std}",
        "photos": f"{preprocess.resample}, centre square of {preprocess.crop_fraction:.4g} of the "
        "short side",
    }

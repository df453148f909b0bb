"""Import a checkpoint of a torchvision or timm network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from florilege.errors import BundleError, UsageError
from florilege.models.backbones import (
    PRETRAINED,
    Network,
    Weights,
    architecture,
    build,
    open_weights,
    warm_start,
)
from florilege.models.backbones.timm_networks import PREFIX, TimmNetwork
from florilege.models.classes import SPECIES_NAME, ClassInfo, ClassTable
from florilege.models.export import export_onnx
from florilege.models.images import Preprocess
from florilege.models.imported import ImportedModel, comparison_pictures
from florilege.models.imported.signature import Description, InputFormat
from florilege.models.imported.wrapper import TOLERANCE, Numbers, OutputComparison, Pictures
from florilege.models.runtime import INPUT, open_graph

_FIXED_KEYS = ("layout", "type", "channels", "output", "kind")  # the same for all these networks


def own_classes(name: str) -> ClassTable:
    """The classes that the ``config.json`` of a timm folder or repository names, in output order.

    Its ``label_names`` become class ids. Its ``label_descriptions`` become common names of species,
    or the names of other labels.

    Raises:
        UsageError: It does not name its classes, or ``name`` is not a network of timm.
        BundleError: A repository cannot be read, or two classes have the same name.
    """
    try:
        own = TimmNetwork(name).configuration if name.startswith(PREFIX) else {}
    except ValueError as error:
        raise UsageError(str(error)) from error
    labels, descriptions = own.get("label_names"), own.get("label_descriptions") or {}
    if not labels:
        raise UsageError(f"{name} does not name its classes: add --classes, row i for output i")
    if not isinstance(labels, Mapping):  # a mapping may have gaps
        labels = {str(row): label for row, label in enumerate(labels)}
    rows = range(own.get("num_classes") or len(labels))
    names = [str(labels.get(str(row), row)) for row in rows]
    return ClassTable(tuple(_labelled_class(name, descriptions.get(name)) for name in names))


def _labelled_class(label: str, description: str | None) -> ClassInfo:
    """The class of a network's label: a species with its common name, or a code with its name.

    Example:
        >>> _labelled_class("Bellis perennis", "daisy").common_names
        {'en': ('daisy',)}
        >>> _labelled_class("n12620546", "hip, rose hip").scientific_name
        'hip, rose hip'
    """
    if description and SPECIES_NAME.match(label):
        return ClassInfo(id=label, common_names={"en": (description,)})
    return ClassInfo(id=label, scientific_name=description or label)


def import_checkpoint(
    name: str,
    weights: str | None,
    description: Description,
    *,
    classes: int,
    photos: Sequence[Path],
) -> ImportedModel:
    """Build the network, load the checkpoint, and export it like our own networks.

    ``name`` and ``weights`` are those of ``--backbone`` and ``--weights``; None downloads the
    network's own. ``description`` changes the preprocessing of the network. ``classes`` and
    ``photos`` are those of `import_onnx`.

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
        input_format = _input_format(architecture(name).preprocess(weights), description)
        network = build(name, classes, "linear", image_size=input_format.size)
    except ValueError as error:
        raise UsageError(str(error)) from error
    source = open_weights(weights, name)
    _load_weights(network, source, classes)
    preprocess = input_format.preprocess
    names, pixels = comparison_pictures(photos, preprocess)
    model, _ = export_onnx(network, preprocess)
    logits, comparison = _compared(network, model, input_format, pixels)
    provenance = source.provenance
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return ImportedModel(
        name=_model_name(name),
        model=model,
        preprocess=preprocess,
        files={provenance.file: provenance.sha256} if provenance else {},
        facts={
            "network": f"`{name}`, {parameters:,} weights",
            "licence": (provenance and provenance.licence) or "unknown",
            "input": f"{input_format.size} x {input_format.size} pixels",
            **input_format.facts,
        },
        agreement=comparison,
        pictures=names,
        synthetic=not photos,
        logits=logits,
    )


@torch.no_grad()
def _compared(
    network: Network, model: bytes, input_format: InputFormat, pixels: Pictures
) -> tuple[Numbers, OutputComparison]:
    """The logits of the exported graph, one picture at a time, compared with torch's."""
    batches = (input_format.prepare(row[np.newaxis]) for row in pixels)
    original = torch.cat([network(torch.from_numpy(batch)) for batch in batches])
    graph = open_graph(model)
    outputs = [graph.run(["logits"], {INPUT: row[np.newaxis]})[0] for row in pixels]
    logits = np.concatenate(outputs).astype(np.float64)
    comparison = OutputComparison.of(original.double().numpy(), logits, relative=TOLERANCE)
    if not comparison.holds:
        raise BundleError(
            f"the exported graph differs from torch by {comparison.max_difference:.3g} on these "
            f"pictures (allowed {comparison.tolerance:.3g}); nothing was written"
        )
    return logits, comparison


def _input_format(own: Preprocess, description: Description) -> InputFormat:
    """The network's own preprocessing with the changes of the preprocess file."""
    scale = description.scale or 1 / 255
    unit = 255 * scale  # ours is for pixels from 0 to 1
    values = {
        "layout": "nchw",
        "type": "float32",
        "size": own.image_size,
        "resize": own.resample,
        "crop": own.crop_fraction,
        "scale": scale,
        "mean": tuple(number * unit for number in own.mean),
        "std": tuple(number * unit for number in own.std),
    }
    changes = description.model_dump(exclude_unset=True, exclude_none=True)
    return InputFormat.model_validate(values | changes)


def _model_name(name: str) -> str:
    """``NAME``, ``ORG-MODEL`` of a repository, or the name of a folder."""
    folder = TimmNetwork(name).folder
    return folder.resolve().name if folder else name.rpartition(":")[2].replace("/", "-")


def _load_weights(network: Network, source: Weights, classes: int) -> None:
    """Load all weights, the rows of the last layer in order."""
    before = {key: value.clone() for key, value in network.head.state_dict().items()}
    warm_start(network, replace(source, classes=None))
    after = network.head.state_dict()
    # They were drawn at random: what is as before was not loaded.
    if any(torch.equal(before[key], after[key]) for key in before):
        raise BundleError(
            f"the last layer of {source.origin} is of another kind, or does not have {classes:,} "
            "rows, one for each class in order"
        )

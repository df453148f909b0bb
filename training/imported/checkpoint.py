"""A checkpoint of a network of torchvision or timm, as what a bundle holds."""

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
from florilege.models.imported.description import Description
from florilege.models.imported.input_format import Form
from florilege.models.imported.parity import TOLERANCE, agreement
from florilege.models.session import INPUT, open_graph
from florilege.training.imported.bundle import Imported
from florilege.training.imported.pictures import samples

_KNOWN = ("layout", "type", "channels", "output", "kind")  # of every network of these libraries


def import_checkpoint(
    name: str, weights: str | None, said: Description, *, classes: int, photos: Sequence[Path]
) -> Imported:
    """Build the network, fill it with the checkpoint, and export it like our own.

    Args:
        name: What ``--backbone`` takes.
        weights: What ``--weights`` takes; the network's own, downloaded, if None. Nothing in a
            file is run.
        said: Size, resize, crop, scale, mean and std, where they are not those of the network.
        classes: Number of rows of the class table, which the last layer has too.
        photos: As for :func:`florilege.training.imported.onnx_file.import_onnx`.

    Raises:
        UsageError: There is no such network, it does not take the size, or the preprocess file says
            what the network itself determines.
        BundleError: The weights do not fit, or the exported graph differs from torch.
        DataError: A photo that cannot be read.
    """
    if useless := [key for key in _KNOWN if key in said.model_fields_set]:
        raise UsageError(f"of a checkpoint these are known, leave them out: {', '.join(useless)}")
    weights = weights or PRETRAINED
    try:
        preprocess = _preprocess(own_preprocess(name, weights), said)
        network = build(name, classes, "linear", image_size=preprocess.image_size)
    except ValueError as error:
        raise UsageError(str(error)) from error
    source = open_weights(weights, name)
    _fill(network, source, classes)
    pictures = samples(photos, preprocess)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        mean, std = preprocess.mean, preprocess.std
        export_onnx(network, image_size=preprocess.image_size, mean=mean, std=std, path=path)
        model = path.read_bytes()
    original = _original(network, preprocess, pictures.pixels)
    graph = open_graph(model, threads=1)
    ours = [graph.run(["logits"], {INPUT: row[np.newaxis]})[0] for row in pictures.pixels]
    logits = np.concatenate(ours).astype(np.float64)
    compared = agreement(original, logits, relative=TOLERANCE)
    if not compared.holds:
        raise BundleError(
            f"the exported graph differs from torch by {compared.max_difference:.3g} on these "
            f"pictures (allowed {compared.tolerance:.3g}); nothing was written"
        )
    return Imported(
        name=name.rpartition(":")[2].replace("/", "-"),
        model=model,
        preprocess=preprocess,
        files=_files(source),
        facts=_facts(name, network, source, preprocess),
        agreement=compared,
        pictures=pictures.names,
        made_up=not photos,
        logits=logits,
    )


def _preprocess(own: Preprocess, said: Description) -> Preprocess:
    """The network's own, but for what is said."""
    per_unit = 255 * (said.scale or 1 / 255)  # ours are for values from 0 to 1
    mean = tuple(number / per_unit for number in said.mean) if said.mean else own.mean
    std = tuple(number / per_unit for number in said.std) if said.std else own.std
    given = said.model_fields_set
    return replace(
        own,
        image_size=said.size or own.image_size,
        resample=said.resize if "resize" in given else own.resample,
        crop_fraction=said.crop if "crop" in given else own.crop_fraction,
        mean=(mean[0], mean[1], mean[2]),
        std=(std[0], std[1], std[2]),
    )


def _fill(network: Network, source: Weights, classes: int) -> None:
    """Take all weights, the rows of the last layer in their order."""
    before = {key: value.clone() for key, value in network.head.state_dict().items()}
    warm_start(network, replace(source, classes=None))
    after = network.head.state_dict()
    if any(torch.equal(before[key], after[key]) for key in before):
        raise BundleError(
            f"the last layer of {source.origin} does not have {classes:,} rows, one for each class "
            "of classes.csv and in its order, or is of another kind"
        )


@torch.no_grad()
def _original(
    network: Network, preprocess: Preprocess, pixels: npt.NDArray[np.uint8]
) -> npt.NDArray[np.float64]:
    """What torch says, pictures normalised in plain NumPy."""
    form = Form(
        layout="nchw",
        type="float32",
        channels="rgb",
        size=preprocess.image_size,
        scale=1 / 255,
        mean=preprocess.mean,
        std=preprocess.std,
    )
    rows = (network(torch.from_numpy(form.prepared(row[np.newaxis]))) for row in pixels)
    return torch.cat(list(rows)).double().numpy()


def _files(source: Weights) -> dict[str, str]:
    known = source.provenance
    return {} if known is None else {known.file: known.sha256 or "unknown"}


def _facts(name: str, network: Network, source: Weights, wanted: Preprocess) -> dict[str, str]:
    known = source.provenance
    return {
        "network": f"`{name}`, {sum(each.numel() for each in network.parameters()):,} weights",
        "licence": (known and known.licence) or "unknown",
        "input": f"{wanted.image_size} x {wanted.image_size} pixels",
        "normalisation": f"values from 0 to 1, minus {_three(wanted.mean)}, over "
        f"{_three(wanted.std)}",
        "photos": f"{wanted.resample}, centre square of {wanted.crop_fraction:.4g} of the short "
        "side",
    }


def _three(numbers: tuple[float, float, float]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)

"""Export a trained network to one ONNX file that takes raw pictures, and check it against torch.

The graph holds everything between the resized picture and the logits:
``image`` uint8 ``(batch, height, width, 3)`` -> cast -> normalise -> network -> logits.
Its last output, ``features``, is the input of the head and serves out-of-distribution detection.
"""

import gc
import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from florilege.errors import BundleError
from florilege.models.backbones import Network, PictureNetwork
from florilege.models.heads import exact_float32, output_names
from florilege.models.images import Preprocess
from florilege.models.runtime import FEATURES, without_origins

_OPSET: Final = 20
_PARITY_BATCHES: Final = (1, 2, 5)
ABSOLUTE_TOLERANCE: Final = 1e-4
RELATIVE_TOLERANCE: Final = 5e-4
"""Rounding leaves 1e-6 of the largest logit, 3.5e-4 in an ill-conditioned network (a
`regnet_y_400mf` whose batch norms had met few pictures). TF32 would leave 4e-4 in any."""


@dataclass(frozen=True, kw_only=True)
class _Parity:
    """Differences between torch and ONNX Runtime on the same pictures, over all outputs.

    The tolerance is ``1e-4 + 5e-4 max_logit``.
    """

    max_difference: float  # largest absolute difference between logits
    max_logit: float  # torch's largest absolute logit
    tolerance: float  # largest difference allowed
    max_feature_difference: float
    feature_tolerance: float  # like ``tolerance``, from the largest feature
    pictures: int  # number compared: random and extreme ones, in batches of 1, 2 and 5

    @property
    def holds(self) -> bool:
        """Whether every difference is within its tolerance; an infinite one never is."""
        features_hold = self.max_feature_difference <= self.feature_tolerance
        return features_hold and self.max_difference <= self.tolerance


class _ExportedNetwork(PictureNetwork):
    """The exported module: the logits of every head, then the input features of the head."""

    network: Network

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]  # one more
        """Logits, then the features, ``(batch, dimensions)``."""
        features = self.network.backbone(self.normalise(image))
        outputs = self.network.head(features)
        return (*(outputs if isinstance(outputs, tuple) else (outputs,)), features)


def export_onnx(network: Network, preprocess: Preprocess) -> tuple[bytes, dict[str, float | int]]:
    """Export ``network`` for the pictures of ``preprocess`` and check it against torch.

    Leaves the network in evaluation mode on the CPU.

    Returns:
        The content of the ONNX file, and the fields of :class:`_Parity`.

    Raises `BundleError` if they differ by more than the tolerance.
    """
    pictures = _ExportedNetwork(network, preprocess.mean, preprocess.std).cpu().eval()
    content = without_origins(_export(pictures, network.head_name, preprocess.image_size))
    onnx.checker.check_model(content, full_check=True)
    parity = _compare(pictures, content, image_size=preprocess.image_size)
    if not parity.holds:
        raise BundleError(
            f"the exported graph differs from torch by {parity.max_difference:.3g} (allowed "
            f"{parity.tolerance:.3g}), its features by {parity.max_feature_difference:.3g} "
            f"({parity.feature_tolerance:.3g}); nothing was written. An undertrained network "
            "amplifies rounding errors: train it longer, or at a larger --image-size"
        )
    return content, asdict(parity)


def _export(pictures: _ExportedNetwork, head: str, image_size: int) -> onnx.ModelProto:
    # Two: torch.export writes a size of one into the graph as a constant.
    example = torch.zeros(2, image_size, image_size, 3, dtype=torch.uint8)
    with _without_warnings(), torch.no_grad():
        # Some networks cache tensors on their first picture, which must not become a part of the
        # graph.
        pictures(example)
        try:
            program = torch.onnx.export(
                pictures,
                (example,),
                input_names=["image"],
                output_names=[*output_names(head).values(), FEATURES],
                dynamic_shapes={"image": {0: torch.export.Dim("batch", min=1)}},
                opset_version=_OPSET,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = " ".join(str(error.__cause__ or error).split())[:200]
            raise BundleError(
                f"the network cannot be exported to ONNX: {reason}; its forward must not depend on "
                "the values of a picture, as with `if`, and may use what ONNX has"
            ) from error
    assert program is not None
    return _keep_padding(program.model_proto)


def _keep_padding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Stop ONNX Runtime from replacing the zeros of a ``Pad`` before a ``MaxPool``.

    It fuses the two (microsoft/onnxruntime, pull request 18136) and pads with minus infinity
    instead. A ``Max`` with the smallest number, which changes nothing, prevents the fusion.
    """
    padded = {node.output[0] for node in model.graph.node if node.op_type == "Pad"}
    pools = [
        (row, node)
        for row, node in enumerate(model.graph.node)
        if node.op_type == "MaxPool" and node.input[0] in padded
    ]
    # From the end, so that the rows of the others stay.
    for row, pool in reversed(pools):
        name = f"{pool.input[0]}_kept"
        separator = onnx.helper.make_node("Max", [pool.input[0], "smallest"], [name])
        pool.input[0] = name
        model.graph.node.insert(row, separator)
    if pools:
        smallest = np.array(np.finfo(np.float32).min)
        model.graph.initializer.append(onnx.numpy_helper.from_array(smallest, "smallest"))
    return model


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the exporter, whose warnings no user can act on, and disable garbage collection.

    With torch 2.11 it also prints "Applied 10 of general pattern rewrite rules" to stdout, where
    ``--json`` prints one object.

    The exporter's objects live until it ends; trying to collect them takes a tenth of its time.
    """
    logger = logging.getLogger("torch.onnx")
    level, collects = logger.level, gc.isenabled()
    logger.setLevel(logging.ERROR)
    gc.disable()
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)
        if collects:
            gc.enable()


@torch.no_grad()
def _compare(pictures: _ExportedNetwork, content: bytes, *, image_size: int) -> _Parity:
    """Run the ONNX file ``content`` and torch on the same pictures, in batches of 1, 2 and 5."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    batches = [_hard_pictures(count, image_size) for count in _PARITY_BATCHES]
    with exact_float32():
        outputs = [pictures(torch.from_numpy(batch)) for batch in batches]
    float32 = _joined([[output.numpy() for output in batch] for batch in outputs])
    return _parity(float32, _joined([session.run(None, {"image": batch}) for batch in batches]))


def _joined(batches: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Each output for all pictures, from the outputs of each batch."""
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)]


def _parity(reference: list[np.ndarray], outputs: list[np.ndarray]) -> _Parity:
    """Compare outputs, of which the last are the features."""
    with np.errstate(invalid="ignore"):  # infinite - infinite
        pairs = zip(reference, outputs, strict=True)
        differences = [float(np.abs(expected - output).max()) for expected, output in pairs]
    differences = [
        difference if math.isfinite(difference) else math.inf for difference in differences
    ]
    largest = [float(np.abs(expected).max()) for expected in reference]
    max_logit = max(largest[:-1])
    return _Parity(
        max_difference=max(differences[:-1]),
        max_logit=max_logit,
        tolerance=ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * max_logit,
        max_feature_difference=differences[-1],
        feature_tolerance=ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * largest[-1],
        pictures=len(reference[0]),
    )


def _hard_pictures(count: int, image_size: int) -> np.ndarray:
    """Random pictures; if there is room, one is black, one white, one black-and-white noise."""
    shape = (image_size, image_size, 3)
    random = np.random.default_rng(count)
    batch = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    # Slices, which are empty where the batch is shorter.
    batch[1:2] = 0
    batch[2:3] = 255
    batch[3:4] = random.integers(0, 2, shape, dtype=np.uint8) * 255
    return batch

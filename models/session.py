"""Running a bundle's network with ONNX Runtime."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from models.bundle import MODEL, Bundle
from models.errors import BundleError
from models.runtime import CUDA, import_runtime, missing_cuda_note, wanted_providers

INPUT: Final = "image"


class Session:
    """The network of a bundle, ready to run; any number of threads may call it at once.

    One thread inside a call and no spinning: the caller's own pool of threads keeps the cores
    busy, and a spinning thread would take them from decoding.

    Attributes:
        provider: Execution provider in use, checked after loading.
        heads: ONNX output name by head name.
        note: Why ``auto`` did not take the GPU although its wheel is installed, or None.

    Args:
        bundle: An opened bundle.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Threads inside one call.

    Raises:
        ValueError: An unknown device, or ``threads`` below 1.
        UsageError: ONNX Runtime is missing or installed twice, or ``cuda`` is not usable.
        BundleError: The graph is damaged or does not fit the bundle.
    """

    def __init__(self, bundle: Bundle, *, device: str = "auto", threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        runtime = import_runtime()
        providers = wanted_providers(runtime, device)
        self._run = _load(runtime, bundle, providers, threads)
        self.provider: str = self._run.get_providers()[0]
        self.note = missing_cuda_note(device, self.provider) if CUDA in providers else None
        self.heads: Mapping[str, str] = bundle.heads
        self._classes = len(bundle.classes)
        self._side = bundle.preprocess.image_size
        _check_graph(self._run, bundle)

    def logits(self, images: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.float32]]:
        """Run the network.

        Args:
            images: uint8, shape ``(batch, image_size, image_size, 3)``, at least one.

        Returns:
            By head name, float32 logits of shape ``(batch, classes)``.

        Raises:
            ValueError: Another dtype or shape, or no image.
            BundleError: The network gives infinite or undefined numbers.
        """
        expected = (self._side, self._side, 3)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != expected:
            raise ValueError(
                f"images must be uint8 of shape (batch, {', '.join(map(str, expected))}),"
                f" got {images.dtype} {images.shape}"
            )
        if not len(images):
            raise ValueError("images must hold at least one image, got none")
        outputs = self._run.run(list(self.heads.values()), {INPUT: np.ascontiguousarray(images)})
        for head, values in zip(self.heads, outputs, strict=True):
            self._check_logits(head, values, len(images))
        return dict(zip(self.heads, outputs, strict=True))

    def _check_logits(self, head: str, values: npt.NDArray[np.float32], batch: int) -> None:
        if values.shape != (batch, self._classes):
            raise BundleError(
                f"{MODEL}: head {head} gives shape {values.shape}, not the {self._classes}"
                " classes of classes.json: export the model again"
            )
        if not np.isfinite(values).all():
            raise BundleError(
                f"{MODEL}: head {head} gives NaN or infinite logits: the network did not train"
                " well or is damaged; train and export it again"
            )


def _load(runtime: ModuleType, bundle: Bundle, providers: list[str], threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    content = bundle.read(MODEL)  # the very bytes that were verified
    try:
        return runtime.InferenceSession(content, options, providers=providers)
    except Exception as error:  # each kind of damage raises another class of the runtime's own
        raise BundleError(
            f"{bundle.path / MODEL} cannot be loaded ({error}): export the model again"
        ) from error


def _check_graph(run: Any, bundle: Bundle) -> None:
    """Refuse a graph whose input or outputs are not those the bundle promises."""
    side, classes = bundle.preprocess.image_size, len(bundle.classes)
    inputs = [(node.name, node.type, list(node.shape[1:])) for node in run.get_inputs()]
    if inputs != [(INPUT, "tensor(uint8)", [side, side, 3])]:
        raise BundleError(
            f"{MODEL} must take `{INPUT}`, uint8 (batch, {side}, {side}, 3) as preprocess.json"
            f" says, but takes {inputs}: export the model again"
        )
    shapes = {node.name: node.shape for node in run.get_outputs()}
    for head, output in bundle.heads.items():
        if output not in shapes:
            raise BundleError(f"{MODEL} has no output {output} for head {head}: export it again")
        if isinstance(shapes[output][-1], int) and shapes[output][-1] != classes:
            raise BundleError(
                f"{MODEL} gives {shapes[output][-1]} classes for head {head}, classes.json has"
                f" {classes}: export the model again"
            )

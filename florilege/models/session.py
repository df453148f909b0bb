"""Run the network of a bundle."""

import ctypes
import re
import sys
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from time import perf_counter
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from florilege.errors import BundleError, UsageError, install_hint
from florilege.models.bundle import MODEL, Bundle
from florilege.models.images import MAX_PIXELS, Header, load
from florilege.models.runtime import (
    CPU,
    CUDA,
    DEVICES,
    INPUT,
    OPENVINO,
    Runtime,
    import_runtime,
    open_graph,
    open_in_openvino,
)
from florilege.models.runtime import FEATURES as FEATURES

BATCH: Final = 32  # pictures, of a GPU
_CHECKED: Final = 4  # pictures of the first batch that are also run one by one
_LAST_DIGITS: Final = 1e-5  # of the largest logit
_NO_MEMORY: Final = re.compile("out of memory|ALLOC_FAILED|Failed to allocate memory|bad alloc")

Floats = npt.NDArray[np.float32]


class Outputs(NamedTuple):
    """The outputs of the network for a batch of pictures."""

    logits: dict[str, Floats]  # by head name, (batch, classes)
    features: Floats | None  # (batch, dimensions); None if not requested

    @classmethod
    def joined(cls, batches: Collection["Outputs"]) -> "Outputs":
        """The outputs of at least one batch, as those of a single one."""
        first = next(iter(batches))
        # Not even joined: NumPy gives the interpreter's lock away meanwhile, and to get it back
        # takes long.
        if len(batches) == 1:
            return first
        names = first.logits
        logits = {name: np.concatenate([batch.logits[name] for batch in batches]) for name in names}
        features = [batch.features for batch in batches if batch.features is not None]
        return cls(logits, np.concatenate(features) if features else None)


class Session:
    """The network of a bundle, ready to run; any number of threads may call it at once.

    Its own threads do not spin while idle, because the caller's threads keep the cores busy.

    Args:
        bundle: The bundle to run.
        device: ``auto``, ``cpu`` or ``cuda``.
        runtime: Runtime and precision. OpenVINO runs only on the CPU.

    Raises:
        UsageError: The device is unknown, the runtime is missing or installed twice, this processor
            does not support the precision, ``cuda`` is not usable, or there is no memory for the
            network.
        BundleError: The graph is damaged or does not fit the bundle.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "auto",
        runtime: Runtime = Runtime(),  # noqa: B008  # immutable
    ) -> None:
        self.bundle, self.runtime = bundle, runtime
        self._graph = _load(bundle, runtime, device)
        self.provider: str = self._graph.get_providers()[0]  # the one in use
        self.concurrency = runtime.concurrency
        self._batch: int | None = None  # pictures, on a GPU, once that is checked
        if device == "cuda":
            _demand_cuda(self.provider)
        self.heads: Mapping[str, str] = bundle.heads  # ONNX output name by head name
        self.widths = _widths(self._graph, bundle)  # of the logits and features, by ONNX output
        self.dimensions = self.widths.get(FEATURES)  # of the features; None if there are none

    def infer(
        self, photo: Header | Image, *, max_pixels: int = MAX_PIXELS, features: bool = False
    ) -> tuple[Outputs, float]:
        """Decode a photo and run the network on it.

        Arguments and errors are those of `florilege.models.images.load` and :meth:`outputs`.

        Returns:
            The outputs, and the seconds that the network took without decoding.
        """
        pixels = load(photo, self.bundle.preprocess, max_pixels=max_pixels)
        started = perf_counter()
        outputs = self.outputs(pixels[np.newaxis], features=features)
        return outputs, perf_counter() - started

    def each(
        self, pictures: Sequence[npt.NDArray[np.uint8]], *, features: bool = False
    ) -> Iterator[Outputs]:
        """:meth:`outputs` of each picture, ``(image_size, image_size, 3)``.

        On a GPU in batches, all of one size: what else is in a batch then changes nothing. One by
        one if the logits of batches differ from those of single pictures in more than last digits.
        """
        if self.provider == CUDA and pictures and self._batch is None:
            self._batch = BATCH if self._batches_agree(pictures) else 1
        size = self._batch or 1
        for first in range(0, len(pictures), size):
            yield from self._rows(pictures[first : first + size], size, features)

    def _rows(
        self, pictures: Sequence[npt.NDArray[np.uint8]], size: int, features: bool
    ) -> Iterator[Outputs]:
        """The outputs of each of some pictures, which others fill up to a batch."""
        batch = [*pictures, *[pictures[0]] * (size - len(pictures))]
        outputs = self.outputs(np.stack(batch), features=features)
        for row in range(len(pictures)):
            own = slice(row, row + 1)
            logits = {head: values[own] for head, values in outputs.logits.items()}
            yield Outputs(logits, None if outputs.features is None else outputs.features[own])

    def _batches_agree(self, pictures: Sequence[npt.NDArray[np.uint8]]) -> bool:
        some = pictures[:_CHECKED]
        singles = [next(self._rows([picture], 1, False)).logits for picture in some]
        batch = [outputs.logits for outputs in self._rows(some, BATCH, False)]
        return all(
            np.abs(one[head] - many[head]).max() <= _LAST_DIGITS * np.abs(one[head]).max()
            for one, many in zip(singles, batch, strict=True)
            for head in one
        )

    def logits(self, images: npt.NDArray[np.uint8]) -> dict[str, Floats]:
        """Only the logits of :meth:`outputs`."""
        return self.outputs(images).logits

    def outputs(self, images: npt.NDArray[np.uint8], *, features: bool = False) -> Outputs:
        """Run the network. Requesting features changes no bit of the logits.

        Args:
            images: uint8, shape ``(batch, image_size, image_size, 3)``, at least one.
            features: Whether to return features too.

        Raises:
            ValueError: The dtype or shape is wrong, or there are no images or no features.
            BundleError: The network fails, or returns NaN or infinite numbers.
        """
        side = self.bundle.preprocess.image_size
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (side, side, 3):
            raise ValueError(
                f"images must be uint8 of shape (batch, {side}, {side}, 3),"
                f" got {images.dtype} {images.shape}"
            )
        if not len(images):
            raise ValueError("images must hold at least one image, got none")
        if features and self.dimensions is None:
            raise ValueError("features must be False: this graph has none")
        names = [*self.heads.values(), *([FEATURES] if features else [])]
        try:
            values = self._graph.run(names, {INPUT: np.ascontiguousarray(images)})
        except Exception as error:  # the runtime raises a different class for each cause
            raise BundleError(
                f"{MODEL} cannot be run ({' '.join(str(error).split())}): export the model again, "
                "or free some memory"
            ) from error
        outputs = dict(zip(names, values, strict=True))
        return self.check_outputs(outputs, len(images), features=features)

    def check_outputs(self, arrays: Mapping[str, Floats], rows: int, *, features: bool) -> Outputs:
        """Check the graph's outputs, given by name, and return them by head.

        Raises `BundleError` if they contain NaN or infinite numbers, or have the wrong shape.
        """
        names = [*self.heads.values(), *([FEATURES] if features else [])]
        for name in names:
            values, shape = arrays[name], (rows, self.widths[name])
            if values.shape != shape:
                raise BundleError(
                    f"{MODEL}: {name} has shape {values.shape}, not {shape}: export the model again"
                )
            if not np.isfinite(values).all():
                raise BundleError(
                    f"{MODEL}: {name} contains NaN or infinite numbers: the network did not train"
                    " well or is damaged; train and export it again"
                )
        logits = {head: arrays[output] for head, output in self.heads.items()}
        return Outputs(logits, arrays[FEATURES] if features else None)


class FixedBatch:
    """Runs up to ``size`` pictures at once in fixed buffers, always from the same thread.

    So a GPU can replay a CUDA graph: it launches all kernels at once, but only with the addresses
    and shapes of its capture. For small batches, launching them one by one takes longer than
    computing them. ``graph`` is the network of ``session``, opened for this object only.
    """

    def __init__(self, session: Session, graph: Any, size: int) -> None:
        runtime, side = import_runtime(), session.bundle.preprocess.image_size
        device = "cuda" if graph.get_providers()[0] == CUDA else "cpu"
        self.size = size
        self._graph, self._binding = graph, graph.io_binding()
        self._pixels = np.zeros((size, side, side, 3), np.uint8)
        if device == "cuda":
            _lock_pages(self._pixels, runtime.cuda_version)
        new = runtime.OrtValue.ortvalue_from_shape_and_type
        self._input = new(self._pixels.shape, np.uint8, device)
        self._binding.bind_ortvalue_input(INPUT, self._input)
        self._outputs = {
            name: new((size, width), np.float32, device) for name, width in session.widths.items()
        }
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        self._options = runtime.RunOptions()
        # One captured graph for each size: each has shapes and addresses of its own.
        self._options.add_run_config_entry("gpu_graph_id", str(size))

    def run(self, pictures: Sequence[npt.NDArray[np.uint8]]) -> dict[str, Floats]:
        """All outputs by name, (pictures, width), with features if the graph has them.

        ``pictures`` are one to ``size``, each uint8 ``(image_size, image_size, 3)``.
        """
        for row, picture in enumerate(pictures):
            self._pixels[row] = picture
        self._input.update_inplace(self._pixels)
        self._graph.run_with_iobinding(self._binding, self._options)
        return {
            name: value.numpy()[: len(pictures)].copy() for name, value in self._outputs.items()
        }


def _load(bundle: Bundle, runtime: Runtime, device: str) -> Any:
    content = bundle.read(MODEL)  # exactly the bytes that were verified
    bf16 = runtime.precision == "bf16"
    if runtime.name == OPENVINO and device == "cuda":
        raise UsageError("device cuda needs ONNX Runtime: add --runtime onnxruntime")
    providers = [] if runtime.name == OPENVINO else _wanted_providers(import_runtime(), device)
    try:
        if runtime.name == OPENVINO:
            return open_in_openvino(content, bundle.preprocess.image_size, bf16=bf16)
        return open_graph(
            content,
            providers=providers,
            bf16=bf16,
            falls_back=device == "auto" and CUDA in providers,
        )
    except UsageError:
        raise
    except Exception as error:  # the runtime raises a different class for each kind of damage
        reason = " ".join(str(error).split())
        if _NO_MEMORY.search(reason):
            raise UsageError(
                f"there is no memory left for the network ({reason}): use fewer --workers, end "
                "what else fills the GPU (see nvidia-smi), or add --device cpu"
            ) from error
        raise BundleError(
            f"{bundle.path / MODEL} cannot be loaded ({reason}): export the model again"
        ) from error


def _wanted_providers(runtime: ModuleType, device: str) -> list[str]:
    """Execution providers to request, best first."""
    if device not in DEVICES:
        raise UsageError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    has_cuda = CUDA in runtime.get_available_providers()
    if device == "cpu" or (device == "auto" and not has_cuda):
        return [CPU]
    if not has_cuda:
        raise UsageError(
            "device cuda: the installed onnxruntime is the CPU wheel; run"
            f" `pip uninstall onnxruntime`, then {install_hint('gpu')}"
        )
    # It prints what it does not find, and the answers of `predict` are all that stdout may hold.
    with redirect_stdout(sys.stderr):
        runtime.preload_dlls()  # the CUDA libraries from wheels
    return [CUDA, CPU]


def _demand_cuda(in_use: str) -> None:
    """Refuse any provider but CUDA: without a driver, ONNX Runtime lists CUDA but falls back."""
    if in_use != CUDA:
        raise UsageError(
            f"device cuda: the model runs on {in_use}: no usable CUDA device. onnxruntime-gpu needs"
            " an NVIDIA driver (libcuda.so.1; see nvidia-smi) and the CUDA and cuDNN wheels of the"
            f" extra `gpu`: {install_hint('gpu')}"
        )


def _widths(graph: Any, bundle: Bundle) -> dict[str, int]:
    """Width of the logits and features by output; refuses a graph that does not fit the bundle."""
    side, classes = bundle.preprocess.image_size, len(bundle.classes)
    inputs = [(node.name, node.type, list(node.shape[1:])) for node in graph.get_inputs()]
    if inputs != [(INPUT, "tensor(uint8)", [side, side, 3])]:
        raise BundleError(
            f"{MODEL} must take `{INPUT}`, uint8 (batch, {side}, {side}, 3) as preprocess.json"
            f" says, but takes {inputs}: export the model again"
        )
    outputs = {node.name: node for node in graph.get_outputs()}
    for head, output in bundle.heads.items():
        if output not in outputs:
            raise BundleError(f"{MODEL} has no output {output} for head {head}: export it again")
        width = outputs[output].shape[-1]
        if isinstance(width, int) and width != classes:
            raise BundleError(
                f"{MODEL} has {width} classes for head {head}, classes.json has {classes}: export"
                " the model again"
            )
    features = _vector_length(outputs.get(FEATURES))
    widths = dict.fromkeys(bundle.heads.values(), classes)
    return widths if features is None else widths | {FEATURES: features}


def _vector_length(node: Any) -> int | None:
    """The length of an output that holds a vector for each picture; None for others."""
    if node is None or (node.type, len(node.shape)) != ("tensor(float)", 2):
        return None
    return node.shape[1] if isinstance(node.shape[1], int) else None


def _lock_pages(array: npt.NDArray[np.uint8], cuda_version: str) -> None:
    """Pin the memory of an array while it exists, if CUDA can: a GPU then copies it faster."""
    address = ctypes.c_void_p(array.ctypes.data)
    with suppress(OSError, AttributeError):
        runtime = ctypes.CDLL(f"libcudart.so.{cuda_version.partition('.')[0]}")
        size, flags = ctypes.c_size_t(array.nbytes), ctypes.c_uint(0)
        if not runtime.cudaHostRegister(address, size, flags):
            weakref.finalize(array, runtime.cudaHostUnregister, address)  # before it is freed

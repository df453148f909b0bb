"""Run a network at one batch size with fixed buffers, so that a GPU can replay a CUDA graph.

For small batches the host takes longer to launch the kernels one by one than a GPU takes to compute
them. A CUDA graph launches all at once, but only with the addresses and shapes of its capture.
"""

import ctypes
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from florilege.models.runtime import CUDA, import_runtime
from florilege.models.session import INPUT, Floats, Session


class FixedBatch:
    """Runs up to ``size`` pictures at once, always from the same thread.

    ``graph`` is the network of ``session``, opened with `open_graph` for this object only.
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


def _lock_pages(array: npt.NDArray[np.uint8], cuda_version: str) -> None:
    """Pin the memory of an array while it exists, if CUDA can: a GPU then copies it faster."""
    address = ctypes.c_void_p(array.ctypes.data)
    with suppress(OSError, AttributeError):
        runtime = ctypes.CDLL(f"libcudart.so.{cuda_version.partition('.')[0]}")
        size, flags = ctypes.c_size_t(array.nbytes), ctypes.c_uint(0)
        if not runtime.cudaHostRegister(address, size, flags):
            weakref.finalize(array, runtime.cudaHostUnregister, address)  # before it is freed

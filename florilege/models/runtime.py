"""What runs a network: ONNX Runtime or OpenVINO, its precision and its device."""

import os
import platform
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, cast

from florilege.cores import cores
from florilege.errors import UsageError, install_hint
from florilege.models.onnx_files import refuse_files
from florilege.version import installed

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
DEVICES: Final = ("auto", "cpu", "cuda")
OPENVINO: Final = "openvino"
RuntimeName = Literal["onnxruntime", "openvino"]
Precision = Literal["float32", "bf16"]
_WEIGHTS_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_WHEELS: Final = ("onnxruntime", "onnxruntime-gpu")


class Runtime(NamedTuple):
    """A library that runs networks, and its precision.

    The last digits differ between runtimes, so each needs its own calibration.
    """

    name: RuntimeName = "onnxruntime"
    precision: Precision = "float32"

    @classmethod
    def of(cls, name: RuntimeName, precision: Precision | None) -> "Runtime":
        """A runtime; by default OpenVINO computes in bf16 and ONNX Runtime in float32.

        Raises `ValueError` if ONNX Runtime does not support bf16 on this processor.
        """
        if name == OPENVINO:
            return cls(name, precision or "bf16")
        if precision == "bf16" and platform.machine() not in ("aarch64", "arm64"):
            raise ValueError(
                "precision bf16 needs runtime openvino: ONNX Runtime supports it only on ARM"
            )
        return cls(name, precision or "float32")

    @property
    def concurrency(self) -> int:
        """Threads that keep it busy; OpenVINO also runs the network in its own threads."""
        return cores() * (2 if self.name == OPENVINO else 1)


def installed_wheels() -> dict[str, str]:
    """Versions of the installed ONNX Runtime wheels by name."""
    return {name: number for name in _WHEELS if (number := installed(name))}


def fastest_float32() -> Runtime:
    """The fastest float32 runtime on a CPU: OpenVINO, if it is installed."""
    return Runtime(OPENVINO if installed(OPENVINO) else "onnxruntime", "float32")


def silence_telemetry() -> None:
    """Disable the telemetry of the runtimes; call it before anything imports them.

    The Linux and macOS wheels of ONNX Runtime otherwise write a device id to the user's cache
    folder, and they contain the address for events; ``ORT_DISABLE_TELEMETRY=0`` keeps telemetry
    on. OpenVINO otherwise writes a device id to the home folder and reports each import to Google
    Analytics; without ``openvino_telemetry`` it does neither.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))  # cannot be imported


def import_runtime() -> ModuleType:
    """Import ``onnxruntime`` with its telemetry off.

    Raises `UsageError` if it is missing, or both wheels are installed and share one folder.
    """
    wheels = installed_wheels()
    if len(wheels) > 1:
        raise UsageError(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: run"
            f" `pip uninstall onnxruntime onnxruntime-gpu`, then {install_hint('cpu')}; use `gpu`"
            " instead of `cpu` for an NVIDIA card"
        )
    silence_telemetry()
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            f"ONNX Runtime cannot be imported ({error}): install the extra `cpu`, or `gpu` for an"
            f" NVIDIA card: {install_hint('cpu')}"
        ) from error
    return onnxruntime  # type: ignore[no-any-return]  # the wheel ships no types


def open_graph(
    content: bytes,
    *,
    providers: Sequence[str] = (CPU,),
    quiet: bool = False,
    replayed: bool = False,
    bf16: bool = False,
) -> Any:
    """Open a graph in ONNX Runtime with one thread per call; ``quiet`` disables its log.

    With ``bf16`` an ARM processor multiplies matrices in bf16 if it supports that. A GPU computes
    in full float32, not TF32, whose 10-bit mantissa would move scores past thresholds calibrated
    elsewhere. ``replayed`` is for `florilege.models.session.FixedBatch`.

    Raises:
        UsageError: As `import_runtime`.
        BundleError: The graph names files, or is none.
        Exception: ONNX Runtime cannot read or run the graph.
    """
    refuse_files(content)
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    if quiet:
        options.log_severity_level = 4  # errors are still raised
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", str(int(bf16)))
    # A second lock beside `refuse_files`: weights in other files are looked for where none can be,
    # and the compact format of ONNX Runtime, which that check does not read, is not recognised.
    options.add_session_config_entry(_WEIGHTS_FOLDER, os.devnull)
    options.add_session_config_entry("session.load_model_format", "ONNX")
    cuda = {"use_tf32": "0", "enable_cuda_graph": str(int(replayed))}
    configured = [(CUDA, cuda) if name == CUDA else name for name in providers]
    return runtime.InferenceSession(content, options, providers=configured)

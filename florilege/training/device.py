"""The device of a run, its precision, and errors of both."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from florilege.errors import FlorilegeError, UsageError

_HALVES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """A device and the precision of matrix products on it; weights stay float32 either way."""

    device: torch.device
    precision: str  # fp32, or bf16 or fp16 through autocast

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the network runs."""
        half = _HALVES.get(self.precision)
        return torch.autocast(
            self.device.type, dtype=half or torch.bfloat16, enabled=half is not None
        )

    def scaler(self) -> torch.amp.GradScaler:
        """Scales the loss in fp16, where small gradients would become 0; otherwise does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    @property
    def note(self) -> str:
        """What a run says of a precision below float32."""
        if self.precision == "fp32":
            return ""
        return f"training in {self.precision}; figures on val are in float32, as it is served"

    @property
    def steps_between_reads(self) -> int:
        """Steps between reads of the loss, each of which makes the host wait for a GPU."""
        return 20 if self.on_gpu else 1

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"


def choose(device: str, precision: str) -> Compute:
    """Resolve ``auto`` and ``fast`` for this machine.

    ``auto`` takes a GPU if there is one; see ``TrainConfig.precision`` for the precisions.

    Raises:
        UsageError: ``device`` is ``cuda``, but there is no GPU; or ``fp16`` on a CPU.
    """
    gpu = torch.cuda.is_available()
    if device == "cuda" and not gpu:
        raise UsageError(
            "device is cuda, but torch sees no GPU: check the driver and that torch is a CUDA "
            "build, or use --device cpu"
        )
    name = ("cuda" if gpu else "cpu") if device == "auto" else device
    if name == "cpu" and precision == "fp16":
        raise UsageError("precision fp16 needs a GPU; on a CPU use auto, fast, fp32 or bf16")
    return Compute(torch.device(name), _resolved(precision, name))


def _resolved(precision: str, device: str) -> str:
    """The precision that ``auto`` or ``fast`` means on a device; any other is itself."""
    if precision not in ("auto", "fast"):
        return precision
    if device == "cuda":  # from compute capability 8.0; a T4 only emulates bf16
        has_units = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    else:
        has_units = precision == "fast" and _cpu_has_bf16_units()
    return "bf16" if has_units else "fp32"


def _cpu_has_bf16_units() -> bool:
    """Whether this CPU has matrix units for bf16 (AMX).

    AVX-512 BF16 alone does not pay off, since everything between the products is converted: on such
    a CPU ``tiny`` at 48 px trained 1.3 times as long in bf16 as in fp32, ``resnet18`` at 64 px 1.1
    times.
    """
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


@contextmanager
def tuned(compute: Compute) -> Iterator[None]:
    """Let cuDNN time its convolution algorithms once per batch size and keep the fastest.

    A run has few batch sizes, and all its inputs are equally large. Does nothing if torch is set to
    deterministic algorithms: which one is fastest may differ from run to run.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled() or cudnn.deterministic
    cudnn.benchmark = before or (compute.on_gpu and not deterministic)
    try:
        yield
    finally:
        cudnn.benchmark = before


@contextmanager
def exhausted() -> Iterator[None]:
    """If a run ends because memory runs out, raise a ``FlorilegeError`` saying what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = str(error)
        full = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if full or "can't allocate memory" in reason:
            what = "there is not enough memory"
        elif "DataLoader worker" in reason:
            what = "a process that prepares pictures was killed, perhaps because memory ran out"
        else:
            raise
        raise FlorilegeError(
            f"{what}: lower batch_size (accumulate=2 makes a step of two batches), image_size, "
            "cache_mb or workers. Everything up to the last checkpoint is safe: --resume continues"
        ) from error


def compiled(model: nn.Module, *, rows: int) -> Callable[[Tensor], Any]:
    """``model``, compiled for batches of ``rows`` alone: another size would take minutes."""
    fast = torch.compile(model, dynamic=False)
    return lambda inputs: (fast if len(inputs) == rows else model)(inputs)


@contextmanager
def compiling(say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Turn errors of ``torch.compile`` into a ``UsageError``.

    ``say`` shows the user a line before and after, for the step that compiles.
    """
    began = time.monotonic()
    if say is not None:
        say("compiling the network in the first step; a large one takes minutes")
    try:
        yield
        if say is not None:
            say(f"compiled, and one step done, in {time.monotonic() - began:.0f} s")
    except RuntimeError as error:
        from torch._dynamo.exc import TorchDynamoException  # the import takes seconds

        if not isinstance(error, TorchDynamoException):
            raise
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise UsageError(
            f"the network cannot be compiled here ({reason}); train with --set compile=false"
        ) from error

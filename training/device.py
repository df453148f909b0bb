"""Where a run computes, and in which precision."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from models.errors import UsageError


@dataclass(frozen=True)
class Compute:
    """A device and the precision of matrix products on it; weights stay float32 either way."""

    device: torch.device
    precision: str  # fp32, or bf16 through autocast

    def autocast(self) -> AbstractContextManager[object]:
        """Run the network inside this."""
        enabled = self.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"


def choose(device: str, precision: str) -> Compute:
    """Resolve ``auto`` and ``fast`` for this machine.

    ``auto`` takes a GPU where there is one; see ``TrainConfig.precision`` for the precisions.

    Raises:
        UsageError: ``cuda`` is asked for, but there is no GPU.
    """
    gpu = torch.cuda.is_available()
    if device == "cuda" and not gpu:
        raise UsageError(
            "device cuda is asked for, but torch sees no GPU: check the driver and that torch "
            "is a CUDA build, or use --device cpu"
        )
    name = ("cuda" if gpu else "cpu") if device == "auto" else device
    if precision in ("auto", "fast"):
        native = name == "cuda" or (precision == "fast" and cpu_multiplies_bf16())
        precision = "bf16" if native else "fp32"
    return Compute(torch.device(name), precision)


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU has bf16 products (AVX-512 BF16 or AMX); elsewhere they are emulated."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))

"""Where and in which precision a run computes."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from models.errors import UsageError


@dataclass(frozen=True)
class Compute:
    """A device and the precision of matrix products on it.

    Attributes:
        device: ``cpu`` or ``cuda``.
        precision: ``fp32``, or ``bf16`` through autocast; weights stay float32 either way.
    """

    device: torch.device
    precision: str

    def autocast(self) -> AbstractContextManager[object]:
        """Run the network inside this."""
        enabled = self.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"


def choose(device: str, precision: str) -> Compute:
    """Resolve ``auto``: a GPU where there is one, and there bf16.

    Raises:
        UsageError: ``cuda`` is asked for and there is none.
    """
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise UsageError(
            "device cuda is asked for, but torch sees no GPU: check the driver and that torch "
            "is a CUDA build, or use --device cpu"
        )
    name = ("cuda" if there else "cpu") if device == "auto" else device
    if precision == "auto":
        precision = "bf16" if name == "cuda" else "fp32"
    return Compute(torch.device(name), precision)

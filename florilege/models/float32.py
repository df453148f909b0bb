"""Float32 as it is served: neither TF32 nor autocast, whatever the process is set to."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute in float32 to its last bit while the block runs.

    By default torch multiplies float32 with ten bits (TF32) in the convolutions of a GPU, which
    moves logits by a thousandth, and ``torch.set_float32_matmul_precision`` may ask for TF32 or
    bfloat16 in products, on a CPU too. The server and the thresholds know neither.
    """
    backends: Any = torch.backends  # torch's stubs lack these settings
    kinds = [
        *(backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul),
        *(backends.mkldnn.conv, backends.mkldnn.rnn, backends.mkldnn.matmul),
    ]
    before = [kind.fp32_precision for kind in kinds]
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        try:
            for kind in kinds:
                kind.fp32_precision = "ieee"
            yield
        finally:
            for kind, precision in zip(kinds, before, strict=True):
                kind.fp32_precision = precision

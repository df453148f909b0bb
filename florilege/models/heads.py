"""The last layer: features ``(batch, features)`` in, logits ``(batch, classes)`` out for each head,
in float32 also where the backbone computes in half precision.

``linear`` and ``cosine`` return ``logits`` for any single-head loss; ``cosine`` suits the margin
losses ``ldam`` and ``imbalanced_noised_top_k``. ``two_head`` returns the pair
``(multi_label_logits, sccp_logits)`` for ``two_head_average_k`` ([A] section 4).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


Head = TypeVar("Head", bound=nn.Module)
Outputs = TypeVar("Outputs", Tensor, tuple[Tensor, Tensor])


def _in_float32(forward: Callable[[Head, Tensor], Outputs]) -> Callable[[Head, Tensor], Outputs]:
    """Run the forward pass of a head in float32 inside autocast too.

    A bfloat16 has eight bits: of 100 cosines, 46 would equal another one, and the losses that
    compare them would lose a third of their gradient. Beside the backbone a head costs nothing.
    """

    @wraps(forward)
    def in_float32(head: Head, features: Tensor) -> Outputs:
        device = features.device.type
        # Not `is_autocast_available`, which torch 2.11 cannot compile; only "meta" has no autocast.
        halves = device != "meta" and torch.is_autocast_enabled(device)
        if not halves:  # so nothing of this is in an exported graph
            return forward(head, features)
        with torch.autocast(device, enabled=False):
            return forward(head, features.float())

    return in_float32


class _LinearHead(nn.Linear):
    """A linear layer that computes in float32."""

    @_in_float32
    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


class CosineHead(nn.Module):
    """Cosines between the features and one direction per class.

    In training mode the output is the unscaled cosine: the margin losses subtract their margin in
    cosine units and then apply their own scale; for other losses the training loop scales. In
    evaluation mode it is ``scale`` times the cosine, so that the exported network has the softmax
    that the loss trained.

    References:
        Cao et al., "Learning imbalanced datasets with label-distribution-aware margin loss",
        NeurIPS 2019 (its ``NormedLinear``).
    """

    scale: Tensor

    def __init__(self, features: int, classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features))  # (classes, features)
        # As `nn.Linear` starts its weights.
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.register_buffer("scale", torch.tensor(float(scale)))

    @_in_float32
    def forward(self, features: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))
        return cosines if self.training else cosines * self.scale


class TwoHead(nn.Module):
    """The multi-label head and the single-class (SCCP) head on the same features.

    References:
        Garcin et al., "A two-head loss function for deep average-K classification", 2023.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.multi_label = nn.Linear(features, classes)
        self.sccp = nn.Linear(features, classes)

    @_in_float32
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.multi_label(features), self.sccp(features)

    @torch.no_grad()
    def start_multi_label_at(self, average_k: float) -> None:
        r"""Initialise every class at probability ``average_k / classes``.

        The bias becomes :math:`\log(K / (L - K))`. With a bias of zero, every probability starts at
        one half, and a short training spends most of its time lowering them.

        Raises:
            ValueError: ``average_k`` is not between 0 and the number of classes.
        """
        classes = self.multi_label.out_features
        if not 0 < average_k <= classes:
            raise ValueError(f"average_k must be in (0, {classes}], got {average_k}")
        if average_k < classes:
            self.multi_label.bias.fill_(math.log(average_k / (classes - average_k)))


_LAYERS: Final[Mapping[str, Callable[[int, int], nn.Module]]] = {
    "linear": _LinearHead,
    "cosine": CosineHead,
    "two_head": TwoHead,
}
HEADS: Final = tuple(_LAYERS)


def build_head(head: str, features: int, classes: int) -> nn.Module:
    """Build the head named ``head``, initialised from torch's random state.

    Raises:
        ValueError: There is no such head, or fewer than one class.
    """
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    if head not in _LAYERS:
        raise ValueError(f"head must be one of {', '.join(HEADS)}, got {head!r}")
    return _LAYERS[head](features, classes)


def output_names(head: str) -> dict[str, str]:
    """ONNX output name by head name, in the order of the network's outputs.

    Example:
        >>> output_names("two_head")
        {'multi_label': 'multi_label_logits', 'sccp': 'sccp_logits'}
        >>> output_names("cosine")
        {'cosine': 'logits'}
    """
    if head == "two_head":
        return {"multi_label": "multi_label_logits", "sccp": "sccp_logits"}
    return {head: "logits"}


def by_head(head: str, outputs: Tensor | tuple[Tensor, ...]) -> dict[str, Tensor]:
    """The network's outputs by head name, in the order of :func:`output_names`."""
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return dict(zip(output_names(head), tensors, strict=True))

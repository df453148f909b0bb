"""Build networks by name: a backbone that turns a picture into features, and a head.

The blocks of a backbone, first to last, are the unit of layer-wise rates and partial training.
timm's networks declare their layer groups; other networks are divided by their containers.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn

from florilege.models.backbones.known_networks import BATCH_NORMS
from florilege.models.backbones.known_networks import PRETRAINED as PRETRAINED
from florilege.models.backbones.known_networks import architecture as architecture
from florilege.models.backbones.known_networks import available as available
from florilege.models.backbones.weights import RECORD as RECORD
from florilege.models.backbones.weights import Provenance as Provenance
from florilege.models.backbones.weights import Weights as Weights
from florilege.models.backbones.weights import load_into as load_into
from florilege.models.backbones.weights import open_weights as open_weights
from florilege.models.backbones.weights import read_weights as read_weights
from florilege.models.backbones.weights import warm_start as warm_start
from florilege.models.heads import build_head

_CONTAINERS: Final = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LAST_LAYER: Final = "?"  # no timm pattern matches this name
_NOT_DECAYED: Final = ("*class_token", "*pos_embedding", "*relative_position_bias_table")


def _block_of(backbone: nn.Module) -> dict[str, int]:
    """The block number of each parameter, from 0, by parameter name.

    A block is a residual block, a transformer layer, or a convolution with its normalisation.
    Embeddings belong to the first block; a normalisation layer belongs to the block before it.

    Example:
        >>> from torchvision.models import resnet18
        >>> numbers = _block_of(resnet18())
        >>> numbers["conv1.weight"], numbers["layer1.0.conv1.weight"], numbers["layer4.1.bn2.bias"]
        (0, 1, 8)
    """
    numbers, head = _groups(backbone)
    after = [name for name, number in numbers.items() if number == head]
    if any(backbone.get_parameter(name).ndim > 1 for name in after):
        return numbers
    return {name: min(number, head - 1) for name, number in numbers.items()}


def _groups(backbone: nn.Module) -> tuple[dict[str, int], int]:
    """The group number of each parameter, and of the last layer, which our head replaces."""
    matcher: Any = getattr(backbone, "group_matcher", None)
    if matcher is None:  # not of timm, or it declares no groups
        numbers = _block_numbers(backbone)
        return numbers, 1 + max(numbers.values(), default=0)
    from timm.models import group_parameters

    # One more parameter, which no pattern matches: timm gives it the group of the last layer.
    layers: Any = SimpleNamespace(
        named_parameters=lambda: chain(backbone.named_parameters(), [(_LAST_LAYER, None)])
    )
    numbers = dict(group_parameters(layers, matcher(coarse=False), reverse=True))
    return numbers, numbers.pop(_LAST_LAYER)


def _block_numbers(backbone: nn.Module) -> dict[str, int]:
    """The block number of each parameter, from the containers of the network."""
    numbers, last = dict[str, int](), -1
    for outer, module in _modules(backbone, ""):
        if last < 0 or _layers(module):
            last += 1
        numbers |= {f"{outer}.{name}": last for name, _ in module.named_parameters()}
    return {name: numbers.get(name, 0) for name, _ in backbone.named_parameters()}


def _modules(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules with weights inside ``module``, in order; containers and stages are opened."""
    for name, child in module.named_children():
        full = f"{prefix}{name}"
        if _is_container(child) or any(map(_holds_blocks, child.children())):
            yield from _modules(child, f"{full}.")
        elif any(True for _ in child.parameters()):
            yield full, child


def _is_container(module: nn.Module) -> bool:
    """Whether a module is a container of several layers or blocks."""
    return isinstance(module, _CONTAINERS) and sum(map(bool, map(_layers, module.children()))) > 1


def _holds_blocks(module: nn.Module) -> bool:
    """Whether a module holds only blocks of several layers, like a stage of a network."""
    return _is_container(module) and 1 not in map(_layers, module.children())


def _layers(module: nn.Module) -> int:
    """The number of layers with weights beyond a scale and shift per channel."""
    own = (part.parameters(recurse=False) for part in module.modules())
    return sum(any(weight.ndim > 1 for weight in weights) for weights in own)


class Network(nn.Module):
    """A backbone, from pictures to features ``(batch, features)``, and a head.

    ``last_layers`` names the layers of the plain torchvision or timm network that the head
    replaces: one layer, several in a distilled network, none in our own networks.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        *,
        head_name: str,
        last_layers: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.head_name, self.last_layers = head_name, last_layers
        self._fixed: list[str] = []  # modules of the backbone that stay in evaluation mode

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The head's outputs for normalised pictures, floats ``(batch, 3, height, width)``."""
        outputs: Tensor | tuple[Tensor, Tensor] = self.head(self.backbone(images))
        return outputs

    def depths(self) -> dict[str, int]:
        """The number of blocks from the head down to each parameter of the backbone, by full name.

        It is at least 1, except for layers between the last block and the last layer of a timm
        network, such as a normalisation. These have depth 0, because timm gives them the rate of
        the last layer.
        """
        numbers, head = _groups(self.backbone)
        return {f"backbone.{name}": head - number for name, number in numbers.items()}

    def not_decayed(self) -> set[str]:
        """Parameters of the backbone that are not decayed, by full name.

        They are class tokens, position embeddings and bias tables.
        """
        own: Any = getattr(self.backbone, "no_weight_decay", None)
        patterns = _NOT_DECAYED if own is None else own()
        names = (name for name, _ in self.backbone.named_parameters())
        spared = (name for name in names if any(map(partial(fnmatch, name), patterns)))
        return {f"backbone.{name}" for name in spared}

    def train_only(self, last: int) -> None:
        """Train only the head and the ``last`` blocks of the backbone, which must have as many.

        The other blocks need no backward pass. They stay in evaluation mode, so their batch norm
        statistics do not change. `_block_of` numbers the blocks.
        """
        numbers = _block_of(self.backbone)
        count = 1 + max(numbers.values())
        if not 0 <= last <= count:
            raise ValueError(f"must be in [0, {count}], the blocks of the network, got {last}")
        first = count - last
        for name, module in self.backbone.named_modules():
            inside = [
                numbers[f"{name}.{parameter}"] for parameter, _ in module.named_parameters() if name
            ]
            if inside and max(inside) < first:
                self._fixed.append(name)
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(numbers[name] >= first)

    def keep_statistics(self) -> None:
        """Use the running statistics of the backbone's batch norms in training too.

        A head trained on a frozen backbone relies on them. Batch statistics would change all
        features at once (on EfficientNet-Lite0 at 96 px the loss rose from 0.3 to 2.6).
        """
        modules = self.backbone.named_modules()
        self._fixed += [name for name, module in modules if isinstance(module, BATCH_NORMS)]

    def train(self, mode: bool = True) -> "Network":
        """Set training mode, except for modules kept in evaluation mode."""
        super().train(mode)
        for name in self._fixed:
            self.backbone.get_submodule(name).eval()
        return self


class PictureNetwork(nn.Module):
    """A network preceded by normalisation: uint8 NHWC pictures in, float32 logits out.

    ``mean`` and ``std`` have one value per channel (red, green, blue), for pixels from 0 to 1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(list(mean)) * 255.0)
        self.register_buffer("std", torch.tensor(list(std)) * 255.0)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of ``image``, uint8 of shape ``(batch, height, width, 3)``."""
        outputs: Tensor | tuple[Tensor, Tensor] = self.network(self.normalise(image))
        return outputs

    def normalise(self, image: Tensor) -> Tensor:
        """Float ``(batch, 3, height, width)``; channels-last in memory, like the input."""
        return ((image.float() - self.mean) / self.std).permute(0, 3, 1, 2)


def build(
    name: str, classes: int, head: str, weights: str | None = None, *, image_size: int | None = None
) -> Network:
    """Build a network with random weights, from torch's random state, or with loaded weights.

    Args:
        name: One of :func:`available`; ``timm:`` followed by a name for ``timm.create_model``; or
            ``package.module:function``, a user's function without arguments that returns a module
            from pictures to features ``(batch, features)``.
        classes: Number of classes.
        head: ``linear``, ``cosine`` or ``two_head``, see ``florilege.models.heads``.
        weights: None, or weights as ``weights.open_weights`` takes them. The last layer is loaded
            if it has the same kind and number of rows. To match rows by class id, call
            ``weights.warm_start`` on the built network.
        image_size: Side of the pictures in pixels, checked against the network. Vision transformers
            and similar networks are built for this size.

    Raises:
        ValueError: ``name`` or ``head`` is unknown, ``classes < 1``, or the network does not take
            this ``image_size``.
        UsageError: The network needs timm, which is not installed.
        BundleError: The weights belong to another architecture or cannot be found or read.
    """
    source = architecture(name)
    if image_size is not None and (side := source.side_taken(image_size)) != image_size:
        raise ValueError(
            f"image_size must be one that fits, such as {side}, for {name}, got {image_size}"
        )
    backbone, features, last_layers = source.backbone(image_size)
    layer = build_head(head, features, classes)
    network = Network(backbone, layer, head_name=head, last_layers=last_layers)
    if weights is not None:
        warm_start(network, open_weights(weights, name))
    return network

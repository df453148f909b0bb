"""The blocks of a backbone, first to last: the unit of layer-wise rates and partial training.

timm's networks declare their layer groups; other networks are divided by their containers.
"""

from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

from torch import nn

_CONTAINERS: Final = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LAST_LAYER: Final = "?"  # no timm pattern matches this name
_NOT_DECAYED: Final = ("*class_token", "*pos_embedding", "*relative_position_bias_table")


def block_of(backbone: nn.Module) -> dict[str, int]:
    """The block number of each parameter, from 0, by parameter name.

    A block is a residual block, a transformer layer, or a convolution with its normalisation.
    Embeddings belong to the first block; a normalisation layer belongs to the block before it.

    Example:
        >>> from torchvision.models import resnet18
        >>> numbers = block_of(resnet18())
        >>> numbers["conv1.weight"], numbers["layer1.0.conv1.weight"], numbers["layer4.1.bn2.bias"]
        (0, 1, 8)
    """
    numbers, head = _groups(backbone)
    after = [name for name, number in numbers.items() if number == head]
    if any(backbone.get_parameter(name).ndim > 1 for name in after):
        return numbers
    return {name: min(number, head - 1) for name, number in numbers.items()}


def depths(backbone: nn.Module) -> dict[str, int]:
    """The number of blocks from the head down to each parameter, by parameter name.

    It is at least 1, except for layers between the last block and the last layer of a timm network,
    such as a normalisation. These have depth 0, because timm gives them the rate of the last layer.
    """
    numbers, head = _groups(backbone)
    return {name: head - number for name, number in numbers.items()}


def not_decayed(backbone: nn.Module) -> set[str]:
    """Names of parameters without weight decay: class tokens, position embeddings, bias tables."""
    own: Any = getattr(backbone, "no_weight_decay", None)
    patterns = _NOT_DECAYED if own is None else own()
    names = (name for name, _ in backbone.named_parameters())
    return {name for name in names if any(map(partial(fnmatch, name), patterns))}


def _groups(backbone: nn.Module) -> tuple[dict[str, int], int]:
    """The group number of each parameter, and of the last layer, which our head replaces."""
    matcher: Any = getattr(backbone, "group_matcher", None)
    if matcher is None:  # not of timm, or it declares no groups
        numbers = _block_numbers(backbone)
        return numbers, 1 + max(numbers.values(), default=0)
    from timm.models import group_parameters

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

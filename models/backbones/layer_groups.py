"""The blocks of a backbone, first to last: what layer-wise rates and partial training count in.

Networks of timm say their groups of layers themselves; others are cut by their containers.
"""

from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

from torch import nn

_CONTAINERS: Final = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LAST_LAYER: Final = "?"  # a name that no pattern of timm matches
_NOT_DECAYED: Final = ("*class_token", "*pos_embedding", "*relative_position_bias_table")


def block_of(backbone: nn.Module) -> dict[str, int]:
    """The number of the block, from 0, that each parameter is in, by its name.

    A block is a residual block, a transformer layer, or a convolution with its normalisation.
    Embeddings are in the first; a normalisation layer belongs to the block before it.

    Example:
        >>> from torchvision.models import resnet18
        >>> numbers = block_of(resnet18())
        >>> numbers["conv1.weight"], numbers["layer1.0.conv1.weight"], numbers["layer4.1.bn2.bias"]
        (0, 1, 8)
    """
    numbers, head = _groups_of_timm(backbone)
    if head is None:
        return numbers or _numbered(backbone)
    after = [name for name, number in numbers.items() if number == head]
    if any(backbone.get_parameter(name).ndim > 1 for name in after):
        return numbers
    return {name: min(number, head - 1) for name, number in numbers.items()}


def depths(backbone: nn.Module) -> dict[str, int]:
    """How many blocks below the head each parameter is, by its name.

    It is at least 1, but 0 for layers between the last block and the last layer of a network of
    timm, such as a normalisation: timm gives them the rate of the last layer.
    """
    numbers, head = _groups_of_timm(backbone)
    numbers = numbers or _numbered(backbone)
    above = 1 + max(numbers.values(), default=0) if head is None else head
    return {name: above - number for name, number in numbers.items()}


def not_decayed(backbone: nn.Module) -> set[str]:
    """Names of class tokens, position embeddings and bias tables: weight decay is not for them."""
    own: Any = getattr(backbone, "no_weight_decay", None)
    patterns = _NOT_DECAYED if own is None else own()
    names = (name for name, _ in backbone.named_parameters())
    return {name for name in names if any(map(partial(fnmatch, name), patterns))}


def fixed_modules(backbone: nn.Module, first: int) -> list[str]:
    """The outermost modules whose weights all belong to blocks before ``first``."""
    numbers = block_of(backbone)
    fixed = list[str]()
    for name, module in backbone.named_modules():
        inside = [numbers[f"{name}.{each}"] for each, _ in module.named_parameters() if name]
        above = any(name.startswith(f"{outer}.") for outer in fixed)
        if inside and max(inside) < first and not above:
            fixed.append(name)
    return fixed


def has_normalisation(backbone: nn.Module) -> bool:
    """Whether any layer of a network normalises what it is given."""
    norms = (each for each in backbone.modules() if "norm" in type(each).__name__.lower())
    return any("weight" in each._parameters for each in norms)


def _groups_of_timm(backbone: nn.Module) -> tuple[dict[str, int], int | None]:
    """timm's number of the group of each parameter, and that of the last layer, which we replace.

    Nothing and None for a network that does not say its groups.
    """
    matcher: Any = getattr(backbone, "group_matcher", None)
    if matcher is None:
        return {}, None
    from timm.models import group_parameters

    layers: Any = SimpleNamespace(
        named_parameters=lambda: chain(backbone.named_parameters(), [(_LAST_LAYER, None)])
    )
    numbers = dict(group_parameters(layers, matcher(coarse=False), reverse=True))
    return numbers, numbers.pop(_LAST_LAYER)


def _numbered(backbone: nn.Module) -> dict[str, int]:
    """The number of the block of each parameter, cut by the containers of the network."""
    numbers, last = dict[str, int](), -1
    for name, module in _opened(backbone, ""):
        if last < 0 or _layers(module):
            last += 1
        numbers[name] = last
    return {name: _number(name, numbers) for name, _ in backbone.named_parameters()}


def _number(parameter: str, numbers: dict[str, int]) -> int:
    """The number of the innermost module around it; 0 where there is none, as for embeddings."""
    parts = parameter.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((numbers[name] for name in above if name in numbers), 0)


def _opened(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """What with weights is inside ``module``, in order: containers and stages are opened."""
    for name, child in module.named_children():
        full = f"{prefix}{name}"
        if _is_container(child) or any(map(_holds_blocks, child.children())):
            yield from _opened(child, f"{full}.")
        elif any(True for _ in child.parameters()):
            yield full, child


def _is_container(module: nn.Module) -> bool:
    """Whether it holds several layers or blocks."""
    return isinstance(module, _CONTAINERS) and sum(map(bool, map(_layers, module.children()))) > 1


def _holds_blocks(module: nn.Module) -> bool:
    """Whether it holds blocks of several layers alone, as a stage of a network does."""
    return _is_container(module) and 1 not in map(_layers, module.children())


def _layers(module: nn.Module) -> int:
    """How many layers it has with weights that are more than a scale and a shift a channel."""
    own = (each.parameters(recurse=False) for each in module.modules())
    return sum(any(weight.ndim > 1 for weight in weights) for weights in own)

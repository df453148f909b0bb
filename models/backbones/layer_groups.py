"""The blocks of a backbone, first to last: what layer-wise rates and partial training count in."""

from collections.abc import Iterator

from torch import nn


def blocks(backbone: nn.Module) -> list[list[str]]:
    """Cut any backbone into blocks, each a list of the names of its modules.

    A plain container (``Sequential``, ``ModuleList``) of several layers is opened, and so is a
    module that holds more than half of all weights around such a container: the encoder of a
    vision transformer, the longest stage of other networks. What is left is a block each: a
    residual block, a transformer layer, a convolution. A normalisation layer belongs to the block
    before it. The order is that in which the network names its modules.

    Example:
        >>> from torchvision.models import resnet18
        >>> [names[0] for names in blocks(resnet18())][:4]
        ['conv1', 'layer1.0', 'layer1.1', 'layer2.0']
    """
    found: list[list[str]] = []
    for name, module in _opened(backbone, "", _size(backbone) / 2):
        if found and not _is_layer(module):
            found[-1].append(name)
        else:
            found.append([name])
    return found


def block_of(backbone: nn.Module) -> dict[str, int]:
    """The number of the block, from 0, that each parameter is in, by its name.

    Parameters of no module below the backbone, such as position embeddings, are in the first.
    """
    numbers = {name: index for index, names in enumerate(blocks(backbone)) for name in names}
    return {name: _number(name, numbers) for name, _ in backbone.named_parameters()}


def _number(parameter: str, numbers: dict[str, int]) -> int:
    parts = parameter.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((numbers[name] for name in above if name in numbers), 0)


def _opened(module: nn.Module, prefix: str, most: float) -> Iterator[tuple[str, nn.Module]]:
    """What is inside ``module``, in order, opened as far as it goes; nothing without weights."""
    for name, child in module.named_children():
        full = f"{prefix}{name}"
        held = _is_container(child) or (
            _size(child) > most and any(_is_container(inner) for inner in child.children())
        )
        if held:
            yield from _opened(child, f"{full}.", most)
        elif _size(child):
            yield full, child


def _is_container(module: nn.Module) -> bool:
    """Whether it holds several layers and adds nothing of its own."""
    plain = type(module) in (nn.Sequential, nn.ModuleList)
    return plain and sum(map(_is_layer, module.children())) > 1


def _is_layer(module: nn.Module) -> bool:
    """Whether it has weights that are more than a scale and a shift for each channel."""
    return any(parameter.ndim > 1 for parameter in module.parameters())


def has_normalisation(backbone: nn.Module) -> bool:
    """Whether any layer of a network normalises what it is given."""
    norms = (each for each in backbone.modules() if "norm" in type(each).__name__.lower())
    return any("weight" in each._parameters for each in norms)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())

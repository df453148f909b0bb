"""Find a network by name: ours, torchvision's, timm's, or a user's function."""

from contextlib import suppress

import torch

from florilege.errors import UsageError
from florilege.models.backbones.architecture import Architecture, Backbone
from florilege.models.backbones.small_networks import SMALL_NETWORKS
from florilege.models.backbones.timm_networks import PREFIX, TimmNetwork
from florilege.models.backbones.torchvision_networks import TorchvisionNetwork
from florilege.models.extensions import is_extension, load_extension
from florilege.suggestions import did_you_mean, nearest


def available() -> list[str]:
    """The names of our small networks and torchvision's classifiers, sorted."""
    from torchvision import models  # lazy: it takes seconds, and our own networks do not need it

    return sorted({*SMALL_NETWORKS, *models.list_models(module=models)})


def architecture(name: str) -> Architecture:
    """The network with this name, as :func:`florilege.models.backbones.build` takes it.

    Raises `ValueError`, which suggests the nearest names, if there is none.

    Example:
        >>> [architecture(name).side_taken(50) for name in ("vit_b_16", "resnet18")]
        [64, 50]
        >>> [architecture(name).normalises for name in ("vgg11_bn", "vgg11")]
        [True, False]
    """
    if name in SMALL_NETWORKS:
        return _SmallNetwork(name)
    if is_extension(name):
        return _Extension(name)
    if name.startswith(PREFIX):
        timm_network = TimmNetwork(name)
        if timm_network.is_known:
            return timm_network
    elif name in available():
        return TorchvisionNetwork(name)
    near = did_you_mean(_nearest(name)) or "; docs/training.md lists them"
    raise ValueError(f"there is no backbone {name!r}{near}")


def _nearest(name: str) -> list[str]:
    names = available()
    with suppress(UsageError):  # timm is not installed
        names += TimmNetwork(name).known_names()
    similar = nearest(
        name.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in names], most=5
    )
    return [name for network in similar for name in names if name in (network, PREFIX + network)]


class _SmallNetwork(Architecture):
    def backbone(self, image_size: int | None) -> Backbone:
        return (*SMALL_NETWORKS[self.name](), ())


class _Extension(Architecture):
    """A user's function; one black picture shows its number of features."""

    def backbone(self, image_size: int | None) -> Backbone:
        side = image_size or 224
        try:
            backbone = load_extension(self.name)()
            backbone.eval()
            with torch.no_grad():
                shape = tuple(backbone(torch.zeros(1, 3, side, side)).shape)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"backbone {self.name} must be a function without arguments that returns a module "
                f"for pictures (batch, 3, {side}, {side}): {error}"
            ) from error
        if len(shape) != 2:
            raise UsageError(
                f"backbone {self.name} must return features (batch, features), got {shape}"
            )
        backbone.train()
        return backbone, shape[1], ()

"""Find a network by name: ours, torchvision's, timm's, or a user's function.

torchvision is imported lazily, because that takes seconds.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn

from florilege.errors import FlorilegeError, UsageError, did_you_mean, nearest
from florilege.models.backbones.timm_networks import (
    PREFIX,
    Architecture,
    Backbone,
    Pretrained,
    TimmNetwork,
)
from florilege.models.backbones.timm_networks import PRETRAINED as PRETRAINED
from florilege.models.images import Preprocess
from florilege.settings import is_extension, load_extension

# By the start of a name: the smallest picture side, and the step between allowed sides.
# fmt: off
_SIDES: Final[Mapping[str, tuple[int, int]]] = {
    "alexnet": (63, 1), "convnext_": (32, 1), "densenet1": (29, 1), "densenet2": (29, 1),
    "googlenet": (15, 1), "inception_v3": (75, 1), "maxvit_t": (224, 224),
    "squeezenet1_0": (21, 1), "squeezenet1_1": (17, 1), "vgg": (32, 1), "vit_b_16": (16, 16),
    "vit_b_32": (32, 32), "vit_h_14": (14, 14), "vit_l_16": (16, 16), "vit_l_32": (32, 32),
}
# fmt: on
_WITHOUT_NORMALISATION: Final = ("alexnet", "squeezenet", "vgg")
BATCH_NORMS: Final = nn.modules.batchnorm._BatchNorm
_WITH_AUXILIARY_HEADS: Final = ("googlenet", "inception_v3")


class _TorchvisionNetwork(Architecture):
    """A classifier of torchvision."""

    def backbone(self, image_size: int | None) -> Backbone:
        from torchvision import models

        network = models.get_model(self.name, weights=None, **self._arguments(image_size))
        for module in network.modules():
            # PyTorch's default instead of MNASNet's 0.0003, which suits a week on ImageNet: after
            # 400 steps its statistics are near their initial values, and sets on val are random.
            if isinstance(module, BATCH_NORMS) and module.momentum is not None:
                module.momentum = module.momentum if module.momentum >= 0.01 else 0.1
        layer_name, features = _last_layer(network)
        parent, _, attribute = layer_name.rpartition(".")
        setattr(network.get_submodule(parent), attribute, nn.Identity())
        return network, features, (layer_name,)

    def _arguments(self, image_size: int | None) -> dict[str, object]:
        if self.name in _WITH_AUXILIARY_HEADS:  # torchvision's weights expect values from -1 to 1
            # `init_weights` has to be said, or torchvision warns that its default will change.
            return {"aux_logits": False, "init_weights": True, "transform_input": True}
        if image_size is not None and self.name.startswith("vit_"):
            return {"image_size": image_size}
        if image_size is not None and self.name.startswith("maxvit_"):
            return {"input_size": (image_size, image_size)}
        return {}

    def preprocess(self, weights: str | None = None) -> Preprocess:
        if weights != PRETRAINED or self._weights is None:
            return super().preprocess()
        own = self._weights.transforms()
        return Preprocess(
            image_size=own.crop_size[0],
            crop_fraction=own.crop_size[0] / own.resize_size[0],
            resample=own.interpolation.value,
            mean=own.mean,
            std=own.std,
        )

    def side_taken(self, at_least: int) -> int:
        sides = (side for start, side in _SIDES.items() if self.name.startswith(start))
        smallest, step = next(sides, (1, 1))
        return max(smallest, -(-at_least // step) * step)

    @property
    def normalises(self) -> bool:
        return self.name.endswith("_bn") or not self.name.startswith(_WITHOUT_NORMALISATION)

    @property
    def megabytes(self) -> float | None:
        return None if self._weights is None else float(self._weights.meta["_file_size"])

    def pretrained(self) -> Pretrained:
        weights = self._weights
        if weights is None:
            return super().pretrained()
        path = self._download(weights.url, check_hash=True)
        meta = weights.meta
        return Pretrained(path, weights.url, meta.get("license"), meta["categories"])

    @property
    def _weights(self) -> Any:
        from torchvision import models

        try:
            return models.get_model_weights(self.name).DEFAULT
        except (ValueError, AttributeError):
            return None


def _last_layer(network: nn.Module) -> tuple[str, int]:
    """Name and input features of the last linear layer, or of the last convolution (SqueezeNet)."""
    layers = list(network.named_modules())
    linear = [(name, layer.in_features) for name, layer in layers if isinstance(layer, nn.Linear)]
    if linear:
        return linear[-1]
    return [(name, layer.in_channels) for name, layer in layers if isinstance(layer, nn.Conv2d)][-1]


def _tiny() -> tuple[nn.Module, int]:
    """A compact network for 32 to 64 px pictures that trains in minutes on two CPU cores.

    It has five convolutions with batch norm, 0.4 M parameters and 23 M multiply-adds at 48 px, most
    of them on maps of a quarter of the side. The features are both the mean and the maximum over
    the picture, because a trait is often one small object, which a mean alone dilutes.
    """
    layers = (
        _convolution(3, 32, side=5, stride=2, padding=2),
        _convolution(32, 64, stride=2),
        _convolution(64, 96),
        _convolution(96, 128, stride=2),
        _convolution(128, 160),
    )
    return _Tiny(*layers), 320


def _tiny_patches() -> tuple[nn.Module, int]:
    """A faster ``tiny``: the first convolution takes patches of 6 x 6 pixels with stride 4.

    It has four convolutions, 0.4 M parameters and 16 M multiply-adds at 48 px. A training step
    takes three fifths of the time. Details of one or two pixels take slightly longer to learn.
    """
    layers = (
        _convolution(3, 64, side=6, stride=4),
        _convolution(64, 128, stride=2),
        _convolution(128, 128),
        _convolution(128, 160),
    )
    return _Tiny(*layers), 320


class _Tiny(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.layers(images)  # (batch, channels, height / 8, width / 8)
        return torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1)


def _convolution(
    inputs: int, outputs: int, *, side: int = 3, stride: int = 1, padding: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, side, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _resnet18_small() -> tuple[nn.Module, int]:
    """ResNet-18 for pictures of 32 to 96 px: a 3x3 stem of stride 1 and no max-pool.

    The stem is that of He et al., "Deep residual learning for image recognition", CVPR 2016, 4.2.
    """
    from torchvision.models import resnet18

    network = resnet18(weights=None)
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    # As torchvision starts the other convolutions of the network.
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    features = network.fc.in_features
    network.maxpool, network.fc = nn.Identity(), nn.Identity()
    return network, features


def _densenet40_40() -> tuple[nn.Module, int]:
    """DenseNet of depth 40 and growth 40 for 32 px pictures, the CIFAR network of the papers.

    This is the DenseNet-BC of Huang et al., "Densely connected convolutional networks", CVPR 2017:
    three blocks of six bottleneck layers, transitions that halve the maps, no dropout, 1.9 M
    parameters. The papers give only depth and growth; bottleneck and halving follow the code, and
    so the results, of two of them (noised-topk and smooth-topk).
    """
    from torchvision.models import DenseNet

    # Depth 40: three blocks of six layers with two convolutions, the first one, two transitions and
    # the classifier. The first has twice the growth, as the paper says of DenseNet-BC (section 3).
    network = DenseNet(40, (6, 6, 6), num_init_features=80)
    network.features.conv0 = nn.Conv2d(3, 80, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(network.features.conv0.weight)
    for name in ("norm0", "relu0", "pool0"):
        setattr(network.features, name, nn.Identity())
    features = network.classifier.in_features
    network.classifier = nn.Identity()
    return network, features


_SMALL_NETWORKS: Final[dict[str, Callable[[], tuple[nn.Module, int]]]] = {
    "densenet40_40": _densenet40_40,
    "resnet18_small": _resnet18_small,
    "tiny": _tiny,
    "tiny_patches": _tiny_patches,
}


def available() -> list[str]:
    """The names of our small networks and torchvision's classifiers, sorted."""
    from torchvision import models  # lazy: it takes seconds, and our own networks do not need it

    return sorted({*_SMALL_NETWORKS, *models.list_models(module=models)})


def architecture(name: str) -> Architecture:
    """The network with this name, as :func:`florilege.models.backbones.build` takes it.

    Raises `ValueError`, which suggests the nearest names, if there is none.

    Example:
        >>> [architecture(name).side_taken(50) for name in ("vit_b_16", "resnet18")]
        [64, 50]
        >>> [architecture(name).normalises for name in ("vgg11_bn", "vgg11")]
        [True, False]
    """
    if name in _SMALL_NETWORKS:
        return _SmallNetwork(name)
    if is_extension(name):
        return _Extension(name)
    if name.startswith(PREFIX):
        timm_network = TimmNetwork(name)
        if timm_network.is_known:
            return timm_network
    elif name in available():
        return _TorchvisionNetwork(name)
    near = did_you_mean(_nearest(name)) or "; docs/training.md lists them"
    raise ValueError(f"there is no backbone {name!r}{near}")


def _nearest(name: str) -> list[str]:
    names = available()
    with suppress(UsageError):  # timm is not installed
        names += TimmNetwork(name).known_names()
    # Each name once: both packages have a resnet50.
    plain_names = dict.fromkeys(name.removeprefix(PREFIX) for name in names)
    similar = nearest(name.removeprefix(PREFIX), plain_names, most=5)
    return [name for network in similar for name in names if name in (network, PREFIX + network)]


class _SmallNetwork(Architecture):
    def backbone(self, image_size: int | None) -> Backbone:
        return (*_SMALL_NETWORKS[self.name](), ())


class _Extension(Architecture):
    """A user's function; one black picture shows its number of features."""

    def backbone(self, image_size: int | None) -> Backbone:
        side = image_size or 224
        try:
            backbone = load_extension(self.name)()
            backbone.eval()
            with torch.no_grad():
                shape = tuple(backbone(torch.zeros(1, 3, side, side)).shape)
        except (FlorilegeError, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # theirs
            raise UsageError(
                f"backbone {self.name} must be a function without arguments that returns a module "
                f"for pictures (batch, 3, {side}, {side}): {type(error).__name__}: {error}"
            ) from error
        if len(shape) != 2:
            raise UsageError(
                f"backbone {self.name} must return features (batch, features), got {shape}"
            )
        backbone.train()
        return backbone, shape[1], ()

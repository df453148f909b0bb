"""Build networks by name: a backbone that turns a picture into features, and a head."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor, nn

from florilege.errors import UsageError
from florilege.models.backbones import pretrained, timm_networks
from florilege.models.backbones.layer_groups import block_of
from florilege.models.backbones.small_networks import SMALL_NETWORKS
from florilege.models.backbones.timm_networks import is_timm
from florilege.models.backbones.weights import PRETRAINED, open_weights, warm_start
from florilege.models.extensions import is_extension, load_extension
from florilege.models.heads import build_head
from florilege.models.images import Preprocess
from florilege.suggestions import did_you_mean, nearest

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
_BATCH_NORMS: Final = nn.modules.batchnorm._BatchNorm
_WITH_AUXILIARY_HEADS: Final = ("googlenet", "inception_v3")


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

    def train_only(self, last: int) -> None:
        """Train only the head and the ``last`` blocks of the backbone, which must have as many.

        The other blocks need no backward pass. They stay in evaluation mode, so their batch norm
        statistics do not change. ``backbones.layer_groups`` defines the blocks.
        """
        numbers = block_of(self.backbone)
        count = 1 + max(numbers.values())
        if not 0 <= last <= count:
            raise ValueError(f"must be in [0, {count}], the blocks of the network, got {last}")
        first = count - last
        for name, module in self.backbone.named_modules():
            inside = [numbers[f"{name}.{each}"] for each, _ in module.named_parameters() if name]
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
        self._fixed += [name for name, module in modules if isinstance(module, _BATCH_NORMS)]

    def train(self, mode: bool = True) -> "Network":
        """Set training mode, except for modules kept in evaluation mode."""
        super().train(mode)
        for name in self._fixed:
            self.backbone.get_submodule(name).eval()
        return self


def available() -> list[str]:
    """The names of our small networks and torchvision's classifiers, sorted."""
    from torchvision import models  # lazy: it takes seconds, and our own networks do not need it

    return sorted({*SMALL_NETWORKS, *models.list_models(module=models)})


def _check_known(name: str) -> None:
    """Refuse a name that :func:`build` does not know; the message suggests the nearest names."""
    if name in SMALL_NETWORKS or is_extension(name):
        return
    if timm_networks.is_known(name) if is_timm(name) else name in available():
        return
    near = did_you_mean(_nearest(name)) or "; docs/training.md lists them"
    raise ValueError(f"there is no backbone {name!r}{near}")


def _nearest(name: str) -> list[str]:
    names, prefix = available(), timm_networks.PREFIX
    with suppress(UsageError):  # timm is not installed
        names += timm_networks.models()
        names += timm_networks.tagged(name) if "." in name else []
    plain = [each.removeprefix(prefix) for each in names]
    similar = nearest(name.removeprefix(prefix), plain, most=5)
    return [name for each in similar for name in names if name in (each, prefix + each)]


def own_preprocess(name: str, weights: str | None = None) -> Preprocess:
    """The default preprocessing of a network with weights as ``weights.open_weights`` takes them.

    For timm's networks it comes from timm's configuration, for torchvision's pretrained weights
    from torchvision. Other networks take whole pictures at 224 px, normalised as for ImageNet.

    Raises:
        ValueError: There is no such network.
        BundleError: The configuration in a repository cannot be read.
    """
    _check_known(name)
    if is_timm(name):
        return timm_networks.own_preprocess(name)
    own = pretrained.own_preprocess(name) if weights == PRETRAINED else None
    return own or Preprocess(image_size=224)


def side_taken(name: str, at_least: int) -> int:
    """The smallest picture side in pixels, at least ``at_least``, that a network takes.

    Example:
        >>> side_taken("vit_b_16", 50), side_taken("vgg11", 16), side_taken("resnet18", 50)
        (64, 32, 50)
    """
    if is_timm(name):
        return timm_networks.side_taken(name, at_least)
    sides = (side for start, side in _SIDES.items() if name.startswith(start))
    smallest, step = next(sides, (1, 1))
    return max(smallest, -(-at_least // step) * step)


def normalises(name: str) -> bool:
    """Whether a network has normalisation layers, without which large steps diverge.

    Example:
        >>> normalises("vgg11_bn"), normalises("vgg11")
        (True, False)
    """
    if is_timm(name):
        return timm_networks.normalises(name)
    return name.endswith("_bn") or not name.startswith(_WITHOUT_NORMALISATION)


def build(
    name: str, classes: int, head: str, weights: str | None = None, *, image_size: int | None = None
) -> Network:
    """Build a network with random weights, from torch's random state, or with loaded weights.

    Args:
        name: One of :func:`available`; ``timm:`` followed by a name for ``timm.create_model``; or
            ``package.module:function``, somebody's function without arguments that returns a
            module from pictures to features ``(batch, features)``.
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
    _check_known(name)
    if image_size is not None and (side := side_taken(name, image_size)) != image_size:
        raise ValueError(
            f"image_size must be one that fits, such as {side}, for {name}, got {image_size}"
        )
    if is_timm(name):
        backbone, features, last_layers = timm_networks.build(name, image_size)
    elif is_extension(name):
        (backbone, features), last_layers = _extension_backbone(name, image_size or 224), ()
    elif name in SMALL_NETWORKS:
        (backbone, features), last_layers = SMALL_NETWORKS[name](), ()
    else:
        backbone, features, last_layers = _torchvision_backbone(name, image_size)
    layer = build_head(head, features, classes)
    network = Network(backbone, layer, head_name=head, last_layers=last_layers)
    if weights is not None:
        warm_start(network, open_weights(weights, name))
    return network


def _extension_backbone(name: str, image_size: int) -> tuple[nn.Module, int]:
    """Somebody's backbone, and its number of features for one black picture."""
    try:
        backbone = load_extension(name)()
        backbone.eval()
        with torch.no_grad():
            shape = tuple(backbone(torch.zeros(1, 3, image_size, image_size)).shape)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"backbone {name} must be a function without arguments that returns a module for "
            f"pictures (batch, 3, {image_size}, {image_size}): {error}"
        ) from error
    if len(shape) != 2:
        raise UsageError(f"backbone {name} must return features (batch, features), got {shape}")
    backbone.train()
    return backbone, shape[1]


def _torchvision_backbone(
    name: str, image_size: int | None
) -> tuple[nn.Module, int, tuple[str, ...]]:
    """The torchvision network without its last layer: module, features, name of that layer."""
    from torchvision import models

    network = models.get_model(name, weights=None, **_arguments(name, image_size))
    for module in network.modules():
        # PyTorch's default instead of MNASNet's 0.0003, which suits a week on ImageNet: after 400
        # steps its statistics are near their initial values, and sets on val no better than random.
        if isinstance(module, _BATCH_NORMS) and module.momentum is not None:
            module.momentum = module.momentum if module.momentum >= 0.01 else 0.1
    layer_name, features = _last_layer(network)
    parent, _, attribute = layer_name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    return network, features, (layer_name,)


def _arguments(name: str, image_size: int | None) -> dict[str, object]:
    if name in _WITH_AUXILIARY_HEADS:  # torchvision's weights expect values from -1 to 1
        return {"aux_logits": False, "init_weights": True, "transform_input": True}
    if image_size is not None and name.startswith("vit_"):
        return {"image_size": image_size}
    if image_size is not None and name.startswith("maxvit_"):
        return {"input_size": (image_size, image_size)}
    return {}


def _last_layer(network: nn.Module) -> tuple[str, int]:
    """Name and input features of the last linear layer, or of the last convolution (SqueezeNet)."""
    layers = list(network.named_modules())
    linear = [(name, layer.in_features) for name, layer in layers if isinstance(layer, nn.Linear)]
    if linear:
        return linear[-1]
    return [(name, layer.in_channels) for name, layer in layers if isinstance(layer, nn.Conv2d)][-1]

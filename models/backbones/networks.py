"""Networks by name: a backbone that turns a picture into features, and a head on top."""

from collections.abc import Callable, Mapping
from typing import Final

import torchvision
from torch import Tensor, nn

from models.backbones.blocks import block_of, blocks
from models.backbones.small_networks import densenet40_40, resnet18_small, tiny
from models.backbones.weights import open_weights, warm_start
from models.heads import build_head

SMALL_NETWORKS: Final[dict[str, Callable[[], tuple[nn.Module, int]]]] = {
    "densenet40_40": densenet40_40,
    "resnet18_small": resnet18_small,
    "tiny": tiny,
}
# By the beginning of a name: the smallest side of a picture, and what its side is a multiple of.
# fmt: off
_SIDES: Final[Mapping[str, tuple[int, int]]] = {
    "alexnet": (63, 1), "convnext_": (32, 1), "densenet1": (29, 1), "densenet2": (29, 1),
    "googlenet": (15, 1), "inception_v3": (75, 1), "maxvit_t": (224, 224),
    "squeezenet1_0": (21, 1), "squeezenet1_1": (17, 1), "vgg": (32, 1), "vit_b_16": (16, 16),
    "vit_b_32": (32, 32), "vit_h_14": (14, 14), "vit_l_16": (16, 16), "vit_l_32": (32, 32),
}
# fmt: on
_WITH_AUXILIARY_HEADS: Final = ("googlenet", "inception_v3")


class Network(nn.Module):
    """A backbone, pictures to features ``(batch, features)``, and a head, see ``models.heads``.

    ``classifier`` is the name of the last layer, which the head replaces, in the torchvision
    network's own state dict; empty for our own networks.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, *, head_name: str, classifier: str = ""
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.head_name, self.classifier = head_name, classifier
        self._fixed: list[str] = []  # modules of the backbone that stay in evaluation mode

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """What the head makes of normalised pictures, floats ``(batch, 3, height, width)``."""
        outputs: Tensor | tuple[Tensor, Tensor] = self.head(self.backbone(images))
        return outputs

    def train_only(self, last: int) -> None:
        """Train the head and the ``last`` blocks of the backbone alone.

        The others get no gradient, which costs no backward pass, and stay in evaluation mode: the
        statistics of their batch norms do not move. See ``backbones.blocks`` for what a block is.

        Raises:
            ValueError: There are fewer blocks.
        """
        found = blocks(self.backbone)
        if not 0 <= last <= len(found):
            raise ValueError(f"must be in [0, {len(found)}], the blocks of the network, got {last}")
        first = len(found) - last
        self._fixed = [name for names in found[:first] for name in names]
        numbers = block_of(self.backbone)
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(numbers[name] >= first)

    def train(self, mode: bool = True) -> "Network":
        """Set training mode, but for blocks that :meth:`train_only` left out."""
        super().train(mode)
        for name in self._fixed:
            self.backbone.get_submodule(name).eval()
        return self


def available() -> list[str]:
    """Every name that :func:`build` knows, sorted: our small ones and torchvision's classifiers."""
    return sorted({*SMALL_NETWORKS, *torchvision.models.list_models(module=torchvision.models)})


def side_taken(name: str, at_least: int) -> int:
    """The smallest side in pixels, but no less than ``at_least``, of pictures a network takes.

    Example:
        >>> side_taken("vit_b_16", 50), side_taken("vgg11", 16), side_taken("resnet18", 50)
        (64, 32, 50)
    """
    smallest, step = _side(name)
    return max(smallest, -(-at_least // step) * step)


def _side(name: str) -> tuple[int, int]:
    return next((side for start, side in _SIDES.items() if name.startswith(start)), (1, 1))


def build(
    name: str, classes: int, head: str, weights: str | None = None, *, image_size: int | None = None
) -> Network:
    """Make a network, its weights drawn from torch's random state or loaded.

    Args:
        name: One of :func:`available`.
        classes: Number of classes, the length of a row of logits.
        head: ``linear``, ``cosine`` or ``two_head``, see ``models.heads``.
        weights: None, or what ``weights.open_weights`` takes. The last layer is taken if it has
            the same kind and number of rows; ``weights.warm_start`` on the finished network goes
            by class id and says what it took.
        image_size: Side of the pictures in pixels, checked against what the network takes;
            ``vit_*`` and ``maxvit_t`` are built for it.

    Raises:
        ValueError: Unknown ``name`` or ``head``, ``classes < 1``, or an ``image_size`` that the
            network does not take.
        BundleError: The weights belong to another architecture or cannot be found or read.
    """
    if image_size is not None and side_taken(name, image_size) != image_size:
        smallest, step = _side(name)
        multiple = f"a multiple of {step} such as {side_taken(name, image_size)}"
        wanted = f"at least {smallest}" if step == 1 else multiple
        raise ValueError(f"image_size must be {wanted} for {name}, got {image_size}")
    if name in SMALL_NETWORKS:
        (backbone, features), classifier = SMALL_NETWORKS[name](), ""
    else:
        backbone, features, classifier = _torchvision_backbone(name, image_size)
    layer = build_head(head, features, classes)
    network = Network(backbone, layer, head_name=head, classifier=classifier)
    if weights is not None:
        warm_start(network, open_weights(weights, name))
    return network


def _torchvision_backbone(name: str, image_size: int | None) -> tuple[nn.Module, int, str]:
    """The torchvision network without its last layer: module, features, name of that layer."""
    if name not in available():
        raise ValueError(f"backbone must be one of {', '.join(available())}, got {name!r}")
    network = torchvision.models.get_model(name, weights=None, **_arguments(name, image_size))
    layer_name, features = _last_layer(network)
    parent, _, attribute = layer_name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    return network, features, layer_name


def _arguments(name: str, image_size: int | None) -> dict[str, object]:
    if name in _WITH_AUXILIARY_HEADS:  # torchvision's weights expect values from -1 to 1
        return {"aux_logits": False, "init_weights": True, "transform_input": True}
    if image_size is not None and name.startswith("vit_"):
        return {"image_size": image_size}
    if image_size is not None and name.startswith("maxvit_"):
        return {"input_size": (image_size, image_size)}
    return {}


def _last_layer(network: nn.Module) -> tuple[str, int]:
    """Name and inputs of the last linear layer, or of the last convolution (SqueezeNet)."""
    layers = list(network.named_modules())
    linear = [(name, layer.in_features) for name, layer in layers if isinstance(layer, nn.Linear)]
    if linear:
        return linear[-1]
    return [(name, layer.in_channels) for name, layer in layers if isinstance(layer, nn.Conv2d)][-1]

"""Networks by name: a backbone that turns a picture into features, and a head on top."""

import inspect
from collections.abc import Callable
from typing import Final

import torchvision
from torch import Tensor, nn

from models.heads import build_head
from models.small_networks import densenet40_40, resnet18_small, tiny
from models.weights import load_into, read_imagenet, read_weights

SMALL_NETWORKS: Final[dict[str, Callable[[], tuple[nn.Module, int]]]] = {
    "densenet40_40": densenet40_40,
    "resnet18_small": resnet18_small,
    "tiny": tiny,
}
_WITHOUT_LAST_LINEAR: Final = ("googlenet", "inception_v3", "squeezenet1_0", "squeezenet1_1")


class Network(nn.Module):
    """A backbone and a head.

    Attributes:
        backbone: Pictures to features ``(batch, features)``.
        head: Features to logits, see ``models.heads``.
        head_name: ``linear``, ``cosine`` or ``two_head``.
        classifier: Name of the last layer that the head replaces in the torchvision network,
            as it appears in that network's own state dict; empty for our own networks.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, *, head_name: str, classifier: str = ""
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.head_name = head_name
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of normalised pictures.

        Args:
            images: Shape ``(batch, 3, height, width)``, floating point, normalised.

        Returns:
            ``logits`` of shape ``(batch, classes)``, or for the two-head network the pair
            ``(multi_label_logits, sccp_logits)``.
        """
        outputs: Tensor | tuple[Tensor, Tensor] = self.head(self.backbone(images))
        return outputs


def available() -> list[str]:
    """Every name that :func:`build` knows, sorted."""
    torchvision_names = torchvision.models.list_models(module=torchvision.models)
    return sorted({*SMALL_NETWORKS, *torchvision_names} - set(_WITHOUT_LAST_LINEAR))


def build(
    name: str,
    classes: int,
    head: str,
    weights: str | None = None,
    *,
    image_size: int | None = None,
) -> Network:
    """Make a network, its weights drawn from torch's random state or loaded.

    Args:
        name: A torchvision classification network by its torchvision name, or
            ``densenet40_40``, ``resnet18_small``, ``tiny``.
        classes: Number of classes, the length of a row of logits.
        head: ``linear``, ``cosine`` or ``two_head``.
        weights: None; ``imagenet`` for torchvision's own download; or a ``.safetensors`` or
            ``.pt`` file with a state dict, of ours or of the torchvision network. The last
            layer of a file is taken when it fits and skipped when it was made for other
            classes or another head.
        image_size: Side of the pictures in pixels, for the networks that are built for one
            size (``vit_*`` and ``maxvit_t``); others ignore it.

    Raises:
        ValueError: Unknown ``name`` or ``head``, or ``classes < 1``.
        BundleError: The weights belong to another architecture or cannot be had.
    """
    if name in SMALL_NETWORKS:
        backbone, features = SMALL_NETWORKS[name]()
        classifier = ""
    else:
        backbone, features, classifier = _torchvision_backbone(name, image_size)
    layer = build_head(head, features, classes)
    network = Network(backbone, layer, head_name=head, classifier=classifier)
    if weights == "imagenet":
        load_into(network, read_imagenet(name), origin=f"the ImageNet weights of {name}")
    elif weights is not None:
        load_into(network, read_weights(weights), origin=weights)
    return network


def _torchvision_backbone(name: str, image_size: int | None) -> tuple[nn.Module, int, str]:
    """The torchvision network without its last linear layer: module, features, layer name."""
    if name not in available():
        raise ValueError(f"backbone must be one of {', '.join(available())}, got {name!r}")
    network = torchvision.models.get_model(name, weights=None, **_size_arguments(name, image_size))
    layer_name, layer = _last_linear(network)
    parent, _, attribute = layer_name.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    return network, layer.in_features, layer_name


def _size_arguments(name: str, image_size: int | None) -> dict[str, object]:
    if image_size is None:
        return {}
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if "input_size" in inspect.signature(torchvision.models.get_model_builder(name)).parameters:
        return {"input_size": (image_size, image_size)}
    return {}


def _last_linear(network: nn.Module) -> tuple[str, nn.Linear]:
    layers = [item for item in network.named_modules() if isinstance(item[1], nn.Linear)]
    name, layer = layers[-1]
    assert isinstance(layer, nn.Linear)
    return name, layer

"""Networks of torchvision, which is imported lazily, because that takes seconds."""

from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from florilege.models.backbones.architecture import (
    PRETRAINED,
    Architecture,
    Backbone,
    Pretrained,
)
from florilege.models.images import Preprocess

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


class TorchvisionNetwork(Architecture):
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

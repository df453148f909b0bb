"""Build networks by name: a backbone that turns a picture into features, and a head."""

from torch import Tensor, nn

from florilege.models.backbones.known_networks import architecture
from florilege.models.backbones.layer_groups import block_of
from florilege.models.backbones.torchvision_networks import BATCH_NORMS
from florilege.models.backbones.weights import open_weights, warm_start
from florilege.models.heads import build_head


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

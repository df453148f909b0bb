"""The cost of a row of a paper: steps and operations counted, GPU hours estimated."""

from dataclasses import dataclass
from typing import Final

from florilege.data.options import parse_options
from florilege.training.recipes.recipe import Recipe, read_yaml

COSTS: Final = read_yaml("costs.yaml")
_IMAGENET_CLASSES: Final = 1000

SUSTAINED: Final = 5e12
"""Operations per second that the estimates assume of a GPU in float32.

The published times amount to 3.4e12 (65 s per epoch of DenseNet 40-40, [N] 4.3) and 6.2e12 (a day
and a half of ResNet-18 on two cards, [B] 5.2), by the same count; current GPUs are faster.
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a whole run."""

    steps: int  # of the optimiser, one per batch
    pictures: int  # seen in training
    operations: float  # of the network, validation after each epoch included
    passes: float  # the work of the whole run, in training passes of one picture
    batch: int  # pictures per step
    step_seconds: float | None  # processor seconds per step, measured on a CPU

    @property
    def gpu_hours(self) -> float:
        """An estimate: the operations at the rate of :data:`SUSTAINED`."""
        return self.operations / SUSTAINED / 3600


def cost_of(recipe: Recipe) -> Cost | None:
    """The cost of a run of a recipe; None for a recipe for your own data."""
    if recipe.data not in COSTS["photos"]:
        return None
    settings = recipe.settings
    train, val = COSTS["photos"][recipe.data]
    _, options = parse_options(recipe.example)
    if options.per_class:
        train = options.per_class * _IMAGENET_CLASSES
    network, batch, epochs = (settings[name] for name in ("backbone", "batch_size", "epochs"))
    forward, forward_backward = COSTS["gigaflops"][network]
    passes = epochs * (train + val * forward / forward_backward)
    return Cost(
        steps=epochs * -(-train // batch),
        pictures=epochs * train,
        operations=passes * forward_backward * 1e9,
        passes=passes,
        batch=batch,
        step_seconds=COSTS["step_seconds"][network].get(batch),
    )

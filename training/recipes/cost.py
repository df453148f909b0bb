"""What the row of a paper costs: steps and arithmetic counted, hours on a GPU estimated."""

from dataclasses import dataclass
from typing import Final

from florilege.data.training_split import parse_options
from florilege.training.recipes.recipe import Recipe
from florilege.training.recipes.recipe_table import read_yaml

COSTS: Final = read_yaml("costs.yaml")
_IMAGENET_CLASSES: Final = 1000

SUSTAINED: Final = 5e12
"""Operations a second that the estimates take a GPU to sustain in float32.

The published times come to 3.4e12 (65 s an epoch of DenseNet 40-40, [N] 4.3) and 6.2e12 (a day and
a half of ResNet-18 on two cards, [B] 5.2), by the same count; today's GPUs do more.
"""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a whole run."""

    steps: int  # of the optimiser, one a batch
    pictures: int  # seen in training
    operations: float  # of the network, validation after each epoch included
    passes: float  # pictures in training that would be as much work as all of it
    batch: int  # pictures a step
    step_seconds: float | None  # of a processor, measured on a CPU

    @property
    def gpu_hours(self) -> float:
        """An estimate: the operations at the rate of :data:`SUSTAINED`."""
        return self.operations / SUSTAINED / 3600

    @property
    def processor_hours(self) -> float | None:
        """Of one core like the one that was measured."""
        if self.step_seconds is None:
            return None
        return self.step_seconds * self.passes / self.batch / 3600


def cost_of(recipe: Recipe) -> Cost | None:
    """What a run of a recipe costs; None for ours, whose data are yours."""
    if recipe.data not in COSTS["photos"]:
        return None
    settings = recipe.settings
    train, val = COSTS["photos"][recipe.data]
    _, options = parse_options(recipe.example)
    if options.per_class:
        train = options.per_class * _IMAGENET_CLASSES
    network, batch, epochs = (settings[name] for name in ("backbone", "batch_size", "epochs"))
    forward, both = COSTS["gigaflops"][network]
    passes = epochs * (train + val * forward / both)
    return Cost(
        steps=epochs * -(-train // batch),
        pictures=epochs * train,
        operations=passes * both * 1e9,
        passes=passes,
        batch=batch,
        step_seconds=COSTS["step_seconds"][network].get(batch),
    )

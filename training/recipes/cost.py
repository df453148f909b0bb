"""What the row of a paper costs: steps and arithmetic counted, hours on a GPU estimated.

Nothing here was measured on a GPU. `python -m benchmarks.sets.recipes NAME --device cuda --steps
300` does that for any row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from florilege.data.training_split import parse_options
from florilege.training.recipes.recipe import Recipe

# Photos to learn from and of val, as published (Pl@ntNet-300K: Garcin et al., NeurIPS 2021;
# ImageNet-LT: Liu et al., CVPR 2019); of ImageNet after 50 of each class are held out.
PHOTOS: Final[Mapping[str, tuple[int, int]]] = {
    "cifar-100-python": (45_000, 5_000),
    "plantnet_300K": (243_916, 31_118),
    "imagenet": (1_231_167, 50_000),
    "ImageNet_LT": (115_846, 20_000),
}
_IMAGENET_CLASSES: Final = 1000

# Gigaflops of a picture, forward alone and forward and backward, by network and side: a multiply
# and an add count two; torch.utils.flop_counter, by the test of this module.
GIGAFLOPS: Final[Mapping[tuple[str, int], tuple[float, float]]] = {
    ("densenet40_40", 32): (1.598, 4.789),
    ("resnet18", 224): (3.628, 10.649),
    ("resnet34", 224): (7.328, 21.747),
    ("resnet50", 224): (8.179, 24.300),
    ("densenet169", 224): (6.720, 19.924),
    ("vit_b_16", 224): (35.128, 105.152),
}

# Processor seconds of a step, by network, side and batch: docs/recipes.md says how measured.
STEP_SECONDS: Final[Mapping[tuple[str, int, int], float]] = {
    ("densenet40_40", 32, 64): 3.82,
    ("resnet18", 224, 32): 3.35,
    ("resnet18", 224, 256): 31.2,
    ("resnet34", 224, 32): 5.54,
    ("resnet34", 224, 128): 25.5,
    ("resnet50", 224, 32): 8.14,
    ("densenet169", 224, 32): 10.8,
    ("vit_b_16", 224, 32): 31.2,
}

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
    if recipe.data not in PHOTOS:
        return None
    settings = recipe.settings
    train, val = PHOTOS[recipe.data]
    _, options = parse_options(recipe.example)
    if options.per_class:
        train = options.per_class * _IMAGENET_CLASSES
    network, side, batch, epochs = (
        settings[name] for name in ("backbone", "image_size", "batch_size", "epochs")
    )
    forward, both = GIGAFLOPS[network, side]
    passes = epochs * (train + val * forward / both)
    return Cost(
        steps=epochs * -(-train // batch),
        pictures=epochs * train,
        operations=passes * both * 1e9,
        passes=passes,
        batch=batch,
        step_seconds=STEP_SECONDS.get((network, side, batch)),
    )

"""Our own starting points."""

from collections.abc import Mapping
from typing import Any, Final

from florilege.training.recipes.recipe import Recipe

# Drawing a picture costs less than a step on it, so there are many. Bells hang: pictures are
# mirrored left for right alone. What else was tried stands in docs/results.md.
_FLORA: Final[Mapping[str, Any]] = {
    "backbone": "tiny_patches",
    "loss": {"name": "cross_entropy"},
    "image_size": 48,
    "batch_size": 64,
    "precision": "fast",
    "optimiser": {"learning_rate": 0.1, "weight_decay": 5e-4, "multi_label_rate": 3.0},
    "average": {"decay": 0.998},
    "schedule": {"name": "cosine", "warmup_epochs": 0.15},
    "augment": {"min_area": 1.0, "max_stretch": 1.0, "flip": 0.5},
}

_FROZEN: Final[Mapping[str, Any]] = {
    "freeze": "backbone",
    "weights": "pretrained",
    "loss": {"name": "generalised_cross_entropy", "q": 0.5},  # field labels; docs/results.md
    "blend": True,
    "epochs": 20,
    "optimiser": {"learning_rate": 0.1, "weight_decay": 0.02, "multi_label_rate": 3.0},
}

_SMALL_PHOTOS: Final[Mapping[str, Any]] = {
    "backbone": "tiny",
    "image_size": 96,
    "epochs": 60,
    "batch_size": 64,
    "precision": "fast",
    "optimiser": {"learning_rate": 0.05, "weight_decay": 5e-4, "multi_label_rate": 3.0},
    "schedule": {"name": "cosine", "warmup_epochs": 2.0},
    "augment": {"min_area": 0.35, "colour": 0.2},
}

RECIPES: Final[Mapping[str, Recipe]] = {
    "default": Recipe(
        about="photos of ordinary size",
        settings={},
        cost="110 processor seconds for 1,000 photos an epoch on a CPU",
    ),
    "frozen": Recipe(
        about="a head on the features of a pretrained network; what `--freeze backbone` takes "
        "unless you name another",
        settings=_FROZEN,
        cost="seconds on a CPU, once the features are computed",
    ),
    "demo": Recipe(
        about="the built-in flora and the network `tiny_patches`, two CPU cores",
        settings={**_FLORA, "data": "flora:train=80000", "epochs": 4},
        cost="about 3 minutes on two CPU cores",
    ),
    "flora": Recipe(
        about="the same for longer, for `make speedrun`",
        settings={**_FLORA, "data": "flora:train=100000", "epochs": 9},
        cost="932 processor seconds, docs/results.md",
    ),
    "small-photos": Recipe(
        about="a few thousand small photos from scratch on a CPU",
        settings=_SMALL_PHOTOS,
        cost="5 processor seconds for 1,000 photos an epoch",
    ),
}

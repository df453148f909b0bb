"""Named starting points, chosen with ``--recipe``; flags and files override single settings."""

from collections.abc import Mapping
from typing import Any, Final

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

RECIPES: Final[Mapping[str, Mapping[str, Any]]] = {
    # Fine-tuning or training on photos of ordinary size: the defaults of training.config.
    "default": {},
    # A head on the features of a pretrained network: seconds, once the features are computed.
    "frozen": {
        "freeze": "backbone",
        "weights": "pretrained",
        "loss": {"name": "generalised_cross_entropy", "q": 0.5},  # field labels; docs/results.md
        "lda": True,
        "epochs": 20,
        "optimiser": {"learning_rate": 0.1, "weight_decay": 0.02, "multi_label_rate": 3.0},
    },
    # The built-in flora on two CPU cores in about three minutes.
    "demo": {**_FLORA, "data": "flora:train=80000", "epochs": 4},
    # The same for longer, for `make speedrun`: half a point below the best possible is the goal.
    "flora": {**_FLORA, "data": "flora:train=100000", "epochs": 9},
    # A few thousand small photos from scratch on a CPU.
    "small-photos": {
        "backbone": "tiny",
        "image_size": 96,
        "epochs": 60,
        "batch_size": 64,
        "precision": "fast",
        "optimiser": {"learning_rate": 0.05, "weight_decay": 5e-4, "multi_label_rate": 3.0},
        "schedule": {"name": "cosine", "warmup_epochs": 2.0},
        "augment": {"min_area": 0.35, "colour": 0.2},
    },
    # [A] section 6.2; black shifts of 4 pixels and flips as in the code of [B] and [N].
    "cifar100-densenet40": {
        "backbone": "densenet40_40",
        "loss": {"name": "two_head_average_k", "average_k": 5, "alpha": 0.3},
        "image_size": 32,
        "epochs": 300,
        "batch_size": 64,
        "optimiser": {"learning_rate": 0.1, "weight_decay": 1e-4, "decay_all": True},
        "schedule": {"name": "step", "milestones": [150, 225], "factor": 0.1},
        "augment": {
            "min_area": 1.0,
            "max_stretch": 1.0,
            "flip": 0.5,
            "shift": 4,
            "border": "black",
        },
        "validation": {"k": 5},
    },
    # [A] section 6.3; random 224 px crops at a short side of 256 px, as in the data set's own code.
    "plantnet300k-resnet18": {
        "backbone": "resnet18",
        "weights": "pretrained",
        "loss": {"name": "two_head_average_k", "average_k": 5, "alpha": 5.0},
        "image_size": 224,
        "crop_fraction": 0.875,
        "epochs": 30,
        "batch_size": 32,
        "optimiser": {"learning_rate": 0.002, "weight_decay": 1e-4, "decay_all": True},
        "schedule": {"name": "step", "milestones": [25], "factor": 0.1},
        "augment": {"min_area": 0.765625, "max_area": 0.765625, "max_stretch": 1.0, "flip": 0.5},
        "validation": {"k": 5},
    },
}

"""The rows of [B] table 2: ImageNet and subsets of it, top-5 accuracy.

[B] Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification", ICLR 2018.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from florilege.training.recipes.recipe import CROP, CROP_ONCE, DECAY, Printed, Recipe

# Training pictures of each class, and top-5 accuracy of CE and of L5,0.1.
_SUBSETS: Final[Mapping[str, tuple[int | None, float, float]]] = {
    "5pct": (64, 58.31, 60.44),
    "10pct": (128, 71.06, 73.10),
    "25pct": (320, 82.62, 83.38),
    "50pct": (640, 87.57, 87.87),
    "all": (None, 90.67, 90.61),
}

# Loss, learning rate and weight decay ([B] 5.2).
_METHODS: Final[Mapping[str, tuple[dict[str, Any], float, float]]] = {
    "ce": ({"name": "cross_entropy"}, 0.1, 1e-4),
    "smooth": ({"name": "smooth_top_k", "k": 5, "tau": 0.1}, 1.0, 2.5e-5),
}

_TWO_GPUS: Final = {"ce": 72, "smooth": 79}  # hours: a day and a half on two; 10 % longer

_COST: Final = (
    "a day and a half with CE on two Titan Xp, a tenth more with the other loss ([B] 5.2)"
)

_DEPARTURES: Final = (
    "a test picture is its centre alone, where print averages ten crops; and its classes are "
    "ranked by their scores, where print ranks by the top-5 marginals of appendix C, which it says "
    "gives at least 0.2 points, and CE up to 1 where pictures are few",
    "which pictures are in a subset and in val is not what the code of [B] draws",
    CROP_ONCE,
    DECAY,
)


def recipes() -> dict[str, Recipe]:
    """All of them by name."""
    return dict(imagenet())


def imagenet() -> Iterator[tuple[str, Recipe]]:
    """[B] table 2: ResNet-18 from scratch, 120 epochs, tenths after 30, 60 and 90, batches of 256.

    Departures: neither ten crops nor marginals at the test; other draws of the subsets; weight
    decay, on which print is silent, is torch's.
    """
    for column, (method, (loss, rate, decay)) in enumerate(_METHODS.items()):
        name = ("CE", "L5,0.1")[column]
        for subset, (per_class, *percents) in _SUBSETS.items():
            share = subset.replace("pct", " %").replace("all", "100 %")
            source = f"[B] table 2, row {share}, {name}"
            yield (
                f"imagenet-{subset}-{method}-k5",
                Recipe(
                    about=f"{name} loss on {share} of ImageNet, top-5 accuracy, resnet18",
                    settings={
                        "backbone": "resnet18",
                        "weights": None,
                        "image_size": 224,
                        "crop_fraction": 224 / 256,
                        "epochs": 120,
                        "batch_size": 256,
                        "precision": "fp32",
                        "optimiser": {
                            "learning_rate": rate,
                            "weight_decay": decay,
                            "decay_all": True,
                        },
                        "schedule": {"name": "step", "milestones": (30, 60, 90), "factor": 0.1},
                        "augment": {**CROP, "flip": 0.5},
                        "loss": loss,
                        "validation": {"metric": "top_k", "k": 5},
                    },
                    data="imagenet",
                    options="hold_out=50" + (f",per_class={per_class}" if per_class else ""),
                    source=source,
                    printed=(
                        Printed(metric="top_k", k=5, percent=percents[column], source=source),
                    ),
                    departures=_DEPARTURES,
                    gpu_hours=None if per_class else _TWO_GPUS[method],
                    cost="" if per_class else _COST,
                ),
            )

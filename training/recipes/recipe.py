"""What a recipe holds, and what the recipes of the papers share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from training.metric import Metric, MetricName


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A figure of a published table, of test photos."""

    metric: MetricName
    k: int
    percent: float
    interval: float | None = None  # half of the 95 % interval, where it is printed
    source: str  # such as "[A] table 1, row AVG-K"

    def __str__(self) -> str:
        """In few words, such as ``average-5 97.35 ± 0.06``."""
        name = str(Metric(name=self.metric, k=self.k)).removesuffix(" accuracy")
        spread = "" if self.interval is None else f" ± {self.interval:.2f}"
        return f"{name} {self.percent:.2f}{spread}"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings under a name; for a row of a paper also what was printed."""

    about: str  # what it is for
    settings: Mapping[str, Any]
    data: str = ""  # the data set of a row, as its folder may be called
    options: str = ""  # of the data, such as ``noise=0.2``: added where ``--data`` names no other
    source: str = ""  # paper, table and row
    printed: tuple[Printed, ...] = ()
    departures: tuple[str, ...] = ()  # from print, or what is ours because print is silent
    gpu_hours: float | None = None  # of a run, by print; `training.recipes.cost` estimates others
    cost: str = ""  # where those come from; or what a run costs without a GPU

    @property
    def example(self) -> str:
        """What ``--data`` may look like; the options may be left out."""
        return f"{self.data}:{self.options}" if self.options else self.data


CIFAR_100: Final[Mapping[str, Any]] = {
    "backbone": "densenet40_40",
    "image_size": 32,
    "crop_fraction": 1.0,
    "mean": (125.3 / 255, 123.0 / 255, 113.9 / 255),
    "std": (63.0 / 255, 62.1 / 255, 66.7 / 255),
    "epochs": 300,
    "batch_size": 64,
    "precision": "fp32",
    "optimiser": {"learning_rate": 0.1, "weight_decay": 1e-4, "decay_all": True},
    "schedule": {"name": "step", "milestones": (150, 225), "factor": 0.1},
    "augment": {"min_area": 1.0, "max_stretch": 1.0, "flip": 0.5, "shift": 4, "border": "black"},
}
"""[A] 6.2, [B] 5.1 and [N] 4.4 train alike; pictures as [B] prints, their mean as in its code."""

# A random square of 224 pixels from a picture whose short side is 256.
CROP: Final[Mapping[str, Any]] = {
    "min_area": (224 / 256) ** 2,
    "max_area": (224 / 256) ** 2,
    "max_stretch": 1.0,
}

PLANTNET: Final[Mapping[str, Any]] = {
    "weights": "pretrained",
    "image_size": 224,
    "crop_fraction": 224 / 256,
    "epochs": 30,
    "batch_size": 32,
    "precision": "fp32",
    "optimiser": {"learning_rate": 0.002, "weight_decay": 1e-4, "decay_all": True},
    "augment": {**CROP, "flip": 0.0},
}
"""[A] 6.3 and [N] 4.5, but for the schedule; pictures as in the code of [N] and Pl@ntNet-300K."""

# What any row departs in.
VAL_CIFAR: Final = "val is 5,000 pictures, 50 of each class, always the same ones, for every seed"
DECAY: Final = "weight decay reaches biases and normalisation weights, as in torch's SGD (silent)"
CROP_ONCE: Final = "the crop and its resizing are one step, at fractions of a pixel"
SCORES: Final = "the scores that are compared are softmax or sigmoid, whichever is better on val"

"""What a recipe holds, and what the recipes of the papers share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from florilege.data.layouts import cifar100, image_lists, imagenet_folder, plantnet_300k
from florilege.training.validation_metric import Metric, MetricName

_PLACES: Final[Mapping[str, str]] = {
    "cifar-100-python": cifar100.PLACE,
    "plantnet_300K": plantnet_300k.PLACE,
    "imagenet": imagenet_folder.PLACE,
    "ImageNet_LT": image_lists.LISTS,
}


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A figure of a published table, of test photos."""

    metric: MetricName
    k: int
    percent: float
    interval: float | None = None  # half of the 95 % interval, where it is printed
    deviation: float | None = None  # standard deviation over seeds, where that is printed
    source: str  # such as "[A] table 1, row AVG-K"

    def __str__(self) -> str:
        """In few words, such as ``average-5 97.35 ± 0.06``."""
        return f"{self.name} {self.value}"

    @property
    def name(self) -> str:
        """Of what, such as ``average-5``."""
        return str(Metric(name=self.metric, k=self.k)).removesuffix(" accuracy")

    @property
    def value(self) -> str:
        """The figure with its spread, such as ``97.35 ± 0.06`` or ``94.34 (sd 0.09)``."""
        spread = "" if self.interval is None else f" ± {self.interval:.2f}"
        spread = spread if self.deviation is None else f" (sd {self.deviation:.2f})"
        return f"{self.percent:.2f}{spread}"

    @property
    def paper(self) -> str:
        """The tag of the paper, such as ``[A]``."""
        return self.source.partition(" ")[0]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings under a name; for a row of a paper also what was printed."""

    about: str  # what it is for
    settings: Mapping[str, Any]
    data: str = ""  # the data set of a row, as its folder may be called
    options: str = ""  # of the data, such as ``noise=0.2``: added where ``--data`` names no other
    source: str = ""  # paper, table and row, such as "[A] table 1, row AVG-5"
    printed: tuple[Printed, ...] = ()
    departures: tuple[str, ...] = ()  # from print, or what is ours where print is silent
    gpu_hours: float | None = (
        None  # of a run, by print; `florilege.training.recipes.cost` estimates others
    )
    cost: str = ""  # where those come from; or what a run costs without a GPU

    @property
    def place(self) -> str:
        """What data it is for and where they are; empty where the data are yours."""
        return f"this recipe is for {self.data}: {_PLACES[self.data]}" if self.data else ""

    @property
    def loss(self) -> str:
        """The loss it names, if any."""
        return str(self.settings.get("loss", {}).get("name", ""))

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
DECAY: Final = (
    "weight decay reaches biases and normalisation weights, as in torch's SGD; print is silent"
)
CROP_ONCE: Final = "the crop and its resizing are one step, at fractions of a pixel"
SCORES: Final = (
    "the scores that are compared are softmax or sigmoid, whichever is better on val; print takes "
    "the softmax"
)
_PER_SAMPLE: Final = (
    "noise is drawn for each picture, as in the code of [N]; in print a batch shares it"
)
_SCALED: Final = (
    "the scale multiplies margin and scores alike, as in the code of the losses' papers; in print "
    "the scores alone"
)
OF_LOSS: Final[Mapping[str, tuple[str, ...]]] = {
    "focal": ("the loss is (1 - p)^gamma CE; the formula of [N] table 1 is a misprint",),
    "imbalanced_noised_top_k": (_PER_SAMPLE, _SCALED),
    "ldam": (_SCALED,),
    "noised_top_k": (_PER_SAMPLE,),
    "role": (
        "the loss is divided by the batch, in the code that print builds on by the classes too",
        "the estimates move by 0.016 of their own picture's gradient: what the network's first "
        "rate of 0.1 comes to with batches of 64 and a momentum of 0.9. In print they follow its "
        "optimiser, at one times its rate, which falls",
    ),
    "two_head_average_k": (
        "the label is no negative and every sum is divided by the number of its terms; in eq. 14 "
        "the label is among the negatives",
    ),
}
"""What any row of a loss departs in; docs/losses.md has the whole list."""

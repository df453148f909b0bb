"""A recipe: named settings, and the figures that a paper publishes for them."""

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
class PublishedFigure:
    """A figure on test photos from a published table."""

    metric: MetricName
    k: int
    percent: float
    interval: float | None = None  # half of the 95 % interval, if published
    deviation: float | None = None  # standard deviation over seeds, if published
    source: str  # such as "[A] table 1, row AVG-K"

    def __str__(self) -> str:
        """Metric and value, such as ``average-5 97.35 ± 0.06``."""
        return f"{self.name} {self.value}"

    @property
    def name(self) -> str:
        """The metric, such as ``average-5``."""
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
    """Settings under a name; for a row of a paper also its published figures."""

    about: str  # what it is for
    settings: Mapping[str, Any]
    data: str = ""  # the data set of a row, as its folder may be called
    options: str = ""  # of the data, such as ``noise=0.2``: added unless ``--data`` has others
    source: str = ""  # paper, table and row, such as "[A] table 1, row AVG-5"
    printed: tuple[PublishedFigure, ...] = ()
    departures: tuple[str, ...] = ()  # from the paper, and our choices where it is silent
    gpu_hours: float | None = None  # of a run, as published; `recipes.cost` estimates others
    cost: str = ""  # source of the GPU hours, or the cost of a run without a GPU

    @property
    def place(self) -> str:
        """The data it is for and where to get them; empty for your own data."""
        return f"this recipe is for {self.data}: {_PLACES[self.data]}" if self.data else ""

    @property
    def loss(self) -> str:
        """The loss it names, if any."""
        return str(self.settings.get("loss", {}).get("name", ""))

    @property
    def example(self) -> str:
        """An example of ``--data``; the options may be left out."""
        return f"{self.data}:{self.options}" if self.options else self.data

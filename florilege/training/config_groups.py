"""The settings of a run that stand together in a group, such as ``optimiser.name``.

They are imported from ``florilege.training.config``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
WHOLE = BeforeValidator(lambda x: int(x) if isinstance(x, float) and x.is_integer() else x)
Count = Annotated[int, Field(ge=0), WHOLE]
AtLeastOne = Annotated[int, Field(ge=1), WHOLE]
Border = Literal["reflected", "black"]
MetricName = Literal["average_k", "top_k", "macro_average_k", "macro_top_k"]


class SettingsGroup(BaseModel):
    """Immutable settings, validated on construction."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


OWN_DEFAULTS: Final[Mapping[str, Mapping[str, float | None]]] = {
    "adamw": {"learning_rate": 1e-3, "weight_decay": 0.05, "momentum": None, "nesterov": None},
    "lbfgs": {"learning_rate": None, "weight_decay": None, "momentum": None, "nesterov": None},
}
"""Defaults of an optimiser where they differ from the field defaults, which are those of sgd."""
_USERS: Final = {
    "learning_rate": ("sgd", "adamw"),
    "weight_decay": ("sgd", "adamw", "lbfgs"),
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
}
"""Which optimisers use a setting that others leave at null."""
_CHOICE: Final = ("weight_decay", "lbfgs")  # null, because val chooses it
CLIP_NORM: Final = 1.0
"""Largest norm of the gradient of a network without normalisation layers."""


class OptimiserConfig(SettingsGroup):
    """The optimiser; see ``florilege.training.loop.training_state``."""

    name: Literal["sgd", "adamw", "lbfgs"] = "sgd"
    """Stochastic gradient descent, Adam with decoupled weight decay, or, for a head with `freeze`,
    L-BFGS over all photos at once: it needs no rate, schedule or batches."""
    learning_rate: float | None = Field(default=0.05, gt=0, le=1e30)
    """Peak learning rate; 0.001 with `adamw`."""
    momentum: float | None = Field(default=0.9, ge=0, lt=1)
    """`sgd`: share of each step that carries over into the next."""
    nesterov: bool | None = True
    """`sgd`: Nesterov's form of the momentum; needs `momentum` > 0."""
    weight_decay: float | None = Field(default=1e-4, ge=0, le=1e30)
    """`sgd`: L2 penalty; `adamw`: decoupled decay, relative to the learning rate, 0.05; `lbfgs`: L2
    penalty on standardised features, null lets `val` choose one of 0.01, 0.03, 0.1, 0.3, 1, 3, or
    beyond while accuracy rises; of smaller ones for more than 100 classes."""
    decay_all: bool = False
    """Apply weight decay to biases, normalisation weights, class tokens, position embeddings and
    bias tables too, as the papers do."""
    multi_label_rate: Positive = 1.0
    """Multiplier of the learning rate for the multi-label head."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Multiplier of the learning rate from each block of the backbone to the one below it."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient; null does not clip. The default is 1 for a network without
    normalisation layers, such as `vgg16`, `alexnet` or `squeezenet1_1`."""

    @property
    def peak_rate(self) -> float:
        """The learning rate, 0 where there is none."""
        return self.learning_rate or 0.0

    @property
    def l2(self) -> float:
        """The weight decay, 0 where `val` chooses it."""
        return self.weight_decay or 0.0

    @model_validator(mode="before")
    @classmethod
    def _some_have_their_own_defaults(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {**OWN_DEFAULTS.get(str(values.get("name")), {}), **values}

    @model_validator(mode="after")
    def _settings_are_of_this_optimiser(self) -> Self:
        for key, names in _USERS.items():
            value = getattr(self, key)
            if value is None and self.name in names and (key, self.name) != _CHOICE:
                raise ValueError(f"{key} must be given for {self.name}, got None")
            if value is not None and self.name not in names:
                users = " and ".join(names)
                raise ValueError(f"{key} must be left out: it is for {users}, got {value}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov must be false when momentum is 0, got True")
        return self


class AverageConfig(SettingsGroup):
    """Moving average of the weights; see ``florilege.training.loop.training_state``."""

    decay: float | None = Field(default=None, gt=0, lt=1)
    """Share of the average that each step keeps, such as 0.999; the averaged weights are then
    validated, saved and exported. Null does not average."""


class ScheduleConfig(SettingsGroup):
    """The learning rate over time; see ``florilege.training.loop.training_state``."""

    name: Literal["cosine", "step", "constant"] = "cosine"
    """Shape of the curve after the warm-up."""
    warmup_epochs: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Epochs of linear rise from near 0; may be a fraction."""
    milestones: tuple[float, ...] = Field(default=(), strict=False)
    """`step`: ascending epochs after which the rate is multiplied by `factor`."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """`step`: multiplier of the rate at each milestone."""
    final: Share = 0.0
    """`cosine`: share of the peak rate left at the end."""

    @model_validator(mode="after")
    def _milestones_ascend(self) -> Self:
        ascending = list(self.milestones) == sorted(set(self.milestones))
        if not (ascending and all(map(math.isfinite, self.milestones))):
            raise ValueError(f"milestones must be ascending epochs, got {self.milestones}")
        return self


class AugmentConfig(SettingsGroup):
    """Augmentation of training pictures; see ``florilege.training.batches.augmentation``."""

    min_area: float = Field(default=0.35, gt=0, le=1)
    """Smallest area of the random crop, as a share of the largest square that fits."""
    max_area: float = Field(default=1.0, gt=0, le=1)
    """Largest area of the crop, as the same share; at least `min_area`."""
    max_stretch: float = Field(default=4 / 3, ge=1, allow_inf_nan=False)
    """Largest ratio of width to height of the crop; the smallest is its inverse."""
    flip: Share = 0.5
    """Probability of a left-right flip."""
    flip_vertical: Share = 0.0
    """Probability of an upside-down flip."""
    transpose: Share = 0.0
    """Probability of mirroring along the diagonal; when it and both flips are one half, all eight
    quarter turns and mirrorings are equally likely."""
    shift: Count = 0
    """Largest random shift, in input pixels."""
    rotate: float = Field(default=0.0, ge=0, le=180)
    """Largest rotation either way, in degrees."""
    border: Border = "reflected"
    """What fills the border after a shift or a rotation: the picture reflected, or black."""
    colour: float = Field(default=0.0, ge=0, lt=1)
    """Largest relative change of brightness, contrast and saturation."""
    randaugment: Count = 0
    """Random operations on each picture by torchvision's RandAugment, after the others; 0 turns it
    off, 2 is usual."""
    magnitude: Annotated[int, Field(ge=0, le=30), WHOLE] = 9
    """Strength of the operations of `randaugment`."""

    @model_validator(mode="after")
    def _areas_ascend(self) -> Self:
        if self.max_area < self.min_area:
            raise ValueError(f"max_area must be in [min_area, 1], got {self.max_area}")
        return self


_PREFIX: Final = "val_"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A kind of accuracy and its K.

    ``average_k`` and ``top_k`` are shares of photos, their ``macro`` forms means of the shares of
    each class; see ``florilege.calibration.metrics``.
    """

    name: MetricName
    k: float

    @property
    def macro(self) -> bool:
        """Whether every class counts the same."""
        return self.name.startswith("macro_")

    @property
    def fixed_size(self) -> bool:
        """Whether all sets have K classes, not K on average."""
        return self.name.endswith("top_k")

    def __str__(self) -> str:
        """In words, such as ``macro average-3 accuracy``."""
        macro = "macro " if self.macro else ""
        return f"{macro}{'top' if self.fixed_size else 'average'}-{self.k:g} accuracy"

    @property
    def sets(self) -> str:
        """The size of the sets it measures, for people, such as ``3 on average``."""
        size = "always" if self.fixed_size else "on average"
        return f"{self.k:g} {size}{', mean over classes' if self.macro else ''}"

    @property
    def column(self) -> str:
        """Column of ``metrics.csv`` that holds K, such as ``val_macro_average_k``."""
        return f"{_PREFIX}{self.name}"

    @property
    def prefix(self) -> str:
        """Prefix of the columns of its values, such as ``val_macro_average_3_``."""
        return f"{self.column.removesuffix('k')}{self.k:g}_"

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """That which chose a row of ``metrics.csv``; a ``KeyError`` if it names none."""
        for name in get_args(MetricName):
            if f"{_PREFIX}{name}" in row:
                return cls(name=name, k=float(row[f"{_PREFIX}{name}"]))
        raise KeyError(f"{_PREFIX}average_k")

    def column_of(self, head: str, score_kind: str) -> str:
        """Column of its value; the score kind does not matter for sets of a fixed size."""
        return f"{self.prefix}{head}" if self.fixed_size else f"{self.prefix}{head}_{score_kind}"


class ValidationConfig(SettingsGroup):
    """The metric that chooses the checkpoint, and early stopping."""

    metric: MetricName = "average_k"
    """Accuracy on `val` that chooses the checkpoint: of sets of K classes on average or of the K
    best classes, averaged over photos or, with `macro`, over classes."""
    k: float = Field(default=3.0, ge=1, allow_inf_nan=False)
    """K of the metric, lowered to the number of classes minus one if larger; whole for `top_k`."""
    patience: AtLeastOne | None = None
    """Stop after this many epochs without improvement; null trains to the end."""

    @model_validator(mode="after")
    def _sets_of_a_fixed_size_are_whole(self) -> Self:
        if self.chosen_by.fixed_size and not self.k.is_integer():
            raise ValueError(f"k must be a whole number for {self.metric}, got {self.k}")
        return self

    @property
    def chosen_by(self) -> Metric:
        """Kind and K of the accuracy."""
        return Metric(name=self.metric, k=self.k)


class CheckpointConfig(SettingsGroup):
    """How often ``last.pt`` is written, apart from the end of each epoch."""

    every_seconds: Positive = 120.0
    """Write `last.pt` at the first step after this many seconds."""
    every_steps: AtLeastOne | None = None
    """Write `last.pt` after this many steps too."""

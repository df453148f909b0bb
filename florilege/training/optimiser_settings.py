"""Settings of the optimiser, its learning rate over time, and the average of its weights."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


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
    """The optimiser; see ``florilege.training.optimisation``."""

    name: Literal["sgd", "adamw", "lbfgs"] = "sgd"
    """Stochastic gradient descent, Adam with decoupled weight decay, or, for a head with `freeze`,
    L-BFGS over all photos at once: it needs no rate, schedule or batches."""
    learning_rate: Positive | None = 0.05
    """Peak learning rate; 0.001 with `adamw`."""
    momentum: float | None = Field(default=0.9, ge=0, lt=1)
    """`sgd`: share of each step that carries over into the next."""
    nesterov: bool | None = True
    """`sgd`: Nesterov's form of the momentum; needs `momentum` > 0."""
    weight_decay: float | None = Field(default=1e-4, ge=0)
    """`sgd`: L2 penalty; `adamw`: decoupled decay, relative to the learning rate, 0.05; `lbfgs`: L2
    penalty on standardised features, null lets `val` choose one of 0.01, 0.03, 0.1, 0.3, 1, 3; of
    smaller ones for more than 100 classes."""
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
    """Moving average of the weights; see ``florilege.training.optimisation``."""

    decay: float | None = Field(default=None, gt=0, lt=1)
    """Share of the average that each step keeps, such as 0.999; the averaged weights are then
    validated, saved and exported. Null does not average."""


class ScheduleConfig(SettingsGroup):
    """The learning rate over time; see ``florilege.training.optimisation``."""

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

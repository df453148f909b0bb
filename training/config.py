"""Every setting of a training run, one field each: its type, range, default and meaning.

``--set``, flags, ``config.yaml``, messages and the table in ``docs/training.md`` are made from the
fields. ``training.settings`` merges the places where settings are given.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

DEFAULT_LOSS: Final = "two_head_average_k"

_WHOLE = BeforeValidator(lambda x: int(x) if isinstance(x, float) and x.is_integer() else x)
Whole = Annotated[int, _WHOLE]
Count = Annotated[int, Field(ge=0), _WHOLE]
AtLeastOne = Annotated[int, Field(ge=1), _WHOLE]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, BeforeValidator(lambda x: str(x) if isinstance(x, Path) else x)]


class Group(BaseModel):
    """Settings that are checked when they are made and never change."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class OptimiserConfig(Group):
    """Stochastic gradient descent."""

    learning_rate: Positive = 0.05
    """Peak learning rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of each step that carries over into the next."""
    nesterov: bool = True
    """Nesterov's form of the momentum; needs `momentum` > 0."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """L2 penalty."""
    decay_all: bool = False
    """Apply weight decay to biases and normalisation weights too, as the papers do."""
    multi_label_rate: Positive = 1.0
    """Multiplier of the learning rate for the multi-label head."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient; null does not clip."""

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov must be false when momentum is 0, got True")
        return self


class ScheduleConfig(Group):
    """The learning rate over time, as a share of its peak; see ``training.optimiser``."""

    name: Literal["cosine", "step", "constant"] = "cosine"
    """Shape of the curve after the warm-up."""
    warmup_epochs: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Linear rise from near 0; may be a fraction."""
    milestones: tuple[float, ...] = Field(default=(), strict=False)
    """`step`: rising epochs after which the rate is multiplied by `factor`."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """`step`: multiplier of the rate at each milestone."""
    final: Share = 0.0
    """`cosine`: share of the peak rate left at the end."""

    @model_validator(mode="after")
    def _milestones_rise(self) -> Self:
        rising = list(self.milestones) == sorted(set(self.milestones))
        if not (rising and all(map(math.isfinite, self.milestones))):
            raise ValueError(f"milestones must be rising epochs, got {self.milestones}")
        return self


class AugmentConfig(Group):
    """Random changes of training pictures that keep their label; see ``training.augment``."""

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
    """Largest random shift, in input pixels; the border is filled by reflection."""
    rotate: float = Field(default=0.0, ge=0, le=180)
    """Largest rotation either way, in degrees."""
    colour: float = Field(default=0.0, ge=0, lt=1)
    """Largest relative change of brightness, contrast and saturation."""

    @model_validator(mode="after")
    def _areas_rise(self) -> Self:
        if self.max_area < self.min_area:
            raise ValueError(f"max_area must be in [min_area, 1], got {self.max_area}")
        return self


class ValidationConfig(Group):
    """What chooses the checkpoint and when to stop."""

    average_k: float = Field(default=3.0, ge=1)
    """Mean set size at which accuracy on `val` is compared, lowered to one less than the number
    of classes where it must be."""
    patience: AtLeastOne | None = None
    """Stop after this many epochs without improvement; null trains to the end."""


class CheckpointConfig(Group):
    """How often ``last.pt`` is written, apart from the end of each epoch."""

    every_seconds: Positive = 120.0
    """Write `last.pt` at the first step after this many seconds."""
    every_steps: AtLeastOne | None = None
    """Write `last.pt` after this many steps too."""


class TrainConfig(Group):
    """One training run."""

    data: Text
    """ImageFolder, manifest, CIFAR-100 folder, or flora."""
    recipe: str = "default"
    """Named starting point of the settings."""
    backbone: str = "resnet18"
    """Any torchvision classification network, `densenet40_40`, `resnet18_small` or `tiny`."""
    weights: Text | None = None
    """Starting weights: imagenet, a file of weights, or the folder of a run or a bundle."""
    freeze: Literal["backbone"] | None = None
    """`backbone` trains the head alone, on features that are computed once and kept; pictures are
    not augmented."""
    features: Text | None = None
    """Folder of kept features, for any number of runs and networks; null is `features` beside the
    run folder."""
    head: Literal["auto", "linear", "cosine", "two_head"] = "auto"
    """Last layer; `auto` takes the one the loss asks for."""
    head_scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Multiplier of the cosines of a cosine head, for a loss without a scale of its own; null is
    10."""
    multi_label_prior: float | None = Field(default=None, gt=0, lt=1)
    """Starting probability of every class of the multi-label head; null is the loss's `average_k`
    divided by the number of classes, and 0.5 is a bias of 0."""
    loss: Mapping[str, Any] = Field(default_factory=lambda: {"name": DEFAULT_LOSS})
    """Name of the loss; its parameters go beside `loss.name`."""
    image_size: Whole = Field(default=224, ge=8, le=4096)
    """Side of the input in pixels; if it is not given, the flora takes 48 and CIFAR-100 32, or the
    next size that fits the network."""
    crop_fraction: float = Field(default=1.0, gt=0, le=1)
    """Evaluation keeps a square from the centre, whose side is this share of the short side."""
    epochs: Count = 30
    """Passes over the training pictures; 0 only writes the initial weights."""
    batch_size: Whole = Field(default=64, ge=2)
    """Pictures per step."""
    seed: Whole = Field(default=0, ge=0, lt=2**63)
    """Seed of weights, order and augmentation."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; `auto` takes a GPU where there is one."""
    precision: Literal["auto", "fast", "fp32", "bf16"] = "auto"
    """`auto` is bf16 (autocast) on a GPU and fp32 on a CPU; `fast` is bf16 on a CPU too, if it
    multiplies bf16 natively."""
    workers: Count | None = None
    """Processes that prepare pictures; null takes as many as suit the machine."""
    cache_mb: Count = 1024
    """Decoded pictures stay in memory when all of them fit into this many MiB."""
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: AugmentConfig = AugmentConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="after")
    def _loss_has_a_name(self) -> Self:
        if not self.loss.get("name"):
            raise ValueError(f"loss must be a mapping with a name, got {self.loss!r}")
        return self

    @model_validator(mode="after")
    def _frozen_has_weights(self) -> Self:
        if self.freeze and self.weights is None:
            raise ValueError(
                "freeze=backbone needs weights: name a file, a run or a bundle, or pretrained"
            )
        return self

    @property
    def loss_name(self) -> str:
        """The key of the loss in ``training.losses.LOSSES``."""
        return str(self.loss["name"])

    @property
    def loss_parameters(self) -> dict[str, Any]:
        """The parameters of the loss that are set."""
        return {key: value for key, value in self.loss.items() if key != "name"}

    def to_plain(self) -> dict[str, Any]:
        """Nested dicts, lists, strings and numbers: what ``config.yaml`` holds."""
        plain = self.model_dump()
        plain["schedule"]["milestones"] = list(self.schedule.milestones)
        return plain


def fields() -> dict[str, dict[str, Any]]:
    """The JSON schema of each setting by its full name, such as ``optimiser.momentum``."""
    whole, found = TrainConfig.model_json_schema(), dict[str, dict[str, Any]]()
    for name, field in whole["properties"].items():
        part = whole["$defs"].get(field.get("$ref", "").rpartition("/")[2])
        single = part and {f"{name}.{key}": value for key, value in part["properties"].items()}
        found |= single or {name: field}
    return found


def allowed(field: Mapping[str, Any]) -> str:
    """The values a setting takes, in words.

    Example:
        >>> allowed(fields()["optimiser.momentum"])
        'a number in [0, 1)'
    """
    kind, *null = field.get("anyOf", [field])
    words = {"boolean": "true or false", "integer": "a whole number", "number": "a number"}
    words |= {"string": "text", "array": "a list of numbers", "object": "settings by name"}
    said = f"one of {', '.join(kind['enum'])}" if "enum" in kind else words[kind["type"]]
    low, high = kind.get("minimum"), kind.get("maximum")
    above, below = kind.get("exclusiveMinimum", low), kind.get("exclusiveMaximum", high)
    if below is not None:
        said += f" in {'(' if low is None else '['}{above}, {below}{')' if high is None else ']'}"
    elif above is not None:
        said += f" {'>' if low is None else '>='} {above}"
    return f"{said}, or null" if null else said


def complaint(error: ValidationError) -> str:
    """The first refused setting in words: its full name, what it takes and what it got."""
    first = error.errors(include_url=False)[0]
    path = [part for part in first["loc"] if isinstance(part, str)]
    name, known = ".".join(path), fields()
    match first["type"]:
        case "value_error":  # settings that do not go together; the message begins with a name
            return ".".join([*path, first["msg"].removeprefix("Value error, ")])
        case "extra_forbidden":
            beside = [key.split(".") for key in known if key.startswith(name.rpartition(".")[0])]
            listed = dict.fromkeys(key[len(path) - 1] for key in beside)
            return f"unknown setting {name}; allowed: {', '.join(listed)}"
        case "model_type":
            return f"{name} must hold settings by name, got {first['input']!r}"
    finite = "finite and " if first["type"] == "finite_number" else ""
    return f"{name} must be {finite}{allowed(known[name])}, got {first['input']!r}"

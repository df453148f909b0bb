"""Every setting of a training run, one field each: its type, range, default and meaning.

``florilege.settings`` derives flags, ``--set``, ``config.yaml``, messages and the table in
``docs/training.md`` from the fields. ``florilege.training.configuration`` merges the sources of
settings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from florilege.models.images import Preprocess
from florilege.training.config_groups import CLIP_NORM as CLIP_NORM
from florilege.training.config_groups import OWN_DEFAULTS as OWN_DEFAULTS
from florilege.training.config_groups import (
    WHOLE,
    AverageConfig,
    CheckpointConfig,
    Count,
    SettingsGroup,
    ValidationConfig,
)
from florilege.training.config_groups import AugmentConfig as AugmentConfig
from florilege.training.config_groups import Border as Border
from florilege.training.config_groups import Metric as Metric
from florilege.training.config_groups import MetricName as MetricName
from florilege.training.config_groups import OptimiserConfig as OptimiserConfig
from florilege.training.config_groups import ScheduleConfig as ScheduleConfig

DEFAULT_LOSS: Final = "cross_entropy"
MAY_CHANGE: Final = (
    *("epochs", "device", "workers", "cache_mb"),
    *("picture_cache", "checkpoint", "features", "compile"),
)
"""Settings that a resumed run may change."""

Whole = Annotated[int, WHOLE]
Text = Annotated[str, BeforeValidator(lambda x: str(x) if isinstance(x, Path) else x)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Spread = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_ALIASES: Final = {"imagenet": "pretrained", "none": None}  # of `weights`
_InitialWeights = Annotated[
    Text | None, BeforeValidator(lambda x: _ALIASES.get(x, x) if isinstance(x, str) else x)
]
_DIGITS = BeforeValidator(lambda x: int(x) if isinstance(x, str) and x.isdecimal() else x)


class TrainConfig(SettingsGroup):
    """One training run."""

    data: Text
    """ImageFolder, manifest, the folder of a published data set, or flora; options such as
    `:noise=0.2` may follow."""
    recipe: str = "default"
    """Named starting point of the settings."""
    backbone: str = "resnet18"
    """Any torchvision classification network, `densenet40_40`, `resnet18_small`, `tiny`,
    `tiny_patches`; timm's: `timm:NAME[.tag]`, `timm:hf-hub:ORG/MODEL`,
    `timm:local-dir:FOLDER`; or your own: `package.module:function`."""
    weights: _InitialWeights = None
    """Initial weights: `pretrained` (those published for the backbone, downloaded once; the default
    with `freeze`), a file of weights, the folder of a run or a bundle, or none."""
    freeze: Literal["backbone"] | None = None
    """`backbone` trains only the head, on features that are computed once and stored; pictures are
    not augmented."""
    features: Text | None = None
    """Folder of stored features, for any number of runs and networks; null is `features` beside
    the run folder."""
    unfreeze: Annotated[Literal["all"] | Count | None, _DIGITS] = None
    """Train only the head and this many of the last blocks of the backbone; `all`, or null, trains
    everything."""
    head: Literal["auto", "linear", "cosine", "two_head"] = "auto"
    """Last layer; `auto` takes the one that fits the loss."""
    head_scale: float | None = Field(default=None, gt=0, le=1e30)
    """Multiplier of the cosines of a cosine head, for a loss without a scale of its own; null is
    10."""
    multi_label_prior: float | None = Field(default=None, gt=0, lt=1)
    """Starting probability of every class of the multi-label head; null is the loss's `average_k`
    divided by the number of classes, and 0.5 is a bias of 0."""
    loss: Mapping[str, Any] = Field(default_factory=lambda: {"name": DEFAULT_LOSS})
    """Name of the loss, or your own, `package.module:Class`; `loss.PARAMETER` sets one of its
    parameters."""
    class_weight_power: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight classes in the loss by their number of training pictures to the power of minus this;
    0 turns this off, 1 makes all classes count the same."""
    mixup: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Train on mixtures of two pictures, in shares drawn from Beta(this, this); 0 turns this
    off."""
    cutmix: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Train on pictures with a rectangle of another one, by torchvision's CutMix, in shares drawn
    from Beta(this, this); 0 turns this off."""
    image_size: Annotated[int, Field(ge=8, le=4096), WHOLE] | None = None
    """Side of the input in pixels; null is the network's own, 48 for the flora and 32 for
    CIFAR-100, or the next size that fits the network."""
    crop_fraction: Annotated[float, Field(ge=0.01, le=1)] | None = None
    """Side of the centre crop in evaluation, as a share of the short side; null is the network's
    own, 1 for the flora and CIFAR-100."""
    mean: Annotated[tuple[_Finite, _Finite, _Finite], Field(strict=False)] | None = None
    """Mean that the network subtracts from red, green and blue, values of 0 to 1; null is the
    network's own, on CIFAR-100 that of the data unless `weights` is `pretrained` or a file."""
    std: Annotated[tuple[Spread, Spread, Spread], Field(strict=False)] | None = None
    """Standard deviation that it then divides by; null as for `mean`."""
    resample: Literal["bilinear", "bicubic"] | None = None
    """How evaluation resizes pictures; null is the network's own."""
    reducing_gap: Annotated[float, Field(ge=1, le=8)] | None = None
    """Before resizing, evaluation shrinks pictures by whole factors to at least this many times
    the final size, JPEGs while decoding: 1 is faster, null is 2 and more exact."""
    epochs: Count = 30
    """Passes over the training pictures, with `lbfgs` the most for each weight decay; 0 only writes
    the initial weights."""
    batch_size: Whole = Field(default=64, ge=2)
    """Pictures per batch, over all processes that train together."""
    accumulate: Whole = Field(default=1, ge=1, le=1_000_000)
    """Batches per optimiser step; their gradients add up to that of one large batch."""
    seed: Whole = Field(default=0, ge=0, lt=2**63)
    """Seed of weights, order and augmentation."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; `auto` takes a GPU if there is one."""
    precision: Literal["auto", "fast", "fp32", "bf16", "fp16"] = "auto"
    """Of the backbone in training; heads, losses and validation compute in float32. `auto` is bf16
    (autocast) on a GPU with units for it and fp32 elsewhere; `fast` is bf16 on a CPU too, if it
    has matrix units for it (AMX); `fp16` needs a GPU and scales the gradients."""
    compile: bool = False
    """Compile the network for training (`torch.compile`): slow to start, faster afterwards."""
    skip_damaged: bool = False
    """Look at every photo of `train` and `val` first, leave out those that cannot be read, and list
    them."""
    skip_doubtful: bool = False
    """With `freeze`, leave out the training photos whose label is probably wrong, by heads that did
    not learn from them, and list them."""
    workers: Count | None = None
    """Processes that prepare pictures; null chooses by the cores of the machine."""
    cache_mb: Count = 1024
    """Keep decoded pictures in memory if all of them fit into this many MiB."""
    picture_cache: Text | None = None
    """Folder for decoded training pictures that do not fit in memory; runs and processes share it,
    and a tenth of its disk stays free."""
    optimiser: OptimiserConfig = OptimiserConfig()
    average: AverageConfig = AverageConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: AugmentConfig = AugmentConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @model_validator(mode="before")
    @classmethod
    def _settings_of_other_machines(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("device") == "mps":
            raise ValueError(
                "device=mps: the GPU of a Mac has no float64, which losses and thresholds are "
                "computed in; use --device cpu"
            )
        return values

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        if conflict := next(self._conflicts(), None):
            raise ValueError(conflict)
        return self

    def _conflicts(self) -> Iterator[str]:
        """What is wrong with settings that exclude or need each other."""
        if not self.loss.get("name"):
            yield f"loss must be a mapping with a name, got {self.loss!r}"
        yield from self._conflicts_of_parts()
        if self.skip_doubtful and not self.freeze:
            yield "skip_doubtful judges labels by kept features: add --freeze backbone"
        if self.class_weight_power and self.loss.get("weight") is not None:
            yield "class_weight_power and loss.weight both weight classes: set one"
        if self.mixup and self.cutmix:
            yield "mixup and cutmix both mix the pictures of a batch: set one"
        if self.optimiser.name == "lbfgs":
            yield from self._conflicts_of_lbfgs()

    def _conflicts_of_parts(self) -> Iterator[str]:
        if self.cutmix and self.freeze:
            yield "cutmix mixes pictures, and freeze=backbone trains on features: leave one out"
        if self.freeze and self.weights is None:
            yield "freeze=backbone needs weights: name a file, a run or a bundle, or pretrained"
        if self.freeze and self.unfreeze is not None:
            yield (
                f"freeze=backbone and unfreeze={self.unfreeze} cannot be combined: leave one out, "
                "or add --set freeze=null"
            )
        if isinstance(self.unfreeze, int) and self.weights is None:
            yield (
                f"unfreeze={self.unfreeze} keeps the other blocks at their initial weights, so it "
                "needs weights: name a file, a run or a bundle, or pretrained"
            )

    def _conflicts_of_lbfgs(self) -> Iterator[str]:
        if not self.freeze:
            yield (
                "optimiser.name=lbfgs solves for a head on kept features: add --freeze backbone, "
                "or --set optimiser.name=sgd"
            )
        averages = self.average.decay is not None
        for name, is_set in (("mixup", bool(self.mixup)), ("average.decay", averages)):
            if is_set:
                yield (
                    f"{name} needs small steps, and optimiser.name=lbfgs takes all photos at once: "
                    f"leave {name} out, or add --set optimiser.name=sgd"
                )

    @property
    def mixes(self) -> str | None:
        """The setting that mixes pictures, whose labels are soft targets; None if none does."""
        return "mixup" if self.mixup else "cutmix" if self.cutmix else None

    @property
    def loss_name(self) -> str:
        """The key of the loss in ``florilege.training.losses.LOSSES``."""
        return str(self.loss["name"])

    @property
    def loss_parameters(self) -> dict[str, Any]:
        """The parameters of the loss that are set."""
        return {key: value for key, value in self.loss.items() if key != "name"}

    @property
    def preprocess(self) -> Preprocess:
        """How a picture becomes the input, in training, validation and export alike.

        ``florilege.training.configuration.resolve`` fills in the values of the network. Values that
        are still null mean 224 px, uncropped, bilinear, normalised as for ImageNet.
        """
        values = {field.name: getattr(self, field.name) for field in fields(Preprocess)}
        settings = {name: value for name, value in values.items() if value is not None}
        return Preprocess(**{"image_size": 224, **settings})

    def to_plain(self) -> dict[str, Any]:
        """Nested dicts, lists, strings and numbers: what ``config.yaml`` holds."""
        plain = self.model_dump() | asdict(self.preprocess)
        plain |= {name: list(plain[name]) for name in ("mean", "std")}
        plain["schedule"]["milestones"] = list(self.schedule.milestones)
        return plain


ABBREVIATIONS: Final = {
    "amp": "precision",
    "bs": "batch_size",
    "early_stopping": "validation.patience",
    "ema": "average.decay",
    "grad_accum": "accumulate",
    "grad_clip": "optimiser.clip_norm",
    "lr": "optimiser.learning_rate",
    "warmup": "schedule.warmup_epochs",
    "wd": "optimiser.weight_decay",
}
"""Settings by their names in other programs."""

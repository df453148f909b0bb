"""Every setting of a training run, checked as soon as it is given.

The resolved ``config.yaml`` of a run folder holds all of them and can be given back as
``--config``. ``training.settings`` merges flags, files and recipes into one of these.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from models.heads import HEADS

DEFAULT_LOSS: Final = "two_head_average_k"


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """Stochastic gradient descent.

    Attributes:
        learning_rate: Peak rate, positive.
        momentum: In [0, 1).
        nesterov: Nesterov's form of the momentum; needs ``momentum > 0``.
        weight_decay: L2 penalty, at least 0.
        decay_all: Apply it to biases and normalisation weights too, as the papers do.
        multi_label_rate: Multiplier of the rate for the multi-label head, positive.
        clip_norm: Largest norm of the gradient, or None for no clipping.
    """

    learning_rate: float = 0.05
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    decay_all: bool = False
    multi_label_rate: float = 1.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        _check(self.learning_rate > 0, "optimiser.learning_rate", "positive", self.learning_rate)
        _check(0 <= self.momentum < 1, "optimiser.momentum", "in [0, 1)", self.momentum)
        _check(
            self.momentum > 0 or not self.nesterov,
            "optimiser.nesterov",
            "false when momentum is 0",
            self.nesterov,
        )
        _check(self.weight_decay >= 0, "optimiser.weight_decay", ">= 0", self.weight_decay)
        rate = self.multi_label_rate
        _check(rate > 0, "optimiser.multi_label_rate", "positive", rate)
        clip = self.clip_norm
        _check(clip is None or clip > 0, "optimiser.clip_norm", "positive or null", clip)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over time, as a share of its peak; see ``training.schedule``.

    Attributes:
        name: ``cosine``, ``step`` or ``constant``.
        warmup_epochs: Linear rise from near 0, may be a fraction, at least 0.
        milestones: ``step``: epochs after which the rate is multiplied by ``factor``, rising.
        factor: ``step``: in (0, 1).
        final: ``cosine``: share of the peak at the end, in [0, 1].
    """

    name: str = "cosine"
    warmup_epochs: float = 0.0
    milestones: tuple[float, ...] = ()
    factor: float = 0.1
    final: float = 0.0

    def __post_init__(self) -> None:
        names = ("cosine", "step", "constant")
        _check(self.name in names, "schedule.name", f"one of {', '.join(names)}", self.name)
        warmup = self.warmup_epochs
        _check(0 <= warmup < math.inf, "schedule.warmup_epochs", "finite and >= 0", warmup)
        rising = list(self.milestones) == sorted(set(self.milestones))
        rising = rising and all(map(math.isfinite, self.milestones))
        _check(rising, "schedule.milestones", "rising epochs", self.milestones)
        _check(0 < self.factor < 1, "schedule.factor", "in (0, 1)", self.factor)
        _check(0 <= self.final <= 1, "schedule.final", "in [0, 1]", self.final)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Random changes of training pictures that keep their label; see ``training.augment``.

    Attributes:
        min_area: Smallest area of the random crop, as a share of the largest square that fits
            into the picture, in (0, 1].
        max_area: Largest area of the random crop, the same share, at least ``min_area``.
        max_stretch: Largest width to height ratio of the crop (and its inverse), at least 1.
        flip: Probability of a left-right flip, in [0, 1].
        flip_vertical: Probability of an upside-down flip, in [0, 1].
        transpose: Probability of a mirroring along the diagonal, in [0, 1]; with both flips at
            one half all eight quarter turns and mirrorings are equally likely.
        shift: Largest random shift in pixels of the input, the border filled by reflection.
        rotate: Largest rotation in degrees either way, in [0, 180].
        colour: Largest relative change of brightness, contrast and saturation, in [0, 1).
    """

    min_area: float = 0.35
    max_area: float = 1.0
    max_stretch: float = 4 / 3
    flip: float = 0.5
    flip_vertical: float = 0.0
    transpose: float = 0.0
    shift: int = 0
    rotate: float = 0.0
    colour: float = 0.0

    def __post_init__(self) -> None:
        _check(0 < self.min_area <= 1, "augment.min_area", "in (0, 1]", self.min_area)
        area = self.max_area
        _check(self.min_area <= area <= 1, "augment.max_area", "in [min_area, 1]", area)
        stretch = self.max_stretch
        _check(1 <= stretch < math.inf, "augment.max_stretch", "finite and >= 1", stretch)
        _check(0 <= self.flip <= 1, "augment.flip", "in [0, 1]", self.flip)
        vertical = self.flip_vertical
        _check(0 <= vertical <= 1, "augment.flip_vertical", "in [0, 1]", vertical)
        diagonal = self.transpose
        _check(0 <= diagonal <= 1, "augment.transpose", "in [0, 1]", diagonal)
        _check(self.shift >= 0, "augment.shift", ">= 0", self.shift)
        _check(0 <= self.rotate <= 180, "augment.rotate", "in [0, 180]", self.rotate)
        _check(0 <= self.colour < 1, "augment.colour", "in [0, 1)", self.colour)


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """What chooses the checkpoint and when to stop.

    Attributes:
        average_k: Mean set size at which validation accuracy is compared, at least 1; data of
            fewer classes use one less than their number.
        patience: Stop after this many epochs without a better one; None trains to the end.
    """

    average_k: float = 3.0
    patience: int | None = None

    def __post_init__(self) -> None:
        _check(self.average_k >= 1, "validation.average_k", ">= 1", self.average_k)
        patience = self.patience
        _check(
            patience is None or patience >= 1, "validation.patience", "at least 1 or null", patience
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often ``last.pt`` is written besides the end of each epoch.

    Attributes:
        every_seconds: At the first step after this many seconds, positive.
        every_steps: After this many steps, or None.
    """

    every_seconds: float = 120.0
    every_steps: int | None = None

    def __post_init__(self) -> None:
        seconds, steps = self.every_seconds, self.every_steps
        _check(seconds > 0, "checkpoint.every_seconds", "positive", seconds)
        _check(steps is None or steps >= 1, "checkpoint.every_steps", "at least 1 or null", steps)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Attributes:
        data: What ``--data`` takes.
        recipe: The recipe these settings started from, for the record.
        backbone: A name of ``models.backbones.networks.available()``.
        weights: ``imagenet``, a file, the folder of a run or a bundle, or None to train from
            scratch.
        head: ``auto`` takes the one that the loss asks for.
        head_scale: What multiplies the cosines of a cosine head, positive, for a loss without
            a scale of its own; None for 10.
        multi_label_prior: Probability in (0, 1) that every class of the multi-label head starts
            at; None for the ``average_k`` of the loss over the classes, 0.5 for a bias of 0.
        loss: ``name`` and the parameters of that loss.
        image_size: Side of the network's input in pixels.
        crop_fraction: Evaluation keeps the centre square of this share of the short side.
        epochs: Passes over the training pictures; 0 writes the initial weights.
        batch_size: Pictures a step, at least 2.
        seed: Of initial weights, order and augmentation.
        device: ``auto``, ``cpu`` or ``cuda``.
        precision: ``fp32``; ``bf16`` (autocast); ``auto``, bf16 on a GPU and fp32 on a CPU; or
            ``fast``, bf16 also on a CPU that multiplies it natively.
        workers: Processes that prepare pictures, or None for as many as fit.
        cache_mb: Decoded pictures are kept in memory when all of them fit into this much.
    """

    data: str
    recipe: str = "default"
    backbone: str = "resnet18"
    weights: str | None = None
    head: str = "auto"
    head_scale: float | None = None
    multi_label_prior: float | None = None
    loss: Mapping[str, Any] = field(default_factory=lambda: {"name": DEFAULT_LOSS})
    image_size: int = 224
    crop_fraction: float = 1.0
    epochs: int = 30
    batch_size: int = 64
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"
    workers: int | None = None
    cache_mb: int = 1024
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        heads = ("auto", *HEADS)
        _check(self.head in heads, "head", f"one of {', '.join(heads)}", self.head)
        scale = self.head_scale
        usable = scale is None or 0 < scale < math.inf
        _check(usable, "head_scale", "finite and positive, or null", scale)
        prior = self.multi_label_prior
        usable = prior is None or 0 < prior < 1
        _check(usable, "multi_label_prior", "in (0, 1), or null", prior)
        _check(bool(self.loss.get("name")), "loss", "a mapping with a name", self.loss)
        _check(8 <= self.image_size <= 4096, "image_size", "in [8, 4096]", self.image_size)
        _check(0 < self.crop_fraction <= 1, "crop_fraction", "in (0, 1]", self.crop_fraction)
        _check(self.epochs >= 0, "epochs", ">= 0", self.epochs)
        _check(self.batch_size >= 2, "batch_size", ">= 2", self.batch_size)
        _check(0 <= self.seed < 2**63, "seed", "in [0, 2^63)", self.seed)
        devices = ("auto", "cpu", "cuda")
        _check(self.device in devices, "device", f"one of {', '.join(devices)}", self.device)
        kinds = ("auto", "fast", "fp32", "bf16")
        _check(self.precision in kinds, "precision", f"one of {', '.join(kinds)}", self.precision)
        _check(self.workers is None or self.workers >= 0, "workers", ">= 0", self.workers)
        _check(self.cache_mb >= 0, "cache_mb", ">= 0", self.cache_mb)

    @property
    def loss_name(self) -> str:
        """The key of the loss in ``training.losses.LOSSES``."""
        return str(self.loss["name"])

    @property
    def loss_parameters(self) -> dict[str, Any]:
        """What the user set of the loss."""
        return {key: value for key, value in self.loss.items() if key != "name"}

    def to_plain(self) -> dict[str, Any]:
        """Nested dicts, lists, strings and numbers: what ``config.yaml`` holds."""
        plain = asdict(self)
        plain["loss"] = dict(self.loss)
        plain["schedule"]["milestones"] = list(self.schedule.milestones)
        return plain


def _check(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")

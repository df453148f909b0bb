import math
from typing import Any

import pytest

from training.config import (
    AugmentConfig,
    CheckpointConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainConfig,
    ValidationConfig,
)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (OptimiserConfig, {"learning_rate": 0.0}, "optimiser.learning_rate must be positive"),
        (OptimiserConfig, {"momentum": 1.0}, r"optimiser.momentum must be in \[0, 1\), got 1.0"),
        (OptimiserConfig, {"momentum": 0.0}, "optimiser.nesterov must be false when momentum is 0"),
        (OptimiserConfig, {"weight_decay": -1.0}, "optimiser.weight_decay must be >= 0"),
        (OptimiserConfig, {"multi_label_rate": 0.0}, "optimiser.multi_label_rate must be positive"),
        (OptimiserConfig, {"clip_norm": 0.0}, "optimiser.clip_norm must be positive or null"),
        (ScheduleConfig, {"name": "linear"}, "schedule.name must be one of cosine, step, constant"),
        (ScheduleConfig, {"warmup_epochs": -0.5}, "schedule.warmup_epochs must be finite and >= 0"),
        (ScheduleConfig, {"warmup_epochs": math.inf}, "schedule.warmup_epochs must be finite"),
        (ScheduleConfig, {"milestones": (math.nan,)}, "schedule.milestones must be rising"),
        (ScheduleConfig, {"milestones": (2.0, 1.0)}, "schedule.milestones must be rising"),
        (ScheduleConfig, {"milestones": (1.0, 1.0)}, "schedule.milestones must be rising"),
        (ScheduleConfig, {"factor": 1.0}, r"schedule.factor must be in \(0, 1\)"),
        (ScheduleConfig, {"final": 1.1}, r"schedule.final must be in \[0, 1\]"),
        (AugmentConfig, {"min_area": 0.0}, r"augment.min_area must be in \(0, 1\]"),
        (AugmentConfig, {"max_area": 0.2}, r"augment.max_area must be in \[min_area, 1\]"),
        (AugmentConfig, {"max_stretch": 0.9}, "augment.max_stretch must be finite and >= 1"),
        (AugmentConfig, {"max_stretch": math.inf}, "augment.max_stretch must be finite"),
        (AugmentConfig, {"flip": 1.5}, "augment.flip must be in"),
        (AugmentConfig, {"flip_vertical": -0.5}, "augment.flip_vertical must be in"),
        (AugmentConfig, {"transpose": 1.1}, "augment.transpose must be in"),
        (AugmentConfig, {"shift": -1}, "augment.shift must be >= 0"),
        (AugmentConfig, {"rotate": 181.0}, "augment.rotate must be in"),
        (AugmentConfig, {"colour": 1.0}, "augment.colour must be in"),
        (ValidationConfig, {"average_k": 0.9}, "validation.average_k must be >= 1"),
        (ValidationConfig, {"patience": 0}, "validation.patience must be at least 1 or null"),
        (CheckpointConfig, {"every_seconds": 0.0}, "checkpoint.every_seconds must be positive"),
        (CheckpointConfig, {"every_steps": 0}, "checkpoint.every_steps must be at least 1"),
        (TrainConfig, {"head_scale": 0.0}, "head_scale must be finite and positive"),
        (TrainConfig, {"head_scale": math.inf}, "head_scale must be finite and positive"),
        (TrainConfig, {"multi_label_prior": 0.0}, r"multi_label_prior must be in \(0, 1\), or"),
        (TrainConfig, {"multi_label_prior": 1.0}, r"multi_label_prior must be in \(0, 1\), or"),
        (TrainConfig, {"head": "softmax"}, "head must be one of auto, linear, cosine, two_head"),
        (TrainConfig, {"loss": {}}, "loss must be a mapping with a name"),
        (TrainConfig, {"image_size": 7}, r"image_size must be in \[8, 4096\], got 7"),
        (TrainConfig, {"crop_fraction": 0.0}, r"crop_fraction must be in \(0, 1\]"),
        (TrainConfig, {"epochs": -1}, "epochs must be >= 0"),
        (TrainConfig, {"batch_size": 1}, "batch_size must be >= 2"),
        (TrainConfig, {"seed": -1}, "seed must be in"),
        (TrainConfig, {"device": "tpu"}, "device must be one of auto, cpu, cuda"),
        (TrainConfig, {"precision": "fp16"}, "precision must be one of auto, fast, fp32, bf16"),
        (TrainConfig, {"workers": -1}, "workers must be >= 0"),
        (TrainConfig, {"cache_mb": -1}, "cache_mb must be >= 0"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    kind: Any, values: dict[str, Any], message: str
) -> None:
    extra = {"data": "flora"} if kind is TrainConfig else {}
    with pytest.raises(ValueError, match=message):
        kind(**extra, **values)


def test_the_defaults_are_those_of_the_command_line() -> None:
    config = TrainConfig(data="flora")
    assert (config.backbone, config.loss_name) == ("resnet18", "two_head_average_k")
    assert config.loss_parameters == {}


def test_loss_parameters_leave_out_the_name() -> None:
    config = TrainConfig(data="flora", loss={"name": "focal", "gamma": 1.0})
    assert (config.loss_name, config.loss_parameters) == ("focal", {"gamma": 1.0})

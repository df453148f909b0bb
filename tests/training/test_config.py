import math
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from florilege.models.heads import HEADS
from florilege.settings import complaint
from florilege.training.config import ABBREVIATIONS, AugmentConfig, TrainConfig
from tests.training.write_settings import DOCS, TABLES, page


def _complaint(error: ValidationError) -> str:
    return complaint(error, TrainConfig, ABBREVIATIONS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("optimiser.learning_rate", 0.0, "a number > 0"),
        ("optimiser.learning_rate", math.nan, "a number > 0"),
        ("optimiser.name", "adam", "one of sgd, adamw"),
        ("optimiser.momentum", 1.0, "a number in [0, 1), or null"),
        ("optimiser.layer_decay", 0.0, "a number in (0, 1]"),
        ("average.decay", 1.0, "a number in (0, 1), or null"),
        ("unfreeze", -1, "all or a whole number >= 0, or null"),
        ("unfreeze", "some", "all or a whole number >= 0, or null"),
        ("mixup", -0.1, "a number >= 0"),
        ("class_weight_power", -1.0, "a number >= 0"),
        ("accumulate", 0, "a whole number >= 1"),
        ("optimiser.weight_decay", -1.0, "a number >= 0"),
        ("optimiser.multi_label_rate", 0.0, "a number > 0"),
        ("optimiser.clip_norm", 0.0, "a number > 0, or null"),
        ("schedule.name", "linear", "one of cosine, step, constant"),
        ("schedule.warmup_epochs", -0.5, "a number >= 0"),
        ("schedule.warmup_epochs", math.inf, "finite and a number >= 0"),
        ("schedule.milestones", 3, "a list of numbers"),
        ("schedule.milestones", [math.nan], "ascending epochs"),
        ("schedule.milestones", [2.0, 1.0], "ascending epochs"),
        ("schedule.milestones", [1.0, 1.0], "ascending epochs"),
        ("schedule.factor", 1.0, "a number in (0, 1)"),
        ("schedule.final", 1.1, "a number in [0, 1]"),
        ("augment.min_area", 0.0, "a number in (0, 1]"),
        ("augment.max_area", 0.2, "in [min_area, 1]"),
        ("augment.max_stretch", 0.9, "a number >= 1"),
        ("augment.max_stretch", math.inf, "finite and a number >= 1"),
        ("augment.flip", 1.5, "a number in [0, 1]"),
        ("augment.flip_vertical", -0.5, "a number in [0, 1]"),
        ("augment.transpose", 1.1, "a number in [0, 1]"),
        ("augment.shift", -1, "a whole number >= 0"),
        ("augment.rotate", 181.0, "a number in [0, 180]"),
        ("augment.colour", 1.0, "a number in [0, 1)"),
        ("validation.metric", "top_3", "one of average_k, top_k, macro_average_k, macro_top_k"),
        ("validation.k", 0.9, "a number >= 1"),
        ("validation.patience", 0, "a whole number >= 1, or null"),
        ("checkpoint.every_seconds", 0.0, "a number > 0"),
        ("checkpoint.every_steps", 0, "a whole number >= 1, or null"),
        ("head_scale", 0.0, "a number > 0, or null"),
        ("head_scale", math.inf, "finite and a number > 0, or null"),
        ("multi_label_prior", 0.0, "a number in (0, 1), or null"),
        ("multi_label_prior", 1.0, "a number in (0, 1), or null"),
        ("head", "softmax", "one of auto, linear, cosine, two_head"),
        ("loss", {}, "a mapping with a name"),
        ("image_size", 7, "a whole number in [8, 4096], or null"),
        ("image_size", 4097, "a whole number in [8, 4096], or null"),
        ("crop_fraction", 0.0, "a number in (0, 1], or null"),
        ("mean", [0.5, 0.5], "a list of 3 numbers, or null"),
        ("mean", [0.5, 0.5, math.nan], "finite and a list of 3 numbers, or null"),
        ("std", [0.5, 0.5, 0.0], "a list of 3 numbers, or null"),
        ("resample", "nearest", "one of bilinear, bicubic, or null"),
        ("reducing_gap", 0.5, "a number in [1, 8], or null"),
        ("epochs", -1, "a whole number >= 0"),
        ("batch_size", 1, "a whole number >= 2"),
        ("seed", -1, "a whole number in [0, 9223372036854775808)"),
        ("seed", 2**63, "a whole number in [0, 9223372036854775808)"),
        ("device", "tpu", "one of auto, cpu, cuda"),
        ("precision", "fp8", "one of auto, fast, fp32, bf16, fp16"),
        ("workers", -1, "a whole number >= 0, or null"),
        ("cache_mb", -1, "a whole number >= 0"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_and_range(
    name: str, value: object, said: str
) -> None:
    part, _, inner = name.partition(".")
    options: dict[str, Any] = {part: {inner: value}} if inner else {name: value}
    with pytest.raises(ValidationError) as caught:
        TrainConfig(data="flora", **options)
    assert _complaint(caught.value).startswith(f"{name} must be {said}, got ")


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"data": "flora", "optimiser": {"momentum": 0.0}})
    assert _complaint(caught.value) == (
        "optimiser.nesterov must be false when momentum is 0, got True"
    )


def test_the_defaults_are_those_of_the_command_line() -> None:
    config = TrainConfig(data="flora")
    assert (config.backbone, config.loss_name) == ("resnet18", "cross_entropy")
    assert config.loss_parameters == {}


def test_loss_parameters_leave_out_the_name() -> None:
    config = TrainConfig(data="flora", loss={"name": "focal", "gamma": 1.0})
    assert (config.loss_name, config.loss_parameters) == ("focal", {"gamma": 1.0})


def test_the_heads_are_those_of_the_networks() -> None:
    assert get_args(TrainConfig.model_fields["head"].annotation) == ("auto", *HEADS)


def test_settings_never_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        AugmentConfig().flip = 0.1


def test_the_documentation_has_the_table_of_the_fields() -> None:
    for name in TABLES:
        text = (DOCS / name).read_text("utf-8")
        assert text == page(name), "run: python -m tests.training.write_settings"

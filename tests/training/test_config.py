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
        ("optimiser.learning_rate", math.nan, "a number in (0, 1e+30], or null"),
        ("optimiser.learning_rate", 1e300, "a number in (0, 1e+30], or null"),  # of float32
        ("optimiser.weight_decay", 1e300, "a number in [0, 1e+30], or null"),
        ("head_scale", 1e300, "a number in (0, 1e+30], or null"),
        ("optimiser.name", "adam", "one of sgd, adamw, lbfgs"),
        ("optimiser.momentum", 1.0, "a number in [0, 1), or null"),
        ("optimiser.layer_decay", 0.0, "a number in (0, 1]"),
        ("unfreeze", "some", "all or a whole number >= 0, or null"),
        ("optimiser.clip_norm", 0.0, "a number > 0, or null"),
        ("schedule.warmup_epochs", math.inf, "finite and a number >= 0"),
        ("schedule.milestones", 3, "a list of numbers"),
        ("schedule.milestones", [math.nan], "ascending epochs"),
        ("schedule.milestones", [2.0, 1.0], "ascending epochs"),
        ("schedule.milestones", [1.0, 1.0], "ascending epochs"),
        ("schedule.factor", 1.0, "a number in (0, 1)"),
        ("augment.max_area", 0.2, "in [min_area, 1]"),
        ("augment.flip", 1.5, "a number in [0, 1]"),
        ("augment.shift", -1, "a whole number >= 0"),
        ("validation.k", 0.9, "a number >= 1"),
        ("validation.patience", 0, "a whole number >= 1, or null"),
        ("class_weight_power", math.inf, "finite and a number >= 0"),
        ("loss", {}, "a mapping with a name"),
        ("image_size", 4097, "a whole number in [8, 4096], or null"),
        ("mean", [0.5, 0.5], "a list of 3 numbers, or null"),
        ("mean", [0.5, 0.5, math.nan], "finite and a list of 3 numbers, or null"),
        ("std", [0.5, 0.5, 0.0], "a list of 3 numbers > 0, or null"),
        ("resample", "nearest", "one of bilinear, bicubic, or null"),
        ("reducing_gap", 0.5, "a number in [1, 8], or null"),
        ("batch_size", 1, "a whole number >= 2"),
        ("accumulate", 2**63, "a whole number in [1, 1000000]"),
        ("seed", 2**63, "a whole number in [0, 9223372036854775808)"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_and_range(
    name: str, value: object, said: str
) -> None:
    """One of each kind of range; the page of the documentation below holds them all."""
    part, _, inner = name.partition(".")
    options: dict[str, Any] = {part: {inner: value}} if inner else {name: value}
    with pytest.raises(ValidationError) as caught:
        TrainConfig(data="flora", **options)
    assert _complaint(caught.value).startswith(f"{name} must be {said}, got ")


def test_the_gpu_of_a_mac_is_refused_with_the_reason() -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"data": "flora", "device": "mps"})
    assert _complaint(caught.value).startswith("device=mps: the GPU of a Mac has no float64")


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate({"data": "flora", "optimiser": {"momentum": 0.0}})
    assert _complaint(caught.value) == (
        "optimiser.nesterov must be false when momentum is 0, got True"
    )


def test_the_heads_are_those_of_the_networks() -> None:
    assert get_args(TrainConfig.model_fields["head"].annotation) == ("auto", *HEADS)


def test_settings_never_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        AugmentConfig().flip = 0.1


def test_the_documentation_has_the_table_of_the_fields() -> None:
    for name in TABLES:
        text = (DOCS / name).read_text("utf-8")
        assert text == page(name), "run: python -m tests.training.write_settings"

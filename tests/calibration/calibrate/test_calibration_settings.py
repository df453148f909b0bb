"""What a calibration is asked for, with few classes and with many."""

from typing import Any

import pytest
import typer.main

from florilege.calibration.cli import app
from florilege.calibration.settings import (
    GRID_END,
    CalibrationPlan,
    CalibrationSettings,
    EvaluateCommand,
)
from florilege.calibration.threshold import DEFAULT_MAX_SIZE
from florilege.errors import UsageError

STEPS = 10 * GRID_END - 9


@pytest.mark.parametrize(
    ("classes", "ks", "end", "steps", "largest_set"),
    [
        (1, (1.0,), 1.0, 1, 1),
        (2, (1.0, 2.0), 2.0, 11, 2),
        (3, (1.0, 2.0, 3.0), 3.0, 21, 3),
        *(
            (classes, (1.0, 2.0, 3.0, 5.0, 10.0), GRID_END, STEPS, min(classes, DEFAULT_MAX_SIZE))
            for classes in (GRID_END, GRID_END + 1, DEFAULT_MAX_SIZE, DEFAULT_MAX_SIZE + 1, 10_000)
        ),
        (GRID_END - 1, (1.0, 2.0, 3.0, 5.0, 10.0), GRID_END - 1, STEPS - 10, GRID_END - 1),
    ],
)
def test_the_grid_and_the_largest_set_end_where_classes_do(
    classes: int, ks: tuple[float, ...], end: float, steps: int, largest_set: int
) -> None:
    plan = CalibrationPlan(classes=classes)
    assert plan.ks == ks
    assert (plan.grid[0], plan.grid[-1], len(plan.grid)) == (1.0, end, steps)
    assert plan.largest_set == largest_set
    assert plan.default_k == (3.0 if classes >= 3 else 1.0)


@pytest.mark.parametrize(("k", "largest_set"), [(24.9, 50), (25.5, 51), (40.0, 80), (60.0, 100)])
def test_a_large_k_widens_the_grid_and_the_largest_set(k: float, largest_set: int) -> None:
    plan = CalibrationPlan(classes=100, ks=(k,))
    assert plan.grid[-2:] == (GRID_END, k)
    assert plan.largest_set == largest_set
    assert CalibrationPlan(classes=100, ks=(k,), max_size=70).largest_set == 70


def test_every_setting_is_a_flag_of_calibrate() -> None:
    command = typer.main.get_group(app).commands["calibrate"]
    flags = {parameter.opts[0] for parameter in command.params}
    renamed = {"ks": "--k", "coverages": "--coverage", "temperatures": "--temperature"}
    renamed |= {"list_files": "--list", "views_wanted": "--views"}
    for name in CalibrationSettings.model_fields:
        assert renamed.get(name, f"--{name.replace('_', '-')}") in flags


def test_text_and_numbers_make_the_same_settings() -> None:
    words: dict[str, Any] = {"ks": "1, 2.5,1", "coverages": "0.8", "rejection_method": "none",
                             "temperatures": "2,0.5"}  # fmt: skip
    typed = CalibrationSettings(**words)
    assert typed == CalibrationSettings(
        ks=(1, 2.5), coverages=(0.8,), rejection_method=None, temperatures=(2, 0.5)
    )
    assert (typed.ks, typed.coverages, typed.temperatures) == ((1.0, 2.5), (0.8,), (2.0, 0.5))
    assert CalibrationPlan(classes=9, **dict(typed)).ks == typed.ks


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ks": "1,x"}, "ks: takes numbers separated by commas, got '1,x'"),
        ({"coverages": [0.9, 1]}, r"coverages must be a list of numbers in \(0, 1\), got 1"),
        ({"coverages": [0]}, r"coverages must be a list of numbers in \(0, 1\), got 0"),
        ({"min_size": 2}, r"min_size must be a whole number in \[0, 1\], got 2"),
        ({"macro_weight": -1}, r"macro_weight must be a number in \[0, 1\], got -1"),
        ({"macro_weight": 2}, r"macro_weight must be a number in \[0, 1\], got 2"),
        ({"score_kind": "odds"}, "score_kind must be one of softmax, sigmoid, got 'odds'"),
        ({"temperatures": [0]}, r"temperatures must be a list of numbers in \[0\.01, 100\], got 0"),
        ({"temperatures": []}, "temperatures must hold a number"),
        ({"rejection_method": "guess"}, "rejection_method must be auto or none"),
        ({"suspect_share": 1}, r"suspect_share must be a number in \[0, 1\), got 1"),
        ({"delta": 0}, r"delta must be a number in \(0, 1\), got 0"),
        ({"delta": 1}, r"delta must be a number in \(0, 1\), got 1"),
        ({"kay": 1}, "kay"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CalibrationSettings(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ks": [6.5]}, r"^k must be in \[1, 6\] for 6 classes, got 6.5"),
        ({"ks": [0.5]}, r"^k must be in \[1, 6\] for 6 classes, got 0.5"),
        ({"ks": []}, "at least one K"),
        ({"max_size": 2}, r"max_size must be in \[5, 6\], got 2"),
        ({"max_size": 7}, r"max_size must be in \[5, 6\], got 7"),
        ({"images": [1]}, "images must be 2 or more"),
    ],
)
def test_a_plan_is_checked_against_the_classes(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CalibrationPlan(classes=6, **values)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--k", "1,x", "--k: takes numbers separated by commas, got '1,x'"),
        ("--views", "x", "--views must be a list of any of all, none, photos, lists, places"),
        ("--macro-weight", "2", "macro_weight must be a number in [0, 1], got 2.0"),
    ],
)
def test_a_refused_flag_is_called_as_it_was_written(flag: str, value: str, message: str) -> None:
    command = typer.main.get_group(app).commands["calibrate"]
    with pytest.raises(UsageError) as caught:
        command.main(["bundle", flag, value], standalone_mode=False)
    assert str(caught.value).startswith(message)


def test_an_evaluation_refuses_a_noise_that_is_none_before_it_reads_photos() -> None:
    with pytest.raises(ValueError, match=r"^label_noise must be in \[0, 1\), got 2$"):
        EvaluateCommand(label_noise="2")

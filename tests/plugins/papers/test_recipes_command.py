import json

import pytest
from typer.testing import CliRunner

from florilege.plugins.papers.published import app
from florilege.training.recipes import RECIPES


def test_every_recipe_is_listed_with_what_was_printed_in_80_columns() -> None:
    listed = CliRunner().invoke(app, []).stdout
    lines = listed.splitlines()
    assert [
        name for name in RECIPES if not any(line.startswith(f"{name} ") for line in lines)
    ] == []
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if line.startswith("imagenet-all-ce-k5 ")]
    assert line.split()[1:] == ["100", "%,", "CE", "top-5", "90.67", "72.0"]  # published
    (line,) = [line for line in lines if line.startswith("imagenet-5pct-ce-k5 ")]
    assert line.split()[-1] == "~5.8"  # estimated


def test_json_holds_everything() -> None:
    listed = json.loads(CliRunner().invoke(app, ["--json"]).stdout)["recipes"]
    assert [each["name"] for each in listed] == list(RECIPES)
    (result,) = [each for each in listed if each["name"] == "cifar100-noise0.2-smooth-k5"]
    assert result["example"] == "cifar-100-python:noise=0.2"
    assert result["printed"][2]["source"] == "[N] table 4, row 0.2, Smoothed Hinge"
    assert result["settings"]["loss"] == {"name": "smooth_top_k", "k": 5, "tau": 1.0}
    assert any("alphabet" in each for each in result["departures"])
    assert result["gpu_hours"] == 6.75
    assert result["work"]["steps"] == 211_200
    assert result["work"]["estimated_gpu_hours"] == pytest.approx(3.72, abs=0.01)
    assert listed[0]["work"] is None  # ours, on your photos

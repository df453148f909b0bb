"""The estimated cost of a row of a paper."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from florilege.models.backbones import build
from florilege.training.recipes import RECIPES
from florilege.training.recipes.cost import COSTS, SUSTAINED, cost_of
from tests.training.write_recipes import processor_hours

CLASSES = {32: 100, 224: 1000}
SIDES = dict.fromkeys(COSTS["gigaflops"], 224) | {"densenet40_40": 32}


@pytest.mark.parametrize(("network", "side"), SIDES.items())
def test_operations_are_those_that_torch_counts(network: str, side: int) -> None:
    with torch.device("meta"):
        model = build(network, CLASSES[side], "linear", image_size=side).train()
        pictures = torch.empty(2, 3, side, side)
        with FlopCounterMode(display=False) as counter:
            logits = model(pictures)
            forward = counter.get_total_flops()
            torch.autograd.backward(logits.sum())
    counted = [total / 2e9 for total in (forward, counter.get_total_flops())]
    assert counted == pytest.approx(COSTS["gigaflops"][network], rel=1e-3)


def test_a_row_is_counted_picture_by_picture() -> None:
    cost = cost_of(RECIPES["cifar100-ce-k5"])
    assert cost is not None
    assert cost.steps == 300 * 704  # 703 batches of 64 and one of 8
    assert cost.pictures == 300 * 45_000
    by_hand = 300 * (45_000 * 4.789e9 + 5_000 * 1.598e9)
    assert cost.operations == pytest.approx(by_hand)
    assert cost.passes * 4.789e9 == pytest.approx(by_hand)
    assert cost.gpu_hours == pytest.approx(by_hand / SUSTAINED / 3600)
    assert cost.step_seconds is not None
    steps = 300 * (45_000 + 5_000 * 1.598 / 4.789) / 64
    assert processor_hours(cost) == pytest.approx(steps * cost.step_seconds / 3600)


def test_a_subset_of_imagenet_costs_its_share() -> None:
    part, whole = (cost_of(RECIPES[f"imagenet-{share}-ce-k5"]) for share in ("5pct", "all"))
    assert part is not None
    assert whole is not None
    assert part.pictures == 120 * 64 * 1000
    assert part.steps == 120 * 250
    assert whole.pictures == 120 * COSTS["photos"]["imagenet"][0]


def test_every_row_has_a_cost_and_ours_none() -> None:
    for name, recipe in RECIPES.items():
        cost = cost_of(recipe)
        assert (cost is None) == (not recipe.source), name
        assert cost is None or recipe.settings["image_size"] == SIDES[recipe.settings["backbone"]]
        assert cost is None or math.isfinite(cost.gpu_hours)
        assert cost is None or processor_hours(cost), f"time a step of {name} on a CPU"


def test_the_rate_of_the_estimates_is_between_the_published_ones() -> None:
    rates = []
    for recipe in (RECIPES["cifar100-noise0-ce-k5"], RECIPES["imagenet-all-ce-k5"]):
        cost = cost_of(recipe)
        assert cost is not None
        assert recipe.gpu_hours is not None
        rates.append(cost.operations / recipe.gpu_hours / 3600)
    assert rates == pytest.approx([0.344e13, 0.62e13], rel=0.01)
    assert rates[0] < SUSTAINED < rates[1]

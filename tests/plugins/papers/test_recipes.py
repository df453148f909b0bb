import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.papers.synthetic_layouts import COPIES, pool
from florilege.errors import UsageError
from florilege.models.backbones import available, build
from florilege.plugins.papers.published import COSTS, PAPERS, SUSTAINED, Cost, PublishedFigure
from florilege.training.configuration import resolve, to_yaml
from florilege.training.frozen.head_solver import decays_of
from florilege.training.losses import LOSSES
from florilege.training.losses import build as build_loss
from florilege.training.recipes import RECIPES, Recipe
from tests.plugins.papers.write_recipes import PAGE, page, processor_hours
from tests.training.conftest import reports_without_drawings as reports_without_drawings
from tests.training.small import train_quietly, write_photos

CLASSES_OF_SIDE = {32: 100, 224: 1000}
SIDES = dict.fromkeys(COSTS["gigaflops"], 224) | {"densenet40_40": 32}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_what_exists(recipe: str) -> None:
    config = resolve({"recipe": recipe, "data": "flora"})
    assert config.backbone in available()
    assert config.loss_name in LOSSES
    needed: dict[str, dict[str, Any]] = {
        "ldam": {"class_counts": [1] * 11},
        "imbalanced_noised_top_k": {"class_counts": [1] * 11},
        "role": {"rows": 11},
    }
    build_loss(config.loss_name, **needed.get(config.loss_name, {}), **config.loss_parameters)


def test_the_page_of_recipes_is_up_to_date() -> None:
    """After an intended change: `python -m tests.plugins.papers.write_recipes`."""
    assert PAGE.read_text("utf-8") == page()


def test_there_is_one_for_each_row_published_figures() -> None:
    assert Counter(each.heading for each in PAPERS.values()) == {
        "[A] table 1: cifar-100-python": 6,
        "[A] table 2: plantnet_300K": 5 * 4,
        "[S] table 7: plantnet_300K": 5 * 3,
        "[B] table 1, [N] tables 4 and 6: cifar-100-python": 2 * 8 + 5,
        "[N] tables 5 and 7: plantnet_300K": 6 * 4 - 1,  # smooth at K = 1 is not applicable
        "[N] version 2, 4.5.2 and table 6: ImageNet_LT": 4 * 3,
        "[B] table 2: imagenet": 5 * 2,
        "[N] version 2, appendix D and table 9: imagenet": 3 + 1,  # at K = 5 two are [B]'s
    }


@pytest.mark.parametrize("name", PAPERS)
def test_the_checkpoint_is_chosen_by_what_was_printed(name: str) -> None:
    recipe = PAPERS[name]
    choice = resolve({"recipe": name, "data": "x"}).validation
    for figure in recipe.printed[:1]:
        assert (figure.metric, figure.k) == (choice.metric, choice.k)
    assert name.endswith(f"-k{choice.k:g}")
    assert recipe.departures


def test_figures_are_those_published_figures() -> None:
    def text(figure: PublishedFigure) -> str:
        return f"{figure.name} {figure.value}"

    def first(name: str) -> str:
        return text(PAPERS[name].printed[0])

    assert first("cifar100-avg-k5") == "average-5 97.35 ± 0.06"
    assert first("cifar100-role-k5") == "average-5 96.12 ± 0.11"
    assert first("plantnet-top-k2") == "average-2 90.48 ± 0.05"
    assert first("plantnet-vitb16-an-k5") == "average-5 95.05"
    assert first("plantnet-densenet169-avg-k5") == "average-5 97.49"
    assert first("cifar100-noise0.1-noised-k5") == "top-5 92.03"
    assert first("imagenet-10pct-smooth-k5") == "top-5 73.10"
    figures = PAPERS["plantnet-macro-imbalanced-k3"].printed
    assert list(map(text, figures)) == ["macro top-3 64.77", "top-3 93.45"]
    figures = PAPERS["cifar100-noise0.2-ce-k5"].printed
    assert [(figure.source, text(figure)) for figure in figures] == [
        ("[B] table 1, row 0.2, CE", "top-5 87.89 (sd 0.08)"),
        ("[B] table 1, row 0.2, CE", "top-1 68.20 (sd 0.50)"),
        ("[N] table 4, row 0.2, CE", "top-5 87.67"),
        ("[N] table 6, row 0.2, CE", "top-1 68.19"),
    ]


def test_figures_of_several_papers_name_their_owners() -> None:
    of_both = PAPERS["cifar100-noise0.4-smooth-k5"].published
    assert of_both == "top-5 87.39 (sd 0.23) [B], 87.40 [N]; top-1 70.02 (sd 0.40) [B], 70.42 [N]"
    assert PAPERS["cifar100-noise0.3-ce-k5"].published == "top-5 85.93 [N]; top-1 65.61 [N]"
    two_heads = PAPERS["plantnet-avg-k2"].published
    assert two_heads == "average-2 90.34 ± 0.06 [A], 90.77 ± 0.16 [S]"
    assert PAPERS["plantnet-ce-k2"].published == "average-2 89.63 ± 0.08"


def test_a_row_without_data_says_where_they_are() -> None:
    with pytest.raises(UsageError, match=r"add --data plantnet_300K; .*zenodo\.5645731"):
        resolve({"recipe": "plantnet-ce-k2"})


def test_a_recipe_adds_the_options_of_its_data_once(tmp_path: Path) -> None:
    options = {"recipe": "imagenet-5pct-ce-k5", "data": "imagenet"}
    config = resolve(options)
    assert config.data == "imagenet:hold_out=50,per_class=64"
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert resolve({}, config=file) == config  # as a resumed run reads it
    assert resolve({**options, "data": "i:per_class=3"}).data == "i:per_class=3,hold_out=50"


def test_the_cifar_recipe_is_that_of_the_paper() -> None:
    config = resolve({"recipe": "cifar100-avg-k5", "data": "x"})
    assert (config.backbone, config.image_size) == ("densenet40_40", 32)
    assert (config.epochs, config.batch_size) == (300, 64)
    assert config.optimiser.learning_rate == 0.1
    assert (config.optimiser.momentum, config.optimiser.nesterov) == (0.9, True)
    assert (config.optimiser.weight_decay, config.optimiser.decay_all) == (1e-4, True)
    assert (config.schedule.milestones, config.schedule.factor) == ((150.0, 225.0), 0.1)
    assert config.loss_parameters == {"average_k": 5, "alpha": 0.3}
    assert (config.augment.shift, config.augment.border) == (4, "black")
    assert (config.precision, config.multi_label_prior) == ("fp32", 0.5)
    assert config.mean == pytest.approx((0.4914, 0.4824, 0.4467), abs=1e-4)


def test_the_plantnet_recipes_are_those_of_the_papers() -> None:
    config = resolve({"recipe": "plantnet-avg-k5", "data": "x"})
    assert (config.backbone, config.weights, config.image_size) == ("resnet18", "pretrained", 224)
    assert (config.epochs, config.batch_size) == (30, 32)
    assert config.optimiser.learning_rate == 0.002
    assert (config.optimiser.momentum, config.optimiser.nesterov) == (0.9, True)
    assert (config.schedule.milestones, config.schedule.factor) == ((25.0,), 0.1)
    assert config.loss_parameters == {"average_k": 5, "alpha": 5.0}
    assert (config.augment.flip, config.augment.min_area) == (0, (224 / 256) ** 2)
    other = resolve({"recipe": "plantnet-macro-imbalanced-k3", "data": "x"})
    assert (other.backbone, other.schedule.milestones) == ("resnet50", (20.0, 25.0))
    assert other.loss_parameters == {
        "k": 3,
        "epsilon": 0.01,
        "noise_samples": 5,
        "max_margin": 0.2,
        "scale": 60.0,
    }


def test_the_imagenet_recipes_are_those_of_the_paper() -> None:
    ce = resolve({"recipe": "imagenet-all-ce-k5", "data": "x"})
    smooth = resolve({"recipe": "imagenet-all-smooth-k5", "data": "x"})
    rates = [(c.optimiser.learning_rate, c.optimiser.weight_decay) for c in (ce, smooth)]
    assert rates == [(0.1, 1e-4), (1.0, 2.5e-5)]
    assert smooth.loss_parameters == {"k": 5, "tau": 0.1}
    assert (ce.epochs, ce.batch_size, ce.schedule.milestones) == (120, 256, (30, 60, 90))
    assert (ce.augment.flip, ce.weights, ce.crop_fraction) == (0.5, None, 0.875)


def test_the_noised_loss_on_imagenet_has_parameters_of_its_own() -> None:
    for k in (1, 5):
        noised = resolve({"recipe": f"imagenet-all-noised-k{k}", "data": "x"})
        assert noised.loss_parameters == {"k": k, "epsilon": 0.5, "noise_samples": 10}
        assert (noised.optimiser.learning_rate, noised.optimiser.weight_decay) == (0.1, 1.5e-4)
        assert (noised.epochs, noised.batch_size, noised.schedule.milestones) == (
            *(120, 256, (30, 60, 90)),
        )
        assert noised.data == "x:hold_out=50"
    smooth = resolve({"recipe": "imagenet-all-smooth-k1", "data": "x"})
    assert smooth.loss_parameters == {"k": 1, "tau": 0.1}
    assert (smooth.optimiser.learning_rate, smooth.optimiser.weight_decay) == (1.0, 2.5e-5)


CLASSES = 11  # K of 10 has to fit
FAMILIES = {recipe.heading: name for name, recipe in PAPERS.items()}
"""The last recipe of each table."""


@pytest.mark.parametrize("name", FAMILIES.values())
def test_a_recipe_starts_on_a_tiny_copy_of_its_data(name: str, tmp_path: Path) -> None:
    """Uses a small network; the tests of networks build the one of the row."""
    recipe: Recipe = PAPERS[name]
    few = ":fraction=0.2" if recipe.data in ("cifar-100-python", "imagenet") else ""
    photos = pool(tmp_path / "pool", count=8, width=8, height=8)
    data = f"{COPIES[recipe.data](tmp_path / 'data', CLASSES, photos)}{few}"
    options = {"recipe": name, "data": data, "backbone": "tiny", "weights": "none", "epochs": 1}
    smaller = ["workers=0", "image_size=16", "batch_size=16"]
    config = resolve({**options, "device": "cpu"}, overrides=smaller)
    result = train_quietly(config, tmp_path / "run")
    assert result.epochs == 1
    assert result.accuracy is not None


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in PAPERS])
def test_a_recipe_of_ours_starts_on_few_photos(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    flora = "data" in recipe.settings
    data = "flora:train=60,val=40" if flora else write_photos(tmp_path / "photos", train=6, val=2)
    weights = None
    if "weights" in recipe.settings:
        weights = str(tmp_path / "resnet18.pth")
        torch.save(torchvision.models.resnet18(weights=None).state_dict(), weights)
    options = {"recipe": name, "data": str(data), "weights": weights, "epochs": 1, "device": "cpu"}
    config = resolve(options, overrides=["workers=0", "image_size=48"])
    result = train_quietly(config, tmp_path / "run")
    solved_for = config.optimiser.name == "lbfgs"
    rows = len(decays_of(config.optimiser)) if solved_for else 1
    assert (result.epochs, result.accuracy is None) == (rows, False)


@pytest.mark.parametrize(("network", "side"), SIDES.items())
def test_operations_are_those_that_torch_counts(network: str, side: int) -> None:
    with torch.device("meta"):
        model = build(network, CLASSES_OF_SIDE[side], "linear", image_size=side).train()
        pictures = torch.empty(2, 3, side, side)
        with FlopCounterMode(display=False) as counter:
            logits = model(pictures)
            forward = counter.get_total_flops()
            torch.autograd.backward(logits.sum())
    counted = [total / 2e9 for total in (forward, counter.get_total_flops())]
    assert counted == pytest.approx(COSTS["gigaflops"][network], rel=1e-3)


def test_a_row_is_counted_picture_by_picture() -> None:
    cost = Cost.of(PAPERS["cifar100-ce-k5"])
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
    part, whole = (Cost.of(RECIPES[f"imagenet-{share}-ce-k5"]) for share in ("5pct", "all"))
    assert part is not None
    assert whole is not None
    assert part.pictures == 120 * 64 * 1000
    assert part.steps == 120 * 250
    assert whole.pictures == 120 * COSTS["photos"]["imagenet"][0]


def test_every_row_has_a_cost_and_ours_none() -> None:
    for name, recipe in RECIPES.items():
        cost = Cost.of(recipe)
        assert (cost is None) == (name not in PAPERS), name
        assert cost is None or recipe.settings["image_size"] == SIDES[recipe.settings["backbone"]]
        assert cost is None or math.isfinite(cost.gpu_hours)
        assert cost is None or processor_hours(cost), f"time a step of {name} on a CPU"


def test_the_rate_of_the_estimates_is_between_the_published_ones() -> None:
    rates = []
    for recipe in (PAPERS["cifar100-noise0-ce-k5"], PAPERS["imagenet-all-ce-k5"]):
        cost = Cost.of(recipe)
        assert cost is not None
        assert recipe.gpu_hours is not None
        rates.append(cost.operations / recipe.gpu_hours / 3600)
    assert rates == pytest.approx([0.344e13, 0.62e13], rel=0.01)
    assert rates[0] < SUSTAINED < rates[1]

import pytest

from models.backbones import available
from training.losses import LOSSES, build
from training.recipes import RECIPES
from training.settings import resolve


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_what_exists(recipe: str) -> None:
    config = resolve({"recipe": recipe, "data": "flora"})
    assert config.backbone in available()
    assert config.loss_name in LOSSES
    build(config.loss_name, **config.loss_parameters)


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


def test_the_plantnet_recipe_is_that_of_the_paper() -> None:
    config = resolve({"recipe": "plantnet-avg-k5", "data": "x"})
    assert (config.backbone, config.weights, config.image_size) == ("resnet18", "pretrained", 224)
    assert (config.epochs, config.batch_size) == (30, 32)
    assert config.optimiser.learning_rate == 0.002
    assert (config.optimiser.momentum, config.optimiser.nesterov) == (0.9, True)
    assert (config.schedule.milestones, config.schedule.factor) == ((25.0,), 0.1)
    assert config.loss_parameters == {"average_k": 5, "alpha": 5.0}

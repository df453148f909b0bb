import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from florilege.models.backbones import build
from florilege.training.config import OptimiserConfig, ScheduleConfig, TrainConfig
from florilege.training.loop.training_state import (
    TrainingState,
    _make_optimiser,
    _restore,
    _WeightAverage,
    rate_share,
)
from florilege.training.machines import Compute


def _by_name(
    network: nn.Module, groups: list[dict[str, Any]], rate: str = "multiplier"
) -> dict[str, tuple[float, float]]:
    """Weight decay and rate multiplier of each parameter of ``network``."""
    names = {id(p): name for name, p in network.named_parameters()}
    return {
        names[id(parameter)]: (group["weight_decay"], group[rate])
        for group in groups
        for parameter in group["params"]
        if id(parameter) in names
    }


def _settings(config: OptimiserConfig) -> dict[str, tuple[float, float]]:
    network = build("tiny", 3, "two_head")
    return _by_name(network, _make_optimiser(network, config).param_groups)


def test_every_parameter_is_trained_once() -> None:
    assert set(_settings(OptimiserConfig())) == {
        name for name, _ in build("tiny", 3, "two_head").named_parameters()
    }


def test_biases_and_normalisation_are_not_decayed_by_default() -> None:
    result = _settings(OptimiserConfig(weight_decay=0.1))
    assert result["backbone.layers.0.0.weight"][0] == 0.1  # convolution
    assert result["head.sccp.weight"][0] == 0.1
    assert result["backbone.layers.0.1.weight"][0] == 0.0  # batch norm
    assert result["head.sccp.bias"][0] == 0.0
    everything = _settings(OptimiserConfig(weight_decay=0.1, decay_all=True))
    assert {decay for decay, _ in everything.values()} == {0.1}


def test_the_multi_label_head_has_its_own_rate() -> None:
    result = _settings(OptimiserConfig(multi_label_rate=10.0))
    faster = {name for name, (_, multiplier) in result.items() if multiplier == 10.0}
    assert faster == {"head.multi_label.weight", "head.multi_label.bias"}


def _state(network: nn.Module, config: OptimiserConfig) -> TrainingState:
    settings = TrainConfig(data="flora", optimiser=config)
    return TrainingState(network, nn.Identity(), settings, Compute(torch.device("cpu"), "fp32"))


def test_the_rate_is_set_group_by_group() -> None:
    network = build("tiny", 3, "two_head")
    config = OptimiserConfig(multi_label_rate=10.0)
    trained = _state(network, config)
    trained.set_rate(0.02)
    for group in trained.optimiser.param_groups:
        assert group["lr"] == 0.02 * group["multiplier"]


def _nesterov(weight: float, steps: int) -> float:
    velocity = 0.0
    for step in range(steps):
        gradient = 4.0 * weight + 0.2 * weight
        velocity = gradient if step == 0 else 0.5 * velocity + gradient
        weight -= 0.1 * (gradient + 0.5 * velocity)
    return weight


def _adamw(weight: float, steps: int) -> float:
    mean, square = 0.0, 0.0
    for step in range(1, steps + 1):
        gradient = 4.0 * weight
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        moment, scale = mean / (1 - 0.9**step), math.sqrt(square / (1 - 0.999**step))
        weight -= 0.1 * (0.2 * weight + moment / (scale + 1e-8))
    return weight


@pytest.mark.parametrize(
    ("settings", "by_hand"), [({"momentum": 0.5}, _nesterov), ({"name": "adamw"}, _adamw)]
)
def test_steps_are_those_of_its_formula_by_hand(
    settings: dict[str, Any], by_hand: Callable[[float, int], float]
) -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    config = OptimiserConfig.model_validate({**settings, "weight_decay": 0.2})
    trained = _state(layer, config)
    for steps in range(1, 4):
        trained.set_rate(0.1)
        trained.optimiser.zero_grad()
        (layer(torch.tensor([[2.0]])) ** 2 / 2).sum().backward()
        trained.optimiser.step()
        result = layer.weight.item()
        torch.testing.assert_close(result, by_hand(1.0, steps), rtol=1e-5, atol=1e-6)


def test_each_block_below_the_head_has_its_share_of_the_rate_of_the_one_above() -> None:
    result = _settings(OptimiserConfig(layer_decay=0.5, multi_label_rate=3.0))
    rates = {name: multiplier for name, (_, multiplier) in result.items()}
    assert rates["head.sccp.weight"] == 1.0
    assert rates["head.multi_label.bias"] == 3.0
    for layer in range(5):  # tiny has five
        assert rates[f"backbone.layers.{layer}.0.weight"] == 0.5 ** (5 - layer)
        assert rates[f"backbone.layers.{layer}.1.bias"] == 0.5 ** (5 - layer)


@pytest.mark.parametrize(
    "name",
    [
        "regnety_032",
        "swin_tiny_patch4_window7_224",
        "convnext_tiny",
        "tf_efficientnet_lite0",
        "vit_tiny_patch16_224",
        "vgg11",
        "densenet121",
        "mobilenetv3_small_050",
        "hiera_tiny_224",
        "levit_128s",
    ],
)
def test_rates_and_decay_are_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        whole: Any = timm.create_model(name, num_classes=3)
    spared = whole.no_weight_decay() if hasattr(whole, "no_weight_decay") else ()
    apart: Any = import_module("timm.optim")  # which mypy does not see
    groups = apart.param_groups_layer_decay(whole, 0.05, spared, layer_decay=0.75)
    theirs = _by_name(whole, groups, "lr_scale")
    with torch.device("meta"):
        network = build(f"timm:{name}", 3, "linear")
    config = OptimiserConfig(layer_decay=0.75, weight_decay=0.05)
    ours = _by_name(network.backbone, _make_optimiser(network, config).param_groups)
    assert ours.keys() == {name for name, _ in network.backbone.named_parameters()}
    assert ours == {name: pytest.approx(theirs[name]) for name in ours}


def test_what_is_not_trained_is_not_given_to_the_optimiser() -> None:
    network = build("tiny", 3, "linear")
    network.train_only(1)
    result = _by_name(network, _make_optimiser(network, OptimiserConfig()).param_groups)
    assert {name.rpartition(".")[0] for name in result} == {
        "backbone.layers.4.0", "backbone.layers.4.1", "head",
    }  # fmt: skip


def _cosine(steps: int) -> list[float]:
    return [(1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]


@pytest.mark.parametrize(
    ("schedule", "steps", "epochs", "shares"),
    [
        ({"name": "cosine"}, 4, 3, _cosine(12)),
        ({"name": "cosine", "warmup_epochs": 1}, 4, 3, [0.25, 0.5, 0.75, 1, *_cosine(8)]),
        ({"name": "cosine", "warmup_epochs": 5}, 2, 2, [0.1, 0.2, 0.3, 0.4]),  # the run is shorter
        ({"name": "step", "milestones": [1, 2]}, 3, 3, [1, 1, 1, 0.1, 0.1, 0.1, *[0.01] * 3]),
        ({"name": "step", "milestones": [0.5], "factor": 0.5}, 4, 1, [1, 1, 0.5, 0.5]),
        ({"name": "cosine", "final": 0.2}, 4, 3, [0.2 + 0.8 * share for share in _cosine(12)]),
        ({"name": "constant", "warmup_epochs": 0.5}, 4, 2, [0.5, *[1] * 7]),
    ],
)
def test_the_rate_at_every_step_is_that_of_the_schedule(
    schedule: dict[str, Any], steps: int, epochs: int, shares: list[float]
) -> None:
    config = ScheduleConfig.model_validate(schedule)
    result = [
        rate_share(config, step=step, steps_per_epoch=steps, epochs=epochs)
        for step in range(steps * epochs)
    ]
    assert result == pytest.approx(shares)


def test_a_checkpoint_of_a_gpu_is_resumed_on_a_cpu_by_the_code_for_that() -> None:
    config = OptimiserConfig.model_validate({"name": "adamw"})
    network = nn.Linear(2, 2)
    optimiser = _make_optimiser(network, config)
    network(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    state = optimiser.state_dict()
    state["param_groups"][0]["fused"] = True  # as on a GPU
    resumed = _make_optimiser(network, config)
    _restore(resumed, state)
    assert [group["fused"] for group in resumed.param_groups] == [None] * 2
    assert torch.equal(resumed.state_dict()["state"][0]["exp_avg"], state["state"][0]["exp_avg"])


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_it_has_the_bits_and_the_state_of_torchs_own() -> None:
    network, decay = _network(), 0.5
    average = _WeightAverage(network, decay)

    def update(ours: list[torch.Tensor], theirs: list[torch.Tensor], steps: torch.Tensor) -> None:
        if ours[0].is_floating_point():
            torch._foreach_lerp_(ours, theirs, 1 - min(decay, (1 + int(steps)) / (10 + int(steps))))
        else:
            torch._foreach_copy_(ours, theirs)

    torchs = AveragedModel(network, multi_avg_fn=update, use_buffers=True)  # type: ignore[arg-type]  # lists alone
    for _ in range(20):
        network(torch.randn(8, 3)).sum().backward()
        with torch.no_grad():
            for value in network.parameters():
                value.add_(torch.randn(value.shape))
        average.update_parameters(network)
        torchs.update_parameters(network)
    assert list(average.state_dict()) == list(torchs.state_dict())  # checkpoints hold either
    for key, value in torchs.state_dict().items():
        assert torch.equal(average.state_dict()[key], value), key

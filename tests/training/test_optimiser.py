import torch
from torch import nn

from models.backbones import build
from training.config import OptimiserConfig
from training.losses import build as build_loss
from training.optimiser import make_optimiser, set_rate


def _settings(
    config: OptimiserConfig, loss_fn: nn.Module | None = None
) -> dict[str, tuple[float, float]]:
    """Weight decay and rate multiplier of each parameter by name."""
    network = build("tiny", 3, "two_head")
    loss_fn = loss_fn or build_loss("two_head_average_k")
    optimiser = make_optimiser(network, loss_fn, config)
    names = {id(p): name for name, p in network.named_parameters()}
    names |= {id(p): f"loss.{name}" for name, p in loss_fn.named_parameters()}
    return {
        names[id(parameter)]: (group["weight_decay"], group["multiplier"])
        for group in optimiser.param_groups
        for parameter in group["params"]
    }


def test_every_parameter_is_trained_once() -> None:
    assert set(_settings(OptimiserConfig())) == {
        name for name, _ in build("tiny", 3, "two_head").named_parameters()
    }


def test_biases_and_normalisation_are_not_decayed_unless_asked() -> None:
    found = _settings(OptimiserConfig(weight_decay=0.1))
    assert found["backbone.layers.0.0.weight"][0] == 0.1  # convolution
    assert found["head.sccp.weight"][0] == 0.1
    assert found["backbone.layers.0.1.weight"][0] == 0.0  # batch norm
    assert found["head.sccp.bias"][0] == 0.0
    everything = _settings(OptimiserConfig(weight_decay=0.1, decay_all=True))
    assert {decay for decay, _ in everything.values()} == {0.1}


def test_the_multi_label_head_has_its_own_rate() -> None:
    found = _settings(OptimiserConfig(multi_label_rate=10.0))
    faster = {name for name, (_, multiplier) in found.items() if multiplier == 10.0}
    assert faster == {"head.multi_label.weight", "head.multi_label.bias"}


def test_the_rate_is_set_group_by_group() -> None:
    network = build("tiny", 3, "two_head")
    config = OptimiserConfig(multi_label_rate=10.0)
    optimiser = make_optimiser(network, nn.Identity(), config)
    set_rate(optimiser, 0.02)
    for group in optimiser.param_groups:
        assert group["lr"] == 0.02 * group["multiplier"]


def test_what_the_loss_learns_is_trained_without_decay() -> None:
    loss_fn = nn.Module()
    loss_fn.estimates = nn.Parameter(torch.zeros(4, 3))
    loss_fn.rate_multiplier = 5.0  # type: ignore[assignment]  # modules type attributes as tensors
    assert _settings(OptimiserConfig(), loss_fn)["loss.estimates"] == (0.0, 5.0)


def test_one_step_is_nesterov_momentum_by_hand() -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    config = OptimiserConfig(learning_rate=0.1, momentum=0.5, weight_decay=0.2)
    optimiser = make_optimiser(layer, nn.Identity(), config)
    weight, velocity = 1.0, 0.0
    for step in range(3):
        set_rate(optimiser, 0.1)
        optimiser.zero_grad()
        layer(torch.tensor([[2.0]])).sum().backward()
        optimiser.step()
        gradient = 2.0 + 0.2 * weight
        velocity = gradient if step == 0 else 0.5 * velocity + gradient
        weight -= 0.1 * (gradient + 0.5 * velocity)
        torch.testing.assert_close(layer.weight.item(), weight, rtol=1e-5, atol=1e-6)

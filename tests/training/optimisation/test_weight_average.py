import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from florilege.training.optimisation.weight_average import WeightAverage


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_it_has_the_bits_and_the_state_of_torchs_own() -> None:
    network, decay = _network(), 0.5
    average = WeightAverage(network, decay)

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

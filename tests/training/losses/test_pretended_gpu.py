"""No loss and no head mixes devices or waits for a GPU, seen without one.

Torch computes shapes and devices of tensors on a GPU that is not there. Reading a value of such a
tensor, which on a real GPU would wait for it, is an error, as is adding one on the CPU.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from florilege.models.backbones import build
from florilege.training.losses import LOSSES
from tests.training.losses.examples import CLASSES, PARAMETERS

ON_GPU = "cuda"


@pytest.fixture
def mode() -> Iterator[FakeTensorMode]:
    with torch.random.fork_rng(devices=[]):
        yield FakeTensorMode()


def _moved(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The module with its parameters and buffers on the pretended GPU."""
    for part in module.modules():
        named = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, value in named:
            copy = mode.from_tensor(value.detach())
            with mode:
                moved = copy.to(ON_GPU)
            setattr(part, name, nn.Parameter(moved) if isinstance(value, nn.Parameter) else moved)
    return module


# `role` keeps its estimates on the CPU, by rows that it gets there.
@pytest.mark.parametrize("key", sorted(LOSSES.keys() - {"role"}))
def test_a_loss_stays_on_the_device_and_reads_nothing(key: str, mode: FakeTensorMode) -> None:
    loss = _moved(LOSSES[key](**PARAMETERS[key]), mode)
    with mode:
        logits = torch.randn(8, CLASSES, requires_grad=True, device=ON_GPU)
        labels = torch.randint(CLASSES, (8,), device=ON_GPU)
        outputs = (logits, logits / 2) if key == "two_head_average_k" else (logits,)
        value = loss(*outputs, labels)
    assert value.device.type == "cuda"
    assert value.requires_grad


@pytest.mark.parametrize("head", ["linear", "cosine", "two_head"])
def test_a_network_stays_on_the_device(head: str, mode: FakeTensorMode) -> None:
    network = _moved(build("tiny", CLASSES, head), mode)
    with mode:
        outputs = network(torch.rand(2, 3, 32, 32, device=ON_GPU))
    for logits in outputs if isinstance(outputs, tuple) else (outputs,):
        assert (logits.device.type, logits.dtype) == ("cuda", torch.float32)


def test_a_pretended_gpu_notices_a_value_that_is_read(mode: FakeTensorMode) -> None:
    with mode, pytest.raises(DataDependentOutputException):
        torch.rand(3, device=ON_GPU).sum().item()

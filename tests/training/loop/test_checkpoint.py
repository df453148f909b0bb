import errno
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from florilege.errors import BundleError
from florilege.training.config import TrainConfig
from florilege.training.loop.training_state import Position, TrainingState, _save_weights
from florilege.training.machines import Compute

CONFIG = TrainConfig.model_validate(
    {"data": "flora", "optimiser": {"learning_rate": 0.1, "nesterov": False, "weight_decay": 0.0}}
)


def _state(network: nn.Module) -> TrainingState:
    """With a loss that has a state of its own."""
    return TrainingState(network, nn.Linear(1, 1), CONFIG, Compute(torch.device("cpu"), "fp32"))


def _trained(width: int = 3, *, steps: int = 1) -> TrainingState:
    network = nn.Sequential(OrderedDict(backbone=nn.Linear(2, width)))
    trained = _state(network)
    network(torch.ones(1, 2)).sum().backward()
    for _ in range(steps):
        trained.optimiser.step()
    return trained


def _position() -> Position:
    return Position(
        epoch=2, batch=3, step=17, seconds=1.25, loss_sum=0.1 + 0.2, examples=24,
        best_score=0.7, best_epoch=1, history=[{"epoch": 1, "val_best_head": "sccp"}],
    )  # fmt: skip


def test_everything_comes_back_exactly(tmp_path: Path) -> None:
    before = _trained(steps=2)
    torch.manual_seed(3)
    before.save(tmp_path / "last.pt", _position())
    expected = torch.rand(4)
    torch.manual_seed(99)
    after = _trained()
    assert after.load(tmp_path / "last.pt") == _position()
    assert torch.equal(torch.rand(4), expected)  # the random state is that of the save
    for saved, result in ((before.network, after.network), (before.loss_fn, after.loss_fn)):
        for key, value in saved.state_dict().items():
            assert torch.equal(result.state_dict()[key], value)
    one, other = before.optimiser.state_dict(), after.optimiser.state_dict()
    assert torch.equal(one["state"][0]["momentum_buffer"], other["state"][0]["momentum_buffer"])


def test_a_checkpoint_of_another_network_is_refused_with_a_few_of_its_weights(
    tmp_path: Path,
) -> None:
    _trained(3).save(tmp_path / "last.pt", Position())
    with pytest.raises(BundleError, match=r"last\.pt belongs to .*, 2 weights differ: backbone\."):
        _trained(4).load(tmp_path / "last.pt")
    deep = nn.Sequential(OrderedDict(backbone=nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)))))
    _state(deep).save(tmp_path / "last.pt", Position())
    with pytest.raises(BundleError, match=r"102 weights differ: .*; \.\.\.$") as caught:
        _trained().load(tmp_path / "last.pt")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*"),
        (b"", ".* is damaged or not a checkpoint"),
        (b"nothing", ".* is damaged or not a checkpoint"),
        (b"PK\x03\x04", ".* is damaged or not a checkpoint"),
        ([1], ".* is not a checkpoint of a run"),
        ({"format": 99}, ".* has format 99, this version reads 1"),
        ({"format": 1}, ".* does not fit this run"),
    ],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "last.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(BundleError, match=message.replace(".*", r".*last\.pt")):
        _trained().load(path)


def test_a_full_disk_leaves_the_old_checkpoint_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    _trained().save(path, Position(step=1))
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BundleError, match="continue"):
        _trained().save(path, Position(step=2))
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["last.pt"]


def test_weights_are_written_as_they_are(tmp_path: Path) -> None:
    network: Any = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    _save_weights(tmp_path / "w.safetensors", network.state_dict())
    result = load_file(tmp_path / "w.safetensors")
    assert torch.equal(result["weight"], network.weight)
    assert result.keys() == {"weight", "bias"}


def test_the_random_state_of_the_gpu_that_trains_is_saved_and_one_of_several_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored, path = list[torch.Tensor](), tmp_path / "last.pt"
    first, second = (torch.tensor([number], dtype=torch.uint8) for number in (7, 8))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: first)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    _trained().save(path, Position())
    content = torch.load(path, weights_only=True)
    assert content["random_cuda"] == [first]
    torch.save(content | {"random_cuda": [first, second]}, path)  # as of two GPUs
    _trained().load(path)
    assert restored == [first]

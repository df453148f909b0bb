"""What a step and a run on the CPU must not do on a GPU: wait for it, compile again, wake it."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from florilege.training.batches import BatchLoader
from florilege.training.configuration import RunFolder
from florilege.training.loop import Run
from florilege.training.loop.training_state import Position, TrainingState
from florilege.training.machines import Compute
from florilege.training.network import _make_objective, build_network
from tests.training.small import lines_of, small_config, sources_of, train_quietly


def test_only_batches_of_the_usual_size_are_compiled(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, rows_in_all = list[int](), list[int]()

    def recording(network: nn.Module, **_: Any) -> Any:
        network.register_forward_hook(lambda _module, inputs, _: rows_in_all.append(len(inputs[0])))

        def forward(images: Tensor) -> Any:
            compiled.append(len(images))
            return network(images)

        return forward

    monkeypatch.setattr("florilege.training.loop.torch.compile", recording)
    config = small_config(photos, epochs=2, batch_size=10, compile=True)
    lines = lines_of(config, tmp_path / "run")
    assert compiled == [10] * 6
    assert sorted({*rows_in_all}) == [6, 10, 15]  # 36 pictures in batches of 10, and val
    assert [line for line in lines if "ompil" in line] == [
        "compiling the network in the first step; a large one takes minutes",
        "compiled, and one step done, in 0 s",
    ]


def test_a_run_on_the_cpu_makes_no_context_on_a_gpu(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wake() -> None:
        raise AssertionError("the run touched the GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", wake)
    config = small_config(photos, epochs=1)
    train_quietly(config, tmp_path / "run")
    train_quietly(small_config(photos, epochs=2), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": {"name": "two_head_average_k", "average_k": 2}, "accumulate": 2},
        {"loss": {"name": "cross_entropy"}, "average": {"decay": 0.9}, "class_weight_power": 0.5},
        {"loss": {"name": "noised_top_k", "k": 2}, "mixup": 0.5},
        {"loss": {"name": "smooth_top_k", "k": 2}, "optimiser": {"clip_norm": 1.0}},
        {"loss": {"name": "smooth_top_k", "k": 2}, "mixup": 0.5},
        {"loss": {"name": "two_head_average_k", "average_k": 2}, "cutmix": 0.5},
        {"loss": {"name": "role", "average_k": 2}},
        {"loss": {"name": "ldam"}, "optimiser": {"name": "adamw"}},
    ],
    ids=lambda settings: settings["loss"]["name"],
)
def test_no_step_reads_a_value_from_the_device(
    settings: dict[str, Any], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device has no values: whatever reads one, and so would wait for a GPU, fails."""
    monkeypatch.setattr(Compute, "autocast", lambda _self: nullcontext())
    monkeypatch.setattr(Compute, "scaler", lambda _self: torch.amp.GradScaler("cpu", enabled=False))
    config, compute = small_config(photos, **settings), Compute(torch.device("meta"), "fp32")
    objective = _make_objective(config, [12, 12, 12])
    network = build_network(config, objective.head, 3).to(compute.device)
    objective.loss_fn.to(compute.device)
    trained = TrainingState(network, objective.loss_fn, config, compute)
    run = Run(
        *(config, RunFolder(tmp_path), network, compute, objective, trained, Position()),
        say=lambda _: None,
    )
    batches = BatchLoader(sources_of(config), config).training(0)
    for _ in range(2):  # the first step of an average copies
        loss = run.train_step([next(batches) for _ in range(config.accumulate)], steps=4)
        run.sums[1] += objective.mean_set_size * 8
    assert loss.is_meta

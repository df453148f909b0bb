"""Tests that need a GPU, rehearsed on the CPU if the same code runs there: a step, resuming, half
precision, compiling, features, pinned batches and several ranks."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from florilege.data.sources import open_dataset
from florilege.models.backbones import build
from florilege.models.heads import exact_float32
from florilege.models.images import Preprocess
from florilege.training.batches import Batch, run_photos
from florilege.training.configuration import to_yaml
from florilege.training.frozen import _FrozenBackbone
from florilege.training.loop import Run
from florilege.training.machines import Compute, _connected
from tests.training.small import (
    check_resuming,
    checkpoint_of,
    last_weights,
    lines_of,
    small_config,
    train_quietly,
    write_photos,
)

ROOT = Path(__file__).parents[3]
GPUS = torch.cuda.device_count()


def _on_gpus(count: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(count > GPUS, reason=f"needs {count} CUDA devices")


ON_A_GPU = [pytest.mark.gpu, _on_gpus(1)]
EVERYWHERE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])


def _train(run: Path, photos: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """The weights after an epoch."""
    train_quietly(small_config(photos, epochs=1, **settings), run)
    return last_weights(run)


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deterministic algorithms, on a GPU too."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@EVERYWHERE
def test_a_run_ends_with_the_weights_of_a_cpu(device: str, photos: Path, tmp_path: Path) -> None:
    with exact_float32():
        on_cpu, here = (
            _train(tmp_path / name, photos, device=where, precision="fp32")
            for name, where in {"cpu": "cpu", "here": device}.items()
        )
    torch.testing.assert_close(on_cpu, here, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@_on_gpus(1)
def test_half_precision_with_clipping_is_near_float32(photos: Path, tmp_path: Path) -> None:
    single, half = (
        _train(
            tmp_path / precision,
            photos,
            device="cuda",
            precision=precision,
            optimiser={"clip_norm": 0.5},
        )
        for precision in ("fp32", "fp16")
    )
    name = "head.sccp.weight"
    torch.testing.assert_close(single[name], half[name], rtol=0, atol=0.05)


@pytest.mark.gpu
@_on_gpus(1)
def test_a_compiled_run_trains(photos: Path, tmp_path: Path) -> None:
    weights = _train(tmp_path / "run", photos, device="cuda", compile=True)
    assert all(value.isfinite().all() for value in weights.values())


@pytest.mark.gpu
@_on_gpus(1)
def test_batches_are_pinned(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, loss = list[bool](), Run.loss

    def watched(run: Run, batch: Batch, number: int) -> torch.Tensor:
        pinned.append(batch.images.is_pinned())
        return loss(run, batch, number)

    monkeypatch.setattr(Run, "loss", watched)
    _train(tmp_path / "run", photos, device="cuda")
    assert pinned
    assert all(pinned)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_run_on_a_gpu_asks_for_pinned_batches_and_warns_of_the_default_decay(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """The GPU is pretended: the run computes on the CPU."""
    pinned = set[bool]()

    class WithoutGpu(torch.utils.data.DataLoader[Any]):
        def __init__(self, *args: Any, pin_memory: bool, **options: Any) -> None:
            pinned.add(pin_memory)
            super().__init__(*args, **options)

    monkeypatch.setattr(run_photos, "DataLoader", WithoutGpu)
    monkeypatch.setattr(Compute, "on_gpu", on_gpu)
    lines = lines_of(small_config(photos, epochs=1, device="cpu"), tmp_path / "run")
    assert max(pinned) is on_gpu
    assert any("weight decay 0.0001 is made for many photos" in line for line in lines) is on_gpu


@EVERYWHERE
def test_features_are_those_of_a_cpu(
    device: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_FrozenBackbone, "_by_graph", _FrozenBackbone._by_torch)
    split, size = open_dataset(str(photos)).split("val"), Preprocess(image_size=16)
    network = build("tiny", 3, "linear")
    values = []
    for name, where in {"cpu": "cpu", "here": device}.items():
        compute = Compute(torch.device(where), "fp32")
        backbone = _FrozenBackbone(network.to(where), size, tmp_path / name, compute, 0, print)
        features = backbone.features(split)
        values.append(np.stack([features[row] for row in range(len(features))]))
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-4)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = list[int]()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "new_group", lambda **_: None)
    _connected(torch.device("cuda"), 2)
    assert devices == [1]


@EVERYWHERE
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.usefixtures("deterministic")
def test_a_run_cut_off_and_resumed_ends_in_the_same_bits(
    device: str, optimiser: str, tmp_path: Path
) -> None:
    config = small_config(
        write_photos(tmp_path / "photos", train=10, val=3),
        device=device,
        loss={"name": "cross_entropy"},
        optimiser={"name": optimiser},
        average={"decay": 0.9},
        checkpoint={"every_steps": 3},
    )
    check_resuming(config, tmp_path, at=5)


@pytest.mark.gpu
@_on_gpus(2)
def test_two_ranks_train_as_one_would(tmp_path: Path) -> None:
    """Over NCCL, as `test_distributed` does over gloo; batch norms keep their statistics, which
    would otherwise be those of a rank."""
    config = small_config(
        write_photos(tmp_path / "photos"),
        unfreeze="all",
        device="cuda",
        precision="fp32",
        loss={"name": "cross_entropy"},
        optimiser={"learning_rate": 0.001},
        epochs=1,
    )
    settings = tmp_path / "settings.yaml"
    settings.write_text(to_yaml(config))
    train_quietly(config, tmp_path / "one")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "florilege", "train", f"--config={settings}", f"--out={tmp_path / 'two'}"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=110, check=False)
    assert process.returncode == 0, process.stderr.decode()
    position = checkpoint_of(tmp_path / "two")["position"]
    assert (position["processes"], position["epoch"]) == (2, 1)
    one, two = (load_file(tmp_path / name / "best.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)

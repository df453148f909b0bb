"""Training on a GPU; on a CPU the same tests run where the code allows, so that they stay right."""

from pathlib import Path

import numpy as np
import pytest
import torch

from florilege.data.sources import open_dataset
from florilege.models.backbones import build
from florilege.models.images import Preprocess
from florilege.training import checkpoint, distributed
from florilege.training.checkpoint import Position, Trained
from florilege.training.data_loader import Batch
from florilege.training.device import Compute
from florilege.training.frozen.features import FrozenBackbone
from florilege.training.loop import Run
from florilege.training.losses import build as build_loss
from florilege.training.train import train_run
from tests.training.small import small_config, write_photos

NEEDS_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EVERYWHERE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
ON_A_GPU = pytest.mark.parametrize("device", [pytest.param("cuda", marks=NEEDS_CUDA)])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


def _weights(run: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(run / "last.pt", weights_only=True)["network"]
    return weights


@EVERYWHERE
def test_a_run_ends_with_the_weights_of_a_cpu(device: str, photos: Path, tmp_path: Path) -> None:
    for name, where in {"cpu": "cpu", "here": device}.items():
        config = small_config(photos, device=where, precision="fp32", epochs=1)
        train_run(config, tmp_path / name, say=lambda _: None)
    torch.testing.assert_close(
        _weights(tmp_path / "cpu"), _weights(tmp_path / "here"), rtol=1e-2, atol=1e-3
    )


@ON_A_GPU
def test_fp16_with_clipping_is_near_fp32(device: str, photos: Path, tmp_path: Path) -> None:
    for precision in ("fp32", "fp16"):
        config = small_config(photos, device=device, precision=precision, epochs=1)
        clipped = config.optimiser.model_copy(update={"clip_norm": 0.5})
        config = config.model_copy(update={"optimiser": clipped})
        train_run(config, tmp_path / precision, say=lambda _: None)
    one, other = _weights(tmp_path / "fp32"), _weights(tmp_path / "fp16")
    torch.testing.assert_close(
        one["head.sccp.weight"], other["head.sccp.weight"], rtol=0, atol=0.05
    )


@ON_A_GPU
def test_a_compiled_run_trains(device: str, photos: Path, tmp_path: Path) -> None:
    config = small_config(photos, device=device, compile=True, epochs=1)
    train_run(config, tmp_path / "run", say=lambda _: None)
    assert all(value.isfinite().all() for value in _weights(tmp_path / "run").values())


@EVERYWHERE
def test_the_random_state_of_the_device_goes_on(device: str, tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 2)).to(device)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    trained = Trained(network, optimiser, build_loss("cross_entropy"))
    checkpoint.save(tmp_path / "last.pt", trained, Position())
    expected = torch.rand(4, device=device)
    torch.manual_seed(99)
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    torch.set_rng_state(state["random"])
    if device == "cuda":
        torch.cuda.set_rng_state(state["random_cuda"][0])
    assert torch.equal(torch.rand(4, device=device), expected)


@EVERYWHERE
def test_features_are_those_of_a_cpu(
    device: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrozenBackbone, "_by_graph", FrozenBackbone._by_torch)
    split, size = open_dataset(str(photos)).split("val"), Preprocess(image_size=16)
    network = build("tiny", 3, "linear")
    values = list[np.ndarray]()
    for name, where in {"cpu": "cpu", "here": device}.items():
        compute = Compute(torch.device(where), "fp32")
        folder = tmp_path / name
        features = FrozenBackbone(network.to(where), size, folder, compute, 0, print).features(
            split
        )
        values.append(np.stack([features.read(row) for row in range(len(features))]))
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-4)


@ON_A_GPU
def test_batches_are_pinned(
    device: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, loss = list[bool](), Run.loss

    def watched(run: Run, batch: Batch, number: int) -> torch.Tensor:
        pinned.append(batch.images.is_pinned())
        return loss(run, batch, number)

    monkeypatch.setattr(Run, "loss", watched)
    train_run(small_config(photos, device=device, epochs=1), tmp_path / "run", say=lambda _: None)
    assert pinned
    assert all(pinned)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[int]()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "new_group", lambda **_: None)
    distributed._connected(torch.device("cuda"), 2)
    assert taken == [1]

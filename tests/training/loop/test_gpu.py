"""What only a GPU can show, rehearsed on the CPU by the same code: resuming, and several ranks."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from florilege.training.batches.data_loader import Batch
from florilege.training.configuration import to_yaml
from florilege.training.loop.training_loop import Run
from florilege.training.train import train_run
from tests.training.small import small_config, write_photos

ROOT = Path(__file__).parents[3]
GPUS = torch.cuda.device_count()


def _on_gpus(count: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(count > GPUS, reason=f"needs {count} CUDA devices")


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Algorithms whose sums have one order, on a GPU too."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class _Killed(Exception):
    """In place of a signal that cannot be caught."""


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, _on_gpus(1)])]
)
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.usefixtures("deterministic")
def test_a_run_cut_off_and_resumed_ends_in_the_same_bits(
    device: str, optimiser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = small_config(
        write_photos(tmp_path / "photos", train=10, val=3),
        device=device,
        loss={"name": "cross_entropy"},
        optimiser={"name": optimiser},
        average={"decay": 0.9},
        checkpoint={"every_steps": 3},
    )
    train_run(config, tmp_path / "whole", say=lambda _: None)
    step = Run.train_step

    def killed(self: Run, group: Sequence[Batch], steps: int) -> torch.Tensor:
        if self.position.step == 5:
            raise _Killed
        return step(self, group, steps)

    monkeypatch.setattr(Run, "train_step", killed)
    with pytest.raises(_Killed):
        train_run(config, tmp_path / "cut", say=lambda _: None)
    monkeypatch.setattr(Run, "train_step", step)
    train_run(config, tmp_path / "cut", resume=True, say=lambda _: None)
    torch.set_num_threads(threads)
    one, other = (
        hashlib.sha256((tmp_path / name / "best.safetensors").read_bytes()).hexdigest()
        for name in ("whole", "cut")
    )
    assert one == other


@pytest.mark.gpu
@_on_gpus(2)
def test_two_ranks_train_as_one_would(tmp_path: Path) -> None:
    """Over NCCL, as `test_distributed` does over gloo; batch norms keep their statistics, which
    would be a rank's."""
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
    train_run(config, tmp_path / "one", say=lambda _: None)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "florilege", "train", f"--config={settings}", f"--out={tmp_path / 'two'}"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=110, check=False)
    assert process.returncode == 0, process.stderr.decode()
    position = torch.load(tmp_path / "two/last.pt", weights_only=True)["position"]
    assert (position["processes"], position["epoch"]) == (2, 1)
    one, two = (load_file(tmp_path / name / "best.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)

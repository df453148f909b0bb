"""A run killed in the middle of an epoch and resumed ends with exactly the same bits."""

import hashlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from florilege.training.batches.data_loader import Batch
from florilege.training.configuration import resolve, to_yaml
from florilege.training.device import Compute
from florilege.training.loop.training_loop import Run
from florilege.training.train import train_run
from tests.training.small import small_config, write_photos

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"  # forked workers, Python 3.12 on
)

# Trains with each of the settings, in a process that kills itself before step 11.
VICTIMS = """
import os, signal, sys
from pathlib import Path
import torch
import torch._dynamo  # optimisers import it: here once for all
from florilege.training.loop.training_loop import Run
from florilege.training.configuration import resolve
from florilege.training.train import train_run

torch.set_num_threads(1)
step = Run.train_step

def deadly(self, *arguments):
    if self.position.step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *arguments)

Run.train_step = deadly
for settings in map(Path, sys.argv[1:]):
    child = os.fork()
    if not child:
        train_run(resolve({}, config=settings), settings.parent / "cut")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


LOADING: dict[str, dict[str, Any]] = {
    "in memory": {"workers": 0, "cache_mb": 1024},
    "by workers": {"workers": 2, "cache_mb": 0},
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with ``settings.yaml`` and ``cut``, the run killed in the middle of its epoch 2."""
    folder = tmp_path_factory.mktemp("killed")
    photos = write_photos(folder / "photos", train=18, val=3)
    for name, changes in LOADING.items():
        config = small_config(photos, epochs=3, checkpoint={"every_steps": 3}, **changes)
        (folder / name).mkdir()
        (folder / name / "settings.yaml").write_text(to_yaml(config))
    settings = [folder / name / "settings.yaml" for name in LOADING]
    ended = subprocess.run(
        [sys.executable, "-c", VICTIMS, *settings],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        timeout=110,
        check=True,
    )
    codes = [int(code) for code in ended.stdout.split()]
    assert codes == [-signal.SIGKILL] * len(LOADING), ended.stderr.decode()
    return {name: folder / name for name in LOADING}


@pytest.mark.parametrize("name", LOADING)
def test_a_run_killed_mid_epoch_and_resumed_ends_in_identical_weights(
    killed: dict[str, Path], name: str
) -> None:
    torch.set_num_threads(1)
    folder = killed[name]
    config = resolve({}, config=folder / "settings.yaml")
    train_run(config, folder / "whole", say=lambda _: None)
    saved = torch.load(folder / "cut" / "last.pt", weights_only=True)["position"]
    assert (saved["epoch"], saved["batch"], saved["step"]) == (1, 2, 9)  # mid-epoch, a step behind

    lines: list[str] = []
    train_run(config, folder / "cut", resume=True, say=lines.append)
    assert lines[0] == "continuing after 1 epochs and 9 steps"
    digests = {_digest(folder / run / "best.safetensors") for run in ("whole", "cut")}
    assert len(digests) == 1
    one, other = (
        torch.load(folder / run / "last.pt", weights_only=True) for run in ("whole", "cut")
    )
    for part in ("network", "loss"):
        for key, value in one[part].items():
            assert torch.equal(value, other[part][key]) if torch.is_tensor(value) else True, key
    for index, state in one["optimiser"]["state"].items():
        momentum = other["optimiser"]["state"][index]["momentum_buffer"]
        assert torch.equal(state["momentum_buffer"], momentum)
    assert torch.equal(one["random"], other["random"])
    losses = [[row["train_loss"] for row in run["position"]["history"]] for run in (one, other)]
    assert losses[0] == losses[1]


class Killed(BaseException):
    """Simulates a power cut: nothing is written after it."""


def _whole_and_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, at: int, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checkpoints of a run and of the same one, cut before a step and resumed."""
    torch.set_num_threads(1)
    photos = write_photos(folder / "photos", train=9, val=3)
    config = small_config(photos, batch_size=4, checkpoint={"every_steps": 3}, **settings)
    train_run(config, folder / "whole", say=lambda _: None)
    step = Run.train_step

    def deadly(self: Run, group: Sequence[Batch], each: int) -> torch.Tensor:
        if self.position.step == at:
            raise Killed
        return step(self, group, each)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "train_step", deadly)
        with pytest.raises(Killed):
            train_run(config, folder / "cut", say=lambda _: None)
    saved = torch.load(folder / "cut" / "last.pt", weights_only=True)["position"]
    assert saved["batch"] % config.accumulate == 0
    train_run(config, folder / "cut", resume=True, say=lambda _: None)
    digests = {_digest(folder / run / "best.safetensors") for run in ("whole", "cut")}
    assert len(digests) == 1
    one, other = (
        torch.load(folder / run / "last.pt", weights_only=True) for run in ("whole", "cut")
    )
    for part in ("network", "average", "optimiser", "loss", "scaler"):
        torch.testing.assert_close(one[part], other[part], rtol=0, atol=0)
    return one, other


@pytest.mark.parametrize(
    ("optimiser", "decay", "accumulate"),
    [("sgd", None, 1), ("sgd", 0.9, 2), ("adamw", None, 2), ("adamw", 0.9, 1)],
)
def test_state_kept_over_the_steps_resumes_mid_epoch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimiser: str,
    decay: float | None,
    accumulate: int,
) -> None:
    one, _ = _whole_and_cut(
        tmp_path,
        monkeypatch,
        at=9 if accumulate == 1 else 6,  # an epoch has 7 steps or 4
        accumulate=accumulate,
        optimiser={"name": optimiser},
        average={"decay": decay},
        mixup=0.4 if accumulate == 2 else 0.0,
        class_weight_power=0.0 if decay is None else 0.5,
    )
    assert bool(one["average"]) == (decay is not None)


def test_the_scale_of_fp16_resumes_mid_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = Compute(torch.device("cpu"), "fp16")  # as on a GPU
    monkeypatch.setattr("florilege.training.train.choose", lambda *_: half)
    one, other = _whole_and_cut(tmp_path, monkeypatch, at=10)
    assert one["scaler"] == other["scaler"]
    assert one["scaler"]["_growth_tracker"] > 0

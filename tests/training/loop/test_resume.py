"""A run killed in the middle of an epoch and resumed ends with exactly the same bits."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from florilege.training.configuration import resolve, to_yaml
from florilege.training.device import Compute
from tests.training.small import (
    Killed,
    before_step,
    checkpoint_of,
    lines_of,
    small_config,
    train_quietly,
    write_photos,
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


def _same_checkpoints(folder: Path) -> tuple[dict[str, Any], ...]:
    """The checkpoints of ``whole`` and ``cut``, which must have the same bits."""
    runs = folder / "whole", folder / "cut"
    assert len({(run / "best.safetensors").read_bytes() for run in runs}) == 1
    one, other = map(checkpoint_of, runs)
    for part in ("network", "average", "optimiser", "loss", "scaler", "random"):
        torch.testing.assert_close(one[part], other[part], rtol=0, atol=0)
    return one, other


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
    folder = killed[name]
    config = resolve({}, config=folder / "settings.yaml")
    train_quietly(config, folder / "whole")
    saved = checkpoint_of(folder / "cut")["position"]
    assert (saved["epoch"], saved["batch"], saved["step"]) == (1, 2, 9)  # mid-epoch, a step behind

    lines = lines_of(config, folder / "cut", resume=True)
    assert lines[0] == "continuing after 1 epochs and 9 steps"
    one, other = _same_checkpoints(folder)
    losses = [[row["train_loss"] for row in run["position"]["history"]] for run in (one, other)]
    assert losses[0] == losses[1]


def _whole_and_cut(folder: Path, *, at: int, **settings: Any) -> tuple[dict[str, Any], ...]:
    """The checkpoints of a run and of the same one, cut before a step and resumed."""
    photos = write_photos(folder / "photos", train=9, val=3)
    config = small_config(photos, batch_size=4, checkpoint={"every_steps": 3}, **settings)
    train_quietly(config, folder / "whole")
    with before_step(at), pytest.raises(Killed):
        train_quietly(config, folder / "cut")
    saved = checkpoint_of(folder / "cut")["position"]
    assert saved["batch"] % config.accumulate == 0
    train_quietly(config, folder / "cut", resume=True)
    return _same_checkpoints(folder)


@pytest.mark.parametrize(
    ("optimiser", "decay", "accumulate"),
    [("sgd", None, 1), ("sgd", 0.9, 2), ("adamw", None, 2), ("adamw", 0.9, 1)],
)
def test_state_kept_over_the_steps_resumes_mid_epoch(
    tmp_path: Path, optimiser: str, decay: float | None, accumulate: int
) -> None:
    one, _ = _whole_and_cut(
        tmp_path,
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
    one, other = _whole_and_cut(tmp_path, at=10)
    assert one["scaler"] == other["scaler"]
    assert one["scaler"]["_growth_tracker"] > 0

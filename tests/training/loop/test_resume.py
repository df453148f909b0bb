"""A run cut in the middle of an epoch and resumed ends with exactly the same bits.

`test_distributed` kills processes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from florilege.training.config import TrainConfig
from florilege.training.machines import Compute
from tests.training.small import check_resuming, checkpoint_of, small_config, write_photos


def _config(folder: Path, **settings: Any) -> TrainConfig:
    photos = write_photos(folder / "photos", train=9, val=3)
    return small_config(photos, batch_size=4, checkpoint={"every_steps": 3}, **settings)


@pytest.mark.parametrize(
    ("optimiser", "decay", "accumulate"),
    [("sgd", None, 1), ("sgd", 0.9, 2), ("adamw", None, 2), ("adamw", 0.9, 1)],
)
def test_state_kept_over_the_steps_resumes_mid_epoch(
    tmp_path: Path, optimiser: str, decay: float | None, accumulate: int
) -> None:
    config = _config(
        tmp_path,
        accumulate=accumulate,
        optimiser={"name": optimiser},
        average={"decay": decay},
        mixup=0.4 if accumulate == 2 else 0.0,
        cutmix=0.4 if accumulate == 1 else 0.0,
        class_weight_power=0.0 if decay is None else 0.5,
    )
    saved = check_resuming(config, tmp_path, at=9 if accumulate == 1 else 6)  # of 7 or 4 an epoch
    assert saved["batch"] % accumulate == 0
    assert bool(checkpoint_of(tmp_path / "cut")["average"]) == (decay is not None)


def test_the_scale_of_fp16_resumes_mid_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = Compute(torch.device("cpu"), "fp16")  # as on a GPU
    monkeypatch.setattr("florilege.training.machines.Compute.of", lambda *_: half)
    check_resuming(_config(tmp_path), tmp_path, at=10)
    assert checkpoint_of(tmp_path / "cut")["scaler"]["_growth_tracker"] > 0

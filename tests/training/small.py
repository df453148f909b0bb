"""A small folder of pictures and the settings to train on it in a second."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from florilege.calibration.report.html_page import words
from florilege.data.sources import open_dataset
from florilege.models.backbones import Network
from florilege.models.heads import build_head
from florilege.training.batches import Batch, Sources
from florilege.training.config import Metric, TrainConfig
from florilege.training.configuration import _from_plain, _merge
from florilege.training.loop import Run
from florilege.training.loop.evaluation import Row, Validation, _ScoreChoice, epoch_row
from florilege.training.loop.training_state import Position
from florilege.training.network import Objective, _make_objective
from florilege.training.train import TrainResult, train_run

COLOURS = {"blue": (40, 60, 220), "green": (50, 200, 60), "red": (220, 50, 40)}


def write_photos(folder: Path, *, train: int = 12, val: int = 5, side: int = 20) -> Path:
    """An ImageFolder of three classes of different, noisy colours, ``side`` + 4 pixels wide."""
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                tint = np.array(colour) + random.normal(0, 60, 3)  # some are hard to tell
                noise = random.normal(0, 60, (side, side + 4, 3))
                picture = np.clip(tint + noise, 0, 255).astype(np.uint8)
                Image.fromarray(picture).save(folder / split / name / f"{index}.png")
    return folder


def small_config(data: Path | str, **changes: Any) -> TrainConfig:
    """Settings of a run of two epochs with the ``tiny`` network at 16 px."""
    plain = {
        "data": str(data),
        "backbone": "tiny",
        "loss": {"name": "two_head_average_k", "average_k": 2},
        "image_size": 16,
        "epochs": 2,
        "batch_size": 8,
        "device": "cpu",
        "workers": 0,
        "validation": {"k": 1.5},
        "augment": {"min_area": 0.5, "shift": 1, "rotate": 10, "colour": 0.1},
    }
    return _from_plain(_merge(plain, changes))


def small_objective(
    name: str, parameters: Mapping[str, object], *, class_counts: Sequence[int], **settings: Any
) -> Objective:
    """The objective of a loss on data with these training pictures."""
    config = TrainConfig(data="flora", loss={"name": name, **parameters}, **settings)
    return _make_objective(config, class_counts)


def train_quietly(config: TrainConfig, run: Path, *, resume: bool = False) -> TrainResult:
    """Train without a line on the way."""
    return train_run(config, run, resume=resume, say=lambda _: None)


def lines_of(config: TrainConfig, run: Path, *, resume: bool = False) -> list[str]:
    """Train; the lines for the user."""
    lines: list[str] = []
    train_run(config, run, resume=resume, say=lines.append)
    return lines


class Killed(BaseException):
    """A power cut: nothing is written after it."""


def power_cut(_run: Run) -> None:
    raise Killed


@contextmanager
def before_step(number: int, act: Callable[[Run], object] = power_cut) -> Iterator[None]:
    """Call ``act`` before step ``number`` of runs while the block runs."""
    step = Run.train_step

    def observed(run: Run, group: Sequence[Batch], steps: int) -> Tensor:
        if run.position.step == number:
            act(run)
        return step(run, group, steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "train_step", observed)
        yield


def check_same_runs(one: Path, other: Path) -> None:
    """Both ended with the same bits: weights, checkpoint, and metrics but for the time."""
    assert (one / "best.safetensors").read_bytes() == (other / "best.safetensors").read_bytes()
    ours, theirs = checkpoint_of(one), checkpoint_of(other)
    for part in ("network", "average", "optimiser", "loss", "scaler", "random"):
        torch.testing.assert_close(ours[part], theirs[part], rtol=0, atol=0)
    for row, same in zip(rows_of(one), rows_of(other), strict=True):
        assert row | {"seconds": ""} == same | {"seconds": ""}


def check_resuming(
    config: TrainConfig,
    folder: Path,
    *,
    at: int,
    act: Callable[[Run], object] = power_cut,
    error: type[BaseException] = Killed,
) -> dict[str, Any]:
    """Cut a run before a step: resumed, it ends like an uninterrupted one.

    Returns the position of the cut run.
    """
    train_quietly(config, folder / "whole")
    with before_step(at, act), pytest.raises(error):
        train_quietly(config, folder / "cut")
    position: dict[str, Any] = checkpoint_of(folder / "cut")["position"]
    train_quietly(config, folder / "cut", resume=True)
    check_same_runs(folder / "whole", folder / "cut")
    return position


def sources_of(config: TrainConfig) -> Sources:
    """Where the batches of a run come from."""
    return Sources.of(open_dataset(config.data), config)


def rows_of(run: Path) -> list[dict[str, str]]:
    """The rows of ``metrics.csv``."""
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def checkpoint_of(run: Path) -> dict[str, Any]:
    """The content of ``last.pt``, on the CPU."""
    content: dict[str, Any] = torch.load(run / "last.pt", map_location="cpu", weights_only=True)
    return content


def last_weights(run: Path) -> dict[str, Tensor]:
    """The state of the network in ``last.pt``."""
    weights: dict[str, Tensor] = checkpoint_of(run)["network"]
    return weights


def leave_out_drawings(patch: pytest.MonkeyPatch) -> None:
    """Replace the drawings in the reports of runs with nothing, keeping captions."""
    patch.setattr("florilege.training.run_report._drawn", lambda *_curves: None)
    patch.setattr(
        "florilege.training.run_report.html.drawing", lambda _none, caption: words(caption)
    )


def metrics_row(epoch: int, score: float) -> Row:
    """The row of ``metrics.csv`` of an epoch that reached ``score``."""
    accuracy = {
        _ScoreChoice(head="multi_label", score_kind="softmax"): {1.0: 0.1, 2.0: 0.2},
        _ScoreChoice(head="sccp", score_kind="softmax"): {1.0: 0.3, 2.0: score},
    }
    validation = Validation(
        metric=Metric(name="average_k", k=2.0),
        values={choice: by_k[2.0] for choice, by_k in accuracy.items()},
        accuracy=accuracy,
        top_1={"multi_label": 0.4, "sccp": 0.6},
        log_loss={"multi_label": 2.5, "sccp": 1.5},
    )
    position = Position(epoch=epoch, step=10 * epoch, seconds=3.0, loss_sum=6.0, examples=4)
    return epoch_row(position, validation, learning_rate=0.05)


class _Plain(nn.Module):
    """A backbone without batch norm, in which pictures do not affect each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 5, stride=3), nn.Linear(4 * 4 * 4, 6)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.second(torch.tanh(self.first(images)).flatten(1))
        return torch.tanh(maps)


def plain_network(_config: TrainConfig, head: str, classes: int) -> Network:
    """Replaces ``florilege.training.network.build_network``, for pictures of 16 px."""
    return Network(_Plain(), build_head(head, 6, classes), head_name=head)

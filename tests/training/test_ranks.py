"""Several processes train one network: as one would, with one writer, through a death."""

import csv
import hashlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.several import LOSSES, even
from tests.training.small import plain_network
from training.train import train_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs that ``tests.training.several`` describes."""
    folder = tmp_path_factory.mktemp("several")
    command = [sys.executable, "-m", "tests.training.several", folder]
    subprocess.run(command, cwd=ROOT, check=True, timeout=110)
    return folder


def _said(several: Path, name: str, rank: int) -> str:
    return (several / f"{name}.{rank}.txt").read_text()


def _codes(several: Path, name: str) -> list[int]:
    return [int(code) for code in (several / f"{name}.codes").read_text().split()]


def _last(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(run / "last.pt", weights_only=True)
    return content


def _metrics(run: Path) -> list[list[float | str]]:
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    words = ("val_best_head", "val_best_score_kind")
    return [[v if k in words else float(v) for k, v in r.items() if k != "seconds"] for r in rows]


@pytest.mark.parametrize("loss", LOSSES)
def test_four_processes_train_what_one_does(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr("training.train.build_network", plain_network)
    train_run(even(several / "photos", loss), tmp_path / "alone", say=lambda _: None)
    alone, four = _last(tmp_path / "alone"), _last(several / loss)
    for part in ("network", "average", "loss"):
        torch.testing.assert_close(four[part], alone[part], rtol=0, atol=1e-6)
    for ours, theirs in zip(_metrics(several / loss), _metrics(tmp_path / "alone"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert alone["position"]["processes"] == 1
    assert four["position"]["processes"] == 4


def test_only_the_first_process_speaks_and_writes(several: Path) -> None:
    assert _codes(several, "role") == [0, 0, 0, 0]
    assert "epoch 2/2" in _said(several, "role", 0)
    assert [_said(several, "role", rank) for rank in (1, 2, 3)] == ["", "", ""]
    assert len(list((several / "role/events").iterdir())) == 1


def test_when_a_process_dies_the_others_say_so_and_a_resumed_run_has_the_same_bits(
    several: Path,
) -> None:
    first, killed, last = _codes(several, "killed")
    assert (first, killed, last) == (1, -signal.SIGKILL, 1)
    for rank in (0, 2):
        assert f"error: process {rank} has lost the others of its run" in _said(
            several, "killed", rank
        )
    assert float((several / "killed.seconds").read_text()) < 60
    assert "continuing after 1 epochs and 6 steps" in _said(several, "resumed", 0)
    whole, cut = several / "whole", several / "cut"
    best = {
        hashlib.sha256((run / "best.safetensors").read_bytes()).digest() for run in (whole, cut)
    }
    assert len(best) == 1
    one, other = _last(whole), _last(cut)
    for part in ("network", "average", "optimiser", "loss", "random"):
        torch.testing.assert_close(other[part], one[part], rtol=0, atol=0)
    assert _metrics(whole) == _metrics(cut)


def test_processes_given_different_things_end_with_one_message(several: Path) -> None:
    assert _codes(several, "differing") == [2, 2]
    said = _said(several, "differing", 0)
    assert said.startswith(
        "error: in process 1 loss is {'name': 'noised_top_k', 'k': 1}, in process"
    )
    assert "; batch_size is 7, in process 0 10; " in said
    assert _said(several, "differing", 1) == ""
    assert not (several / "differing/config.yaml").exists()

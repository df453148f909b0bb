"""The level-set pictures hold every loss and stay small."""

from pathlib import Path

import pytest
import torch

from benchmarks.figures import loss_level_sets as pictures
from florilege.training.losses import LOSSES


def test_the_triangle_has_the_true_class_at_its_corner_and_sums_to_two() -> None:
    scores = pictures.triangle(4)
    assert len(scores) == 15
    assert (scores.sum(1) == 2).all()
    assert [0.0, 2.0, 0.0] in scores.tolist()


@pytest.mark.parametrize("k", [1, 2])
def test_every_loss_has_a_panel_lowest_at_the_true_class(k: int) -> None:
    panels = pictures.panels(k)
    assert [title.split(",")[0] for title in panels][1:] == list(LOSSES)
    scores = pictures.triangle(4)
    labels = torch.full((15,), pictures.LABEL)
    at_label = scores.tolist().index([0.0, 2.0, 0.0])
    for title, values in panels.items():
        result = values(scores, labels)
        assert result.shape == (15,), title
        assert result[at_label] == result.min(), title
        assert result.max() > result.min(), title


def test_the_picture_is_a_small_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "triangle", lambda: torch.rand(30, 3).double())
    monkeypatch.setattr(pictures, "NOISE_SAMPLES", 3)
    pictures.draw(2, tmp_path / "levels.png")
    content = (tmp_path / "levels.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 200_000


def test_a_plateau_on_a_level_stays_one_colour() -> None:
    values = [0.0, 0.5, 0.49999999999999994, 0.5000000000000001, 1.0]
    plateau = torch.tensor(values, dtype=torch.float64)
    assert pictures.heights(plateau).unique().numel() == 3  # type: ignore[no-untyped-call]

"""The two-head loss of 4 x 64 rows in four processes equals that of 256 rows in one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.losses.ranks import RANKS, cases, gradients


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("ranks")
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "tests.training.losses.ranks", str(folder)]
    subprocess.run(command, cwd=root, check=True, timeout=110)
    assert set((folder / "ranks.codes").read_text().split()) == {"0"}
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("name", cases())
def test_the_mean_over_ranks_is_the_loss_of_the_whole_batch(
    parts: list[dict[str, dict[str, Any]]], name: str
) -> None:
    whole = gradients(cases()[name], slice(0, 256))
    for key in ("value", "mean"):
        over_ranks = torch.stack([part[name][key] for part in parts]).mean()
        torch.testing.assert_close(over_ranks, whole[key], rtol=1e-12, atol=1e-12)
    for head in ("z", "sccp"):
        # a data-parallel wrapper averages the gradients of the ranks
        together = torch.cat([part[name][head] for part in parts]) / RANKS
        torch.testing.assert_close(together, whole[head], rtol=1e-10, atol=1e-14)
    assert {part[name]["size"].item() for part in parts} == {whole["size"].item()}

"""The speedrun judges sets by what can be known of the pictures, and says so in a line."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.speedrun import KS, main, points_below
from florilege.data.flora import Flora


def test_the_best_sets_of_any_size_are_no_points_below() -> None:
    posterior = Flora.parse("flora:test=300").posterior("test")
    for lowest in (0.6, 0.2, 0.05):
        assert points_below(posterior >= lowest, posterior) == pytest.approx(0)


def test_equal_posteriors_may_be_cut_anywhere() -> None:
    sets = np.arange(20).reshape(4, 5) < 5
    assert points_below(sets, np.full((4, 5), 0.2)) == pytest.approx(0)


def test_a_missed_species_counts_with_its_probability() -> None:
    posterior = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]])
    sets = np.array([[True, False, False], [True, False, True]])
    assert points_below(sets, posterior) == pytest.approx(100 * (0.4 - 0.1) / 2)


def test_the_whole_road_ends_in_a_line_for_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "flora:train=60,val=150,test=150"
    code = main(["--recipe", "demo", "--data", small, "--epochs", "0", "--out", str(tmp_path)])
    outcome, header, row = capsys.readouterr().out.splitlines()[-3:]
    assert code == 1
    assert "0.5 NOT reached at every K" in outcome
    columns = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, row)]
    assert len(columns[0]) == len(columns[1])
    assert all(float(points) > 0.5 for points in columns[1][-len(KS) :])

from pathlib import Path

import numpy as np
import pytest

from florilege.errors import BundleError
from florilege.plugins.papers.sweep_record import FILE, Mean, Record, RunRecord


def _record(*accuracies: list[float | None]) -> Record:
    """One setting per list, one seed per value; None is a failed run."""
    runs = [
        RunRecord(
            changes={"epochs": place},
            seed=seed,
            run=f"runs/{place}/seed-{seed}",
            status="failed" if value is None else "finished",
            accuracy=value,
        )
        for place, values in enumerate(accuracies)
        for seed, value in enumerate(values)
    ]
    return Record(
        recipe="default", request={}, metric="average-3 accuracy", learned_from=9, runs=runs
    )


@pytest.mark.parametrize(
    ("accuracies", "chosen"),
    [
        (([0.5, 0.9], [0.8, 0.7], [0.7, 0.7]), [1, 1]),  # the best mean, not the best run
        (([0.5, 0.75], [0.75, 0.5]), [0, 0]),  # of equal ones the first
        (([0.9, None], [0.5, 0.6]), [1, 1]),  # none with a failed run
        (([0.9, None], [None, 0.6]), []),
    ],
)
def test_the_setting_with_the_best_mean_is_chosen(
    accuracies: tuple[list[float | None], ...], chosen: list[int]
) -> None:
    assert [run.changes["epochs"] for run in _record(*accuracies).chosen()] == chosen


def test_means_have_the_interval_of_student() -> None:
    values = [0.9, 0.93, 0.96]
    mean = Mean.of(values)
    assert mean.mean == pytest.approx(0.93)
    assert mean.half == pytest.approx(4.302653 * np.std(values, ddof=1) / np.sqrt(3), abs=1e-7)
    assert str(mean) == "93.00 ± 7.45"
    assert str(Mean.of([0.9])) == "90.00"


def test_test_figures_are_means_over_the_seeds_of_the_chosen_setting() -> None:
    record = _record([0.9, 0.8], [0.5, 0.6])
    assert record.tested() == {}
    for seed, run in enumerate(record.chosen()):
        figures = {"hit_rate": 0.8 + seed / 10, "macro_hit_rate": 0.7, "mean_set_size": 3.0}
        run.test = [{"rule": "average_k", "k": 3.0, **figures}]
    result = record.tested()["average_k"][3.0]
    assert result["hit_rate"].mean == pytest.approx(0.85)
    assert result["hit_rate"].half == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert result["mean_set_size"] == Mean(mean=3.0, half=0.0)
    plain = record.to_plain()
    assert [each["chosen"] for each in plain["settings"]] == [True, False]
    assert [row["k"] for row in plain["test"]] == [3.0]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = _record([0.9, None], [0.5, 0.6])
    assert Record.read(tmp_path) is None
    record.write(tmp_path)
    assert Record.read(tmp_path) == record


@pytest.mark.parametrize("content", ["{", "[]", '{"runs": [{"x": 1}]}', '{"runs": []}'])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(BundleError, match=r"results\.json is damaged"):
        Record.read(tmp_path)

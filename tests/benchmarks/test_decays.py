"""The benchmark of weight decays: candidates of every method, and the one that val takes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.sets import decays
from benchmarks.sets.decays import Labels, measured, solve, table_of
from benchmarks.sets.head_methods import FIRST_SEED, Bench
from florilege.training.frozen.head_solver import DECAYS
from tests.benchmarks.test_heads import _sizes as _sizes
from tests.benchmarks.test_heads import bench as bench
from tests.benchmarks.test_heads import photos as photos

METHODS = ("cross_entropy", "logistic_regression", "linear_discriminant")


@pytest.fixture(autouse=True)
def _three_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decays, "SIZES", (1, 2, 3))


def test_wrong_labels_are_drawn_from_all_classes_and_test_stays_clean(bench: Bench) -> None:
    labels = Labels.draw(bench, 1.0, FIRST_SEED)
    assert set(labels.train.split.labels.tolist()) == {0, 1, 2}
    assert (labels.train.split.labels != bench.features["train"].split.labels).mean() > 0.4
    assert labels.noisy_val is not None
    np.testing.assert_array_equal(labels.test.split.labels, bench.features["test"].split.labels)
    assert Labels.draw(bench, 0.0, FIRST_SEED).noisy_val is None


def test_each_method_has_its_candidates_and_val_takes_one(bench: Bench, tmp_path: Path) -> None:
    labels = Labels.draw(bench, 0.5, FIRST_SEED)
    rows = []
    for method in METHODS:
        candidates = list(solve(bench, labels, method, FIRST_SEED))
        for row, _ in measured(labels, candidates, method):
            key = {"data": "photos", "method": method, "noise": "0.5", "seed": "100"}
            rows.append({name: str(value) for name, value in {**key, **row}.items()})
    for method, count in zip(
        METHODS, (len(DECAYS), len(DECAYS), len(decays.SHRINKAGES)), strict=True
    ):
        for val_labels in ("clean", "wrong"):
            ours = [
                row for row in rows if (row["method"], row["val_labels"]) == (method, val_labels)
            ]
            assert len(ours) == count
            assert sum(row["chosen"] == "1" for row in ours) == 1
    table = table_of(rows, "photos")
    assert table.splitlines()[0] == "| method | 50% wrong, clean val | 50% wrong, wrong val |"
    assert len(table.splitlines()) == 2 + len(METHODS)

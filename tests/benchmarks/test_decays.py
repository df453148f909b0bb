"""The benchmark of weight decays: candidates of every method, and the one that val takes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.sets import decays
from benchmarks.sets.decays import (
    Grid,
    Labels,
    Solved,
    cell,
    cross_validated,
    measured,
    solve,
    table_of,
    table_of_all,
    widened,
)
from benchmarks.sets.head_methods import FIRST_SEED, Bench
from benchmarks.sets.label_doubt import LABELS, accuracies
from benchmarks.sets.label_doubt import table as label_doubt_table
from florilege.training.config import Metric
from florilege.training.frozen.head_solver import DECAYS, _candidate_of
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
        for row, _ in measured(labels, candidates):
            key = {"data": "photos", "method": method, "noise": "0.5", "seed": "100"}
            rows.append({name: str(value) for name, value in {**key, **row}.items()})
    for method in METHODS:
        count = len(DECAYS if method != "linear_discriminant" else decays.OF_SHRINKAGES.values)
        for val_labels in ("clean", "wrong"):
            ours = [
                row for row in rows if (row["method"], row["val_labels"]) == (method, val_labels)
            ]
            assert len(ours) >= count
            assert sum(row["chosen"] == "1" for row in ours) == 1
    table = table_of(rows, "photos")
    assert table.splitlines()[0] == "| method | 50% wrong, clean val | 50% wrong, wrong val |"
    assert len(table.splitlines()) == 2 + len(METHODS)


def test_the_grid_goes_on_beyond_an_end_for_as_long_as_sets_get_better(bench: Bench) -> None:
    labels = Labels.draw(bench, 0.0, FIRST_SEED)
    true = labels.val.split.labels

    def candidate(parameter: float) -> Solved:
        rights = round(min(1.0, 0.02 / parameter) * len(true))  # best at 0.02, level below
        guess = np.where(np.arange(len(true)) < rights, true, (true + 1) % 3)
        logits = {"linear": np.eye(3, dtype=np.float32)[guess]}
        on_val = _candidate_of(logits, true, Metric(name="top_k", k=1.0), weight_decay=parameter)
        return Solved(parameter, (logits, logits), (on_val,))

    grid = Grid((1.0, 0.3, 0.1), (3.0,), (0.03, 0.01, 0.003))
    solved = widened([candidate(value) for value in grid.values], grid, labels, candidate)
    assert [each.parameter for each in solved] == [1.0, 0.3, 0.1, 0.03, 0.01, 0.003]
    turned = Grid((0.01, 0.1), (0.03,), (0.3,))  # the same curve, which now rises to its start
    solved = widened([candidate(0.1), candidate(0.3)], turned, labels, candidate)
    assert [each.parameter for each in solved] == [0.03, 0.1, 0.3]


def test_cross_validation_also_goes_beyond_the_grid(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decays, "OF_DECAYS", Grid((1e6, 1e5), (1e7,), (0.1, 0.01)))
    decay, (on_val, on_test) = cross_validated(Labels.draw(bench, 0.0, FIRST_SEED))
    assert decay < 1e5
    assert on_val["linear"].shape == (len(bench.features["val"]), 3)
    assert on_test["linear"].shape == (len(bench.features["test"]), 3)


def test_correcting_the_most_doubtful_fifth_is_between_wrong_and_clean_labels(
    bench: Bench,
) -> None:
    fifth_wrong, figures = accuracies(bench, 0.5, FIRST_SEED)
    assert list(figures) == [*LABELS]
    wrong, skipped, corrected, both, clean = (by_k for by_k, _ in figures.values())
    assert wrong.shape == (2,)  # K = 2 and 3
    assert wrong[0] <= corrected[0] <= clean[0]
    assert min(skipped[0], both[0]) >= wrong[0]
    assert fifth_wrong > 0.5
    left_out = [share for _, share in figures.values()]
    assert left_out[1] > left_out[3] > 0
    assert left_out[0] == left_out[2] == left_out[4] == 0
    same = accuracies(bench, 0.5, FIRST_SEED, figures["clean"])[1]
    assert all((same[name][0] == figures[name][0]).all() for name in LABELS)


def test_the_share_of_the_gain_pairs_the_draws() -> None:
    def row(seed: int, labels: str, *hits: float) -> dict[str, str]:
        key = {"data": "a", "noise": "0.4", "seed": f"{seed}", "labels": labels}
        accuracy = {f"average_{k}": f"{x}" for k, x in zip((2, 3, 5), hits, strict=True)}
        return {**key, "first_fifth_wrong": f"{0.9 + seed / 100}", **accuracy}

    rows = []
    for seed, low in enumerate((50, 60, 70)):  # draws differ, the share does not, but at K = 5
        half = (low + 90) / 2
        rows += [row(seed, "wrong", low, low, low), row(seed, "clean", 90, 90, 90)]
        rows += [row(seed, "both", half, half, half + seed)]
        rows += [row(seed, labels, 0, 0, 0) for labels in ("skipped", "corrected")]
    rows += [{**item, "noise": "0"} for item in rows]
    cells = label_doubt_table(rows).splitlines()[2].split(" | ")
    assert cells[1] == "90.0% to 92.0%"
    assert cells[2] == "60.0 / 60.0 / 60.0"
    assert cells[-1] == "50 ± 0 / 50 ± 0 / 53 ± 11 |"


def test_the_loss_of_a_choice_is_that_to_one_decay_for_all_seeds() -> None:
    key = {"data": "a", "method": "m", "noise": "0", "val_labels": "clean", "rises": "0"}
    rows = [
        {**key, "seed": seed, "parameter": decay, "chosen": chosen}
        | {f"average_{k}": hits for k in (2, 3)}
        for seed, decay, chosen, hits in (
            *(("1", "0.3", "1", "80"), ("1", "0.1", "0", "90")),
            *(("2", "0.3", "1", "86"), ("2", "0.1", "0", "80"), ("2", "0.03", "0", "99")),
        )
    ]
    assert cell(rows, "m", "0", "clean").endswith("; 0.3; 2.0")  # not 5, and 0.03 has one seed


def test_means_over_the_sets_are_of_the_seeds_that_all_methods_have() -> None:
    def row(data: str, method: str, seed: str, hits: float) -> dict[str, str]:
        key = {"data": data, "method": method, "noise": "0", "seed": seed, "val_labels": "clean"}
        return {**key, "chosen": "1", "average_2": f"{hits}", "average_3": f"{hits + 10}"}

    rows = [row("a", "one", "1", 50), row("a", "one", "2", 80), row("a", "two", "1", 40)]
    rows += [row("b", "one", "1", 60), row("b", "two", "1", 70), row("a", "half", "1", 30)]
    assert table_of_all(rows, ["a", "b"]).splitlines()[2:] == [
        "| `one` | 55.0 / 65.0 |",
        "| `two` | 55.0 / 65.0 |",
        "| `half` |  |",
    ]

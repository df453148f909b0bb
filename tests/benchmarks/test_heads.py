"""The benchmark of heads measures a loss, one with the discriminant, and the blend."""

from typing import Any

import numpy as np
import pytest

from benchmarks import head_bench, heads
from tests.benchmarks.small import NOISE, bench


@pytest.fixture(autouse=True)
def _few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_bench, "DECAYS", (1e-3,))
    monkeypatch.setattr(head_bench, "RATES", (0.1, 0.03))
    monkeypatch.setattr(head_bench, "BATCH", 32)


def test_every_kind_of_row_has_its_place_in_the_tables() -> None:
    ours, names = bench(), ("cross_entropy", "two_head_average_k", "cross_entropy+lda", "blend")
    rows = [ours.measure(name, noise, 2) for noise in (0.0, NOISE) for name in names]
    for row in rows:
        assert np.shape(row["average_k"]) == np.shape(row["top_k"]) == (2, len(head_bench.SIZES))
        assert row["average_k"][0][2] > 60  # far from 3 of 8 by chance
    printed = heads.tables(rows)
    assert all(printed.count(f"| `{name}` |") == 3 for name in names)
    assert "| `blend`, `cross_entropy` | " in printed
    assert "sharpness" in printed


def test_no_method_trains_for_longer_than_another(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = list[int]()

    def count(*_: object, epochs: int, **__: object) -> None:
        trained.append(epochs)

    monkeypatch.setattr(head_bench, "train", count)
    ours = bench(epochs=4)
    ours.measure("cross_entropy", 0.0, 1)
    assert set(trained) == {4}
    trained.clear()
    ours.measure("blend", 0.0, 1)
    assert set(trained) == {2}
    assert len(head_bench.MEMBERS) == 2


def test_rows_of_several_data_become_one_with_the_figures_of_all() -> None:
    def row(data: str, loss: str, at: float) -> dict[str, Any]:
        figures = {"average_k": [[at] * 4, [at + 1] * 4], "top_k": [[at + 2] * 4, [at + 3] * 4]}
        return {"data": data, "loss": loss, "noise": 0.5, "rate": at, **figures}

    rows = [row("a", "focal", 10), row("a", "ldam", 20), row("b", "focal", 30)]
    focal, ldam = heads.joined(rows)
    assert (focal["loss"], focal["rate"], ldam["loss"]) == ("focal", 10, "ldam")
    assert [seed[0] for seed in focal["average_k"]] == [10, 11, 30, 31]
    assert [seed[0] for seed in focal["top_k"]] == [12, 13, 32, 33]
    assert [seed[0] for seed in ldam["average_k"]] == [20, 21]
    assert len(rows[0]["average_k"]) == 2  # what was read stays as it was


def test_fresh_photos_are_none_that_the_data_or_the_run_before_had() -> None:
    names = [str(row) for row in range(100)]
    used = names[10:30]
    train, test = heads.fresh_rows(names, used, 15, 0)
    later_train, later_test = heads.fresh_rows(names, used, 15, 35)
    parts = [range(10, 30), train, test, later_train, later_test]
    assert [len(part) for part in parts] == [20, 20, 15, 20, 15]
    assert len({int(row) for part in parts for row in part}) == 90  # no photo is in two of them
    few, rest = heads.fresh_rows(names, used, 70, 0)
    assert (len(few), len(rest)) == (10, 70)  # where not as many are left, all that are

"""The benchmark of the losses: every loss is in it, and its lines say what was measured."""

import pytest
import torch
from torch import Tensor

from benchmarks.speed import losses as benchmark
from benchmarks.speed.memory import peak_bytes
from florilege.training.losses import LOSSES


def test_every_loss_runs_at_each_k() -> None:
    cases = list(benchmark.cases_of(20, [2, 3], "cpu", list(LOSSES)))
    assert cases[0].name == benchmark.UNIT
    names = {case.name for case in cases}
    assert names >= {*LOSSES, "noised_top_k (shared)"}
    assert {case.k for case in cases if case.name == "smooth_top_k"} == {2, 3}
    rows = benchmark.measure(cases, 1, "cpu")
    assert rows[0].ratio == 1
    assert all(row.seconds > 0 and row.peak > 0 and row.operators > 0 for row in rows)


def test_a_line_marks_what_misses_its_goal() -> None:
    case = benchmark.Case(name="focal", classes=1000, k=None, step=lambda: None)
    for ratio, goal in ((2.4, "| 2.5 |"), (2.6, "| 2.5 ✗ |")):
        row = benchmark.Row(case=case, seconds=0.001, ratio=ratio, peak=3.0, operators=9)
        line = benchmark.line(row)
        assert line.startswith(f"| focal | 1,000 |  | 1.000 | {ratio} ")
        assert goal in line


def test_the_unit_is_taken_in_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 9.0, 1.0, 5.0, 2.0, 8.0, 3.0, 6.0])
    monkeypatch.setattr(benchmark, "timed", lambda *_: next(seconds))
    cases = list(benchmark.cases_of(5, [2], "cpu", list(LOSSES)))[:2]
    first, second = benchmark.measure(cases, 3, "cpu")
    assert (first.seconds, second.seconds, second.ratio) == (2.0, 6.0, 3.0)


def test_time_is_that_of_the_clock_asked_for() -> None:
    ticks = iter(range(1000))  # half a millisecond each: five steps are timed together
    case = benchmark.Case(name="focal", classes=5, k=None, step=lambda: None)
    (row,) = benchmark.measure([case], 3, "cpu", lambda: next(ticks) / 2048)
    assert row.seconds == 1 / 2048


def test_peak_memory_counts_what_was_held_at_once() -> None:
    def work() -> Tensor:
        total = torch.zeros(1000)
        for _ in range(5):
            total = total + 1
        return total.view(10, 100)

    assert peak_bytes(work) == 2 * 4000

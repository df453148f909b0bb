"""Workers decode within one budget, in the order in which their pictures began to wait."""

from pathlib import Path

import pytest

from florilege.processes import WorkerGroup
from florilege.server.bounds import PixelBudget
from tests.server.test_decoding_budget import Holder


@pytest.fixture
def budgets(tmp_path: Path) -> list[PixelBudget]:
    groups = [WorkerGroup(tmp_path, 3, number) for number in range(3)]
    groups[0].create()
    return [PixelBudget(100, group) for group in groups]


def test_a_large_picture_waits_for_those_of_other_workers(budgets: list[PixelBudget]) -> None:
    first, second, third = budgets
    one = Holder(first, 60)
    large = Holder(second, 1000, waits=True)
    small = Holder(third, 10, waits=True)  # it would fit, and came later
    assert not small.inside.wait(0.1)
    one.leave()
    assert large.inside.wait(15)
    assert not small.inside.is_set()
    large.leave()
    assert small.inside.wait(15)
    small.leave()
    assert [budget.pixels_in_use for budget in budgets] == [0, 0, 0]


def test_a_worker_that_dies_lets_the_others_go_on(
    budgets: list[PixelBudget], tmp_path: Path
) -> None:
    first, second, third = budgets
    holder, waiting = Holder(first, 60), Holder(second, 60, waits=True)
    last = Holder(third, 60, waits=True)
    WorkerGroup(tmp_path, 3, 0).forget()  # what the supervisor does
    assert waiting.inside.wait(15)  # in this process it lives on, and must not come in later
    WorkerGroup(tmp_path, 3, 1).forget()
    assert last.inside.wait(15)
    last.leave()
    for each in (holder, waiting):
        each.leave()


def test_a_picture_that_gives_up_leaves_its_turn_to_other_workers(
    budgets: list[PixelBudget],
) -> None:
    holder = Holder(budgets[0], 60)
    with pytest.raises(ZeroDivisionError), budgets[1].hold(60, lambda: 1 // 0):  # type: ignore[arg-type]  # it fails
        pytest.fail("went in")
    other = Holder(budgets[2], 40)
    holder.leave()
    other.leave()

"""How many operators a step of a loss takes: on a GPU each costs a launch, whatever it computes."""

import pytest

from benchmarks.speed.losses import cases_of, operators

MOST = {
    "noised_top_k": 50,
    "imbalanced_noised_top_k": 60,
    "two_head_average_k": 80,
    "role": 90,
    "smooth_top_k": 80,
    "ldam": 45,
}


@pytest.mark.parametrize("name", MOST)
def test_a_step_takes_few_operators(name: str) -> None:
    _, case, *_ = cases_of(1_000, [5], "cpu", [name])
    case.step()
    assert operators(case.step) <= MOST[name]

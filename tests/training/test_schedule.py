import math

import pytest

from training.config import ScheduleConfig
from training.schedule import rate_share


def _shares(schedule: ScheduleConfig, *, steps: int, epochs: int) -> list[float]:
    return [
        rate_share(schedule, step=step, steps_per_epoch=steps, epochs=epochs)
        for step in range(steps * epochs)
    ]


def test_the_cosine_is_the_written_formula_at_every_step() -> None:
    found = _shares(ScheduleConfig(name="cosine"), steps=4, epochs=3)
    assert found == pytest.approx([(1 + math.cos(math.pi * t / 12)) / 2 for t in range(12)])


def test_the_cosine_ends_at_its_final_share() -> None:
    schedule = ScheduleConfig(name="cosine", final=0.2)
    assert rate_share(schedule, step=12, steps_per_epoch=4, epochs=3) == pytest.approx(0.2)
    assert rate_share(schedule, step=6, steps_per_epoch=4, epochs=3) == pytest.approx(0.6)


def test_a_warm_up_rises_in_equal_parts_to_one() -> None:
    schedule = ScheduleConfig(name="cosine", warmup_epochs=1.0)
    found = _shares(schedule, steps=4, epochs=3)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:] == pytest.approx([(1 + math.cos(math.pi * t / 8)) / 2 for t in range(8)])


def test_steps_fall_at_their_milestones_exactly() -> None:
    schedule = ScheduleConfig(name="step", milestones=(1.0, 2.0), factor=0.1)
    found = _shares(schedule, steps=3, epochs=3)
    assert found == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])


def test_a_milestone_may_lie_within_an_epoch() -> None:
    schedule = ScheduleConfig(name="step", milestones=(0.5,), factor=0.5)
    assert _shares(schedule, steps=4, epochs=1) == [1, 1, 0.5, 0.5]


def test_the_rates_of_the_paper_on_cifar_fall_after_150_and_225_epochs() -> None:
    schedule = ScheduleConfig(name="step", milestones=(150, 225), factor=0.1)
    at = {
        epoch: rate_share(schedule, step=epoch * 704, steps_per_epoch=704, epochs=300)
        for epoch in (0, 149, 150, 224, 225, 299)
    }
    assert at == pytest.approx({0: 1, 149: 1, 150: 0.1, 224: 0.1, 225: 0.01, 299: 0.01})


def test_constant_stays_at_one_after_its_warm_up() -> None:
    schedule = ScheduleConfig(name="constant", warmup_epochs=0.5)
    assert _shares(schedule, steps=4, epochs=2) == [0.5, 1, 1, 1, 1, 1, 1, 1]


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    schedule = ScheduleConfig(name="cosine", warmup_epochs=5)
    found = _shares(schedule, steps=2, epochs=2)
    assert found == [0.1, 0.2, 0.3, 0.4]

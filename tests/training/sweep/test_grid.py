import re

import pytest

from florilege.errors import UsageError
from florilege.training.configuration import resolve
from florilege.training.sweep.grid import overrides_of, points_of, words_of


def test_a_grid_is_every_combination_in_the_order_given() -> None:
    points = points_of(["loss.alpha=1e-1,1", "schedule.milestones=[1, 2],[3]"])
    assert points == [
        {"loss.alpha": 0.1, "schedule.milestones": [1, 2]},
        {"loss.alpha": 0.1, "schedule.milestones": [3]},
        {"loss.alpha": 1, "schedule.milestones": [1, 2]},
        {"loss.alpha": 1, "schedule.milestones": [3]},
    ]
    assert words_of(points[0]) == "loss.alpha=0.1, schedule.milestones=[1, 2]"


def test_an_empty_grid_is_the_unchanged_recipe() -> None:
    (point,) = points_of([])
    assert (words_of(point), overrides_of(point)) == ("as it is", [])


def test_values_come_back_as_they_were_through_the_settings() -> None:
    (point,) = points_of(["optimiser.learning_rate=1e-5"])
    config = resolve({"data": "x"}, overrides=overrides_of(point))
    assert config.optimiser.learning_rate == 1e-5
    (point,) = points_of(["validation.patience=null"])
    assert resolve({"data": "x"}, overrides=overrides_of(point)).validation.patience is None
    (point,) = points_of(["weights=runs/a b"])
    assert resolve({"data": "x"}, overrides=overrides_of(point)).weights == "runs/a b"


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["loss.alpha"], "--over takes NAME=V1,V2 such as loss.epsilon=0.1,0.2, got 'loss.alpha'"),
        (["loss.alpha="], "--over takes NAME=V1,V2"),
        (["=1,2"], "--over takes NAME=V1,V2"),
        (["epochs=1,2", "epochs=3"], "--over epochs is given twice"),
        (["epochs=1,2,1"], "1 is given twice"),
        (["seed=1,2"], "--over seed cannot be swept: use --seeds N"),
        (["data=a,b"], "--over data cannot be swept"),
        (["epochs=[1"], "the list of values is not YAML"),
    ],
)
def test_what_is_no_grid_is_refused(over: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        points_of(over)

"""The reported differences between a run and its recipe."""

from florilege.training.configuration import resolve
from florilege.training.sweep.overrides import changed_settings


def _said(data: str = "cifar-100-python", *overrides: str, **flags: object) -> list[str]:
    options = {"recipe": "cifar100-noise0.2-ce-k5", "data": data, **flags}
    return changed_settings(resolve(options, overrides=overrides), 45_000)


def test_a_published_run_departs_in_nothing() -> None:
    where_it_runs = ("workers=0", "cache_mb=0", "compile=true", "checkpoint.every_steps=9")
    assert _said("elsewhere/cifar-100-python", *where_it_runs, seed=7, device="cpu") == []
    assert _said("cifar-100-python:noise=0.2") == []


def test_every_setting_and_option_that_may_move_a_figure_is_named() -> None:
    answer = _said(
        "cifar-100-python:noise=0.4,fraction=0.5",
        "schedule.milestones=[1,2]",
        "loss.label_smoothing=0.1",
        backbone="tiny",
        epochs=3,
    )
    assert sorted(answer) == [
        "backbone=tiny",
        "epochs=3",
        "fraction=0.5",
        "loss.label_smoothing=0.1",
        "noise=0.4",
        "schedule.milestones=[1.0, 2.0]",
    ]


def test_data_of_another_size_than_the_published_are_named() -> None:
    options = {"recipe": "imagenet-5pct-ce-k5", "data": "imagenet"}
    assert changed_settings(resolve(options), 64_000) == []
    assert changed_settings(resolve(options), 1_234) == ["1,234 training photos instead of 64,000"]
    assert changed_settings(resolve({"recipe": "small-photos", "data": "photos"}), 20) == []


def test_a_setting_of_the_recipe_that_is_gone_is_named() -> None:
    options = {"recipe": "cifar100-top-k5", "data": "cifar-100-python", "loss": "cross_entropy"}
    answer = changed_settings(resolve(options), 45_000)
    assert "loss.name=cross_entropy" in answer
    assert "loss.epsilon=None" in answer

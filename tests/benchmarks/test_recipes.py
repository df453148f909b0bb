"""The benchmark of the recipes: rows start as they are, and a line says what a step took."""

from pathlib import Path

import pytest

from benchmarks.papers import recipes as benchmark
from benchmarks.papers.synthetic_layouts import CLASSES, COPIES
from florilege.data.sources import open_dataset
from florilege.plugins.papers.published import Cost
from florilege.training.loop import Run
from florilege.training.recipes import RECIPES

FEW = dict.fromkeys(CLASSES, 11)  # K of 10 has to fit


@pytest.mark.parametrize("name", ["cifar100-role-k5", "imagenet-lt-ldam-k1"])
def test_a_row_starts_with_its_own_network_and_is_timed(name: str, tmp_path: Path) -> None:
    recipe, data = RECIPES[name], benchmark.Data(tmp_path, FEW, steps=1, photos=4)
    config = benchmark.config_of(name, data.of(recipe), 2, "cpu")
    assert config.backbone == recipe.settings["backbone"]
    assert config.image_size == recipe.settings["image_size"]
    assert config.weights is None
    timing = benchmark.timed(config, tmp_path / "run", steps=1)
    assert {"best.safetensors", "report.html", "metrics.csv"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    cells = benchmark.line(name, timing).strip("| ").split(" | ")
    assert cells[:4] == [f"`{name}`", config.backbone, "2", config.loss_name]
    cost = Cost.of(recipe)
    assert cost is not None
    assert float(cells[-1]) == pytest.approx(timing.processor * cost.passes / 2 / 3600, rel=1e-3)


def test_the_steps_that_are_timed_are_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    step = Run.train_step

    def counted(run: Run, *given: object) -> object:
        calls.append(run.position.step)
        return step(run, *given)  # type: ignore[arg-type]  # as it is given

    monkeypatch.setattr(Run, "train_step", counted)
    name = "cifar100-ce-k5"
    data = benchmark.Data(tmp_path, FEW, steps=1, photos=4)
    config = benchmark.config_of(name, data.of(RECIPES[name]), 40, "cpu")
    small = config.model_copy(update={"backbone": "tiny"})
    timing = benchmark.timed(small, tmp_path / "run", steps=5)
    assert calls == [0, 1, 2, 3, 4, 5]  # a first one, then five, over several epochs
    assert timing.seconds > 0


def test_one_is_chosen_of_each_kind() -> None:
    assert benchmark.chosen([], "recipe") == list(benchmark.PUBLISHED)
    networks = benchmark.chosen([], "network")
    assert networks[:2] == ["cifar100-ce-k5", "plantnet-ce-k2"]
    assert len(networks) == len({RECIPES[name].settings["backbone"] for name in networks}) + 2
    names = ["plantnet-ce-k2", "plantnet-top-k2", "plantnet-top-k3"]
    assert benchmark.chosen(names, "loss") == names[:2]


@pytest.mark.parametrize("name", COPIES)
def test_made_up_data_have_the_classes_asked_for(name: str, tmp_path: Path) -> None:
    options = ":hold_out=50" if name == "imagenet" else ""
    recipe = next(each for each in RECIPES.values() if each.data == name)
    result = benchmark.Data(tmp_path, FEW, steps=1, photos=4).of(recipe)
    dataset = open_dataset(f"{result}{options}", splits=["train", "val", "test"])
    assert len(dataset.classes) == FEW[name]
    assert all(len(split) >= FEW[name] for split in dataset.splits.values())

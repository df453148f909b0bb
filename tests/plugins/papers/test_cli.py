import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from florilege.errors import UsageError
from florilege.plugins.papers import sweep
from florilege.plugins.papers.cli import _overrides_of, _points_of, app
from florilege.plugins.papers.sweep_record import FIGURES, words_of
from florilege.training.configuration import RunFolder, resolve
from tests.commands import call, quick_run
from tests.training.conftest import reports_without_drawings as reports_without_drawings
from tests.training.small import train_quietly, write_photos

_call = partial(call, app)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_photos(tmp_path_factory.mktemp("photos"), train=6, val=4)
    shutil.copytree(folder / "val", folder / "test")
    return folder


def _words(photos: Path, out: Path) -> list[object]:
    return ["default", *quick_run(photos, out)]


def test_a_sweep_from_photos_to_a_table_a_picture_and_json(photos: Path, tmp_path: Path) -> None:
    words = (*_words(photos, tmp_path / "s"), "--over", "loss.label_smoothing=0,0.5", "--seeds", 2)
    result = _call(*words)
    assert result.exit_code == 0, result.output
    assert (
        "sets on val with the right class (set size 3 on average), %, means of 2" in result.stdout
    )
    assert result.stdout.count("chosen") == 1
    assert "on test, %, means of 2 seeds" in result.stdout
    assert "±" in result.stdout
    assert (tmp_path / "s" / "curves.png").read_bytes().startswith(b"\x89PNG")
    plain = json.loads(_call(*words, "--resume", "--json").stdout)
    assert len(plain["runs"]) == 4
    assert {row["rule"] for row in plain["test"]} == {"average_k", "top_k"}
    assert [run["test"] is not None for run in plain["runs"]].count(True) == 2

    run = RunFolder(tmp_path / "s" / plain["runs"][0]["run"])
    train_quietly(run.read_config(), tmp_path / "alone")
    assert run.best.read_bytes() == RunFolder(tmp_path / "alone").best.read_bytes()


def test_one_seed_warns_of_the_missing_interval(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = dict.fromkeys(FIGURES, 0.5)
    rows = [{"rule": rule, "k": 2.0, **figures} for rule in ("average_k", "top_k")]
    monkeypatch.setattr(sweep, "_tested", lambda *_run: rows)
    result = _call(*_words(photos, tmp_path / "s"), "--seeds", 1)
    assert result.exit_code == 0, result.output
    assert "one seed: there is no interval" in " ".join(result.stderr.split())
    assert "±" not in result.stdout
    assert "as it is" in result.stdout


@pytest.mark.parametrize(
    ("word", "over", "message"),
    [
        ("cifar100-agv-k5", "epochs=1", "did you mean cifar100-avg-k5"),
        ("default", "optimiser.learnig_rate=1,2", "did you mean optimiser.learning_rate?"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(
    photos: Path, tmp_path: Path, word: str, over: str, message: str
) -> None:
    result = _call(word, *_words(photos, tmp_path / "s")[1:], "--over", over)
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_a_sweep_is_not_for_torchrun(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = _call(*_words(photos, tmp_path / "s"))
    assert "start a sweep without torchrun" in str(result.exception)
    assert not (tmp_path / "s").exists()


def test_a_grid_is_every_combination_in_the_order_given() -> None:
    points = _points_of(["loss.alpha=1e-1,1", "schedule.milestones=[1, 2],[3]"])
    assert points == [
        {"loss.alpha": 0.1, "schedule.milestones": [1, 2]},
        {"loss.alpha": 0.1, "schedule.milestones": [3]},
        {"loss.alpha": 1, "schedule.milestones": [1, 2]},
        {"loss.alpha": 1, "schedule.milestones": [3]},
    ]
    assert words_of(points[0]) == "loss.alpha=0.1, schedule.milestones=[1, 2]"


def test_an_empty_grid_is_the_unchanged_recipe() -> None:
    (point,) = _points_of([])
    assert (words_of(point), _overrides_of(point)) == ("as it is", [])


def test_values_come_back_as_they_were_through_the_settings() -> None:
    (point,) = _points_of(["optimiser.learning_rate=1e-5"])
    config = resolve({"data": "x"}, overrides=_overrides_of(point))
    assert config.optimiser.learning_rate == 1e-5
    (point,) = _points_of(["validation.patience=null"])
    assert resolve({"data": "x"}, overrides=_overrides_of(point)).validation.patience is None
    (point,) = _points_of(["weights=runs/a b"])
    assert resolve({"data": "x"}, overrides=_overrides_of(point)).weights == "runs/a b"


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
        _points_of(over)

"""What `florilege fit` runs: the single commands, whole, those that a folder still needs."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from florilege.command_line import fit_cli
from florilege.command_line.fit_cli import FitPlan, _training_words
from florilege.errors import BundleError, UsageError
from florilege.run_bundle import Words

FROZEN = "--backbone timm:tf_efficientnet_lite0 --freeze backbone --skip-doubtful"


class Runner:
    """Stands in for the commands: writes what they would, and remembers their lines."""

    def __init__(self, out: Path) -> None:
        self.out, self.lines = out, list[str]()
        self.fails: str | None = None  # the verb that fails

    def __call__(self, words: Words) -> None:
        line = shlex.join(map(str, words)).replace(str(self.out), "OUT")
        self.lines.append(line)
        if self.fails in (words[0], " ".join(map(str, words[:2]))):
            raise BundleError("no weights")
        written = {
            "data": self.out / "photos.csv",
            "train": self.out / "run" / "best.safetensors",
            "export": self.out / "bundle" / "bundle.json",
            "calibrate": self.out / "bundle" / "calibration.json",
            "evaluate": self.out / "report.html",
        }[str(words[0])]
        written.parent.mkdir(parents=True, exist_ok=True)
        written.touch()
        if words[0] == "train":
            (written.parent / "config.yaml").touch()

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    runner = Runner(tmp_path / "out")
    monkeypatch.setattr(fit_cli, "run_step", runner)
    return runner


def plan_of(source: object, runner: Runner, **values: Any) -> FitPlan:
    training = _training_words(str(source), None, None)
    return FitPlan(source=str(source), out=runner.out, training=training, **values)


def folders(root: Path, *names: str, photos: int = 4) -> Path:
    for name in names:
        for number in range(photos):
            path = root / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return root


def test_photos_without_splits_are_split_first_and_every_command_is_whole(
    tmp_path: Path, runner: Runner
) -> None:
    photos = folders(tmp_path / "photos", "rose", "violet", "daisy")
    plan_of(photos, runner, seed=3).carry_out()
    manifest = "--data OUT/photos.csv"
    assert runner.take() == [
        f"data split {photos} --out OUT/photos.csv --seed 3 --copies",
        "data check OUT/photos.csv",
        f"train {manifest} {FROZEN} --seed 3 --out OUT/run",
        "export OUT/run --out OUT/bundle",
        f"calibrate OUT/bundle {manifest} --k 1,2,3",
        f"evaluate OUT/bundle {manifest} --report OUT/report.html",
    ]


def test_photos_with_splits_are_used_as_they_are(tmp_path: Path, runner: Runner) -> None:
    photos = folders(tmp_path / "photos", *(f"{split}/{name}" for split in ("train", "val", "test")
                                            for name in "abcdefg"))  # fmt: skip
    plan_of(photos, runner).carry_out()
    lines = runner.take()
    assert lines[0] == f"data check {photos}"
    assert [line for line in lines if "photos.csv" in line] == []
    assert "--k 1,2,3,5" in lines[-2]


def test_without_test_photos_nothing_is_measured_and_without_val_all_is_split_again(
    tmp_path: Path,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan_of(folders(tmp_path / "a", "train/x", "val/x", "train/y"), runner).carry_out()
    assert [line.split()[0] for line in runner.take()][-1] == "calibrate"
    assert "has no test photos" in capsys.readouterr().err
    other = Runner(tmp_path / "other")
    monkeypatch.setattr(fit_cli, "run_step", other)
    plan_of(folders(tmp_path / "b", "train/x", "test/x", "train/y"), other).carry_out()
    assert other.take()[0].startswith("data split")
    assert "lacks train or val photos" in capsys.readouterr().err


def test_the_flora_is_not_checked_and_trains_by_its_own_recipe(runner: Runner) -> None:
    plan_of("flora:train=60", runner).carry_out()
    assert runner.take()[0] == "train --data flora:train=60 --recipe demo --seed 0 --out OUT/run"


def test_a_second_call_runs_what_is_missing_and_says_what_is_there(
    tmp_path: Path, runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = folders(tmp_path / "photos", "rose", "violet", "daisy")
    runner.fails = "export"
    with pytest.raises(BundleError):
        plan_of(photos, runner).carry_out()
    runner.fails, first = None, runner.take()
    plan_of(photos, runner).carry_out()
    assert [line.split()[0] for line in runner.take()] == ["export", "calibrate", "evaluate"]
    assert "done already: data split, data check, train;" in capsys.readouterr().err
    plan_of(photos, runner).carry_out()
    assert runner.take() == []
    (runner.out / "report.html").unlink()
    plan_of(photos, runner).carry_out()
    assert [line.split()[0] for line in runner.take()] == ["evaluate"]
    plan_of(photos, runner, ks="1,2").carry_out()  # other thresholds, and what follows
    assert [line.split()[0] for line in runner.take()] == ["calibrate", "evaluate"]
    assert len(first) == 4
    journal = (runner.out / "commands.txt").read_text().splitlines()
    assert len(journal) == 6
    assert journal[4].endswith("--k 1,2")
    assert all(line.startswith("florilege ") for line in journal)


def test_photos_that_a_check_refused_are_split_again_once_they_are_mended(
    tmp_path: Path, runner: Runner
) -> None:
    """The manifest still lists a damaged photo that was deleted."""
    photos = folders(tmp_path / "photos", "rose", "violet", "daisy")
    runner.fails = "data check"
    with pytest.raises(BundleError):
        plan_of(photos, runner).carry_out()
    runner.take()
    runner.fails = None
    plan_of(photos, runner).carry_out()
    assert [line.split()[1] for line in runner.take()[:2]] == ["split", "check"]
    plan_of(photos, runner).carry_out()
    assert runner.take() == []


def test_a_folder_of_other_photos_or_another_split_is_left_as_it_is(
    tmp_path: Path, runner: Runner
) -> None:
    photos = folders(tmp_path / "photos", "rose", "violet", "daisy")
    plan_of(photos, runner).carry_out()
    runner.take()
    others = folders(tmp_path / "others", "rose", "violet")
    for plan in (plan_of(others, runner), plan_of(photos, runner, seed=1)):
        with pytest.raises(UsageError, match="--out"):
            plan.carry_out()
    assert runner.take() == []


def test_a_stopped_training_is_continued(tmp_path: Path, runner: Runner) -> None:
    photos = folders(tmp_path / "photos", "rose", "violet", "daisy")
    (runner.out / "run").mkdir(parents=True)
    (runner.out / "run" / "config.yaml").touch()
    plan_of(photos, runner).carry_out()
    assert runner.take()[2].endswith("--resume")
    assert "--resume" not in (runner.out / "commands.txt").read_text()


@pytest.mark.parametrize(
    ("source", "backbone", "weights", "flags"),
    [
        ("photos", None, None, FROZEN),
        ("photos", "resnet18", None, "--backbone resnet18 --freeze backbone --skip-doubtful"),
        ("photos", None, "a.pt", f"{FROZEN} --weights a.pt"),
        ("photos", None, "none", "--recipe small-photos"),
        ("photos", "tiny", "none", "--recipe small-photos --backbone tiny"),
        ("flora", None, None, "--recipe demo"),
    ],
)
def test_a_network_is_pretrained_unless_said_otherwise(
    source: str, backbone: str | None, weights: str | None, flags: str
) -> None:
    assert " ".join(_training_words(source, backbone, weights)) == flags

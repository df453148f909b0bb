import json
from functools import partial
from pathlib import Path

import pytest
import torch

from florilege.command_line import import_export
from florilege.errors import DataError, FlorilegeError, UsageError
from florilege.models.backbones import read_weights
from florilege.models.bundle import replace_files
from florilege.training import cli
from florilege.training.configuration import RunFolder, to_yaml
from tests.commands import call, error_of, quick_run
from tests.training.small import small_config

_train, _export = partial(call, cli.app), partial(call, import_export.app, "export")


def _quick(photos: Path, run: Path) -> list[object]:
    return [*quick_run(photos, run), "--loss", "two_head_average_k"]


def test_train_and_export_with_the_words_of_the_documentation(photos: Path, tmp_path: Path) -> None:
    trained = _train(*_quick(photos, tmp_path / "run"), "--seed", 3, "--set", "loss.alpha=0.5")
    assert trained.exit_code == 0, trained.output
    run = tmp_path / "run"
    assert trained.stderr.splitlines()[-2:] == [
        f"the run with its curves is in {run}: see {run / 'report.html'}",
        f"next: florilege export {run} --out {run}-bundle",
    ]
    assert "epoch 1/1  loss" in trained.stderr
    assert "hold the right class (size 2 on average)" in trained.stdout  # K = 3 was lowered
    assert "average_k is 2, the largest for 3 classes" in trained.stderr
    config = RunFolder(tmp_path / "run").read_config()
    assert (config.seed, config.loss["alpha"], config.backbone) == (3, 0.5, "tiny")

    exported = _export(tmp_path / "run", "--out", tmp_path / "bundle")
    assert exported.exit_code == 0, exported.output
    assert "3 classes; the exported network gives the scores" in exported.stdout
    calibrate = f"florilege calibrate {tmp_path / 'bundle'} --data {photos}"
    assert exported.stderr.endswith(f"comparing it with the trained one\nnext: {calibrate}\n")
    assert (tmp_path / "bundle" / "bundle.json").is_file()

    replace_files(tmp_path / "bundle", {"calibration.json": b"{}"})
    again = _export(tmp_path / "run", "--out", tmp_path / "bundle")
    assert "its calibration was removed: calibrate again" in again.stderr
    assert not (tmp_path / "bundle" / "calibration.json").exists()


def test_a_run_continues_with_some_blocks_of_another_or_all_but_the_statistics(
    photos: Path, tmp_path: Path
) -> None:
    _train(*_quick(photos, tmp_path / "first"))
    weights = ("--weights", tmp_path / "first", "--unfreeze")
    trained = _train(*_quick(photos, tmp_path / "some"), *weights, 2)
    assert trained.exit_code == 0, trained.output
    assert "training the head and the last 2 blocks of tiny" in trained.stderr
    assert RunFolder(tmp_path / "some").read_config().unfreeze == 2
    assert _train(*_quick(photos, tmp_path / "second"), *weights, "all").exit_code == 0
    first, second = (
        read_weights(tmp_path / run / "best.safetensors") for run in ("first", "second")
    )
    same = {key for key in first if torch.equal(first[key], second[key])}
    assert same == {key for key in first if "running_" in key or "num_batches" in key}


def test_json_is_one_object_on_stdout(photos: Path, tmp_path: Path) -> None:
    trained = json.loads(_train(*_quick(photos, tmp_path / "run"), "--json").stdout)
    assert (trained["epochs"], trained["best_epoch"]) == (1, 1)
    assert 0 <= trained["accuracy"] <= 1
    assert trained["head"] in ("multi_label", "sccp")
    exported = _export(tmp_path / "run", "--out", tmp_path / "bundle", "--json")
    content = json.loads(exported.stdout)
    assert content["parity"]["pictures"] == 8
    assert len(content["bundle_sha256"]) == 64


def test_a_second_run_into_the_same_folder_is_refused_and_resume_continues_the_same(
    photos: Path, tmp_path: Path
) -> None:
    quick = _quick(photos, tmp_path / "run")
    assert _train(*quick).exit_code == 0
    assert isinstance(error_of(cli.app, *quick), UsageError)
    longer = _train("--out", tmp_path / "run", "--resume", "--epochs", 2)
    assert longer.exit_code == 0, longer.output
    assert "continuing after epoch 1" in longer.stderr
    assert "epoch 2/2" in longer.stderr
    assert RunFolder(tmp_path / "run").read_config().epochs == 2
    other = error_of(cli.app, "--out", tmp_path / "run", "--resume", "--seed", 4)
    assert "seed was 0, now 4" in str(other)


def test_the_settings_of_a_run_are_a_file_for_the_next(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(to_yaml(small_config(photos, epochs=0, seed=8)))
    arguments = ["--config", tmp_path / "c.yaml", "--out"]
    assert _train(*arguments, tmp_path / "a").exit_code == 0
    assert RunFolder(tmp_path / "a").read_config().seed == 8
    assert _train(*arguments, tmp_path / "b", "--seed", 9).exit_code == 0
    assert RunFolder(tmp_path / "b").read_config().seed == 9  # a flag wins over the file


@pytest.mark.parametrize(
    ("extra", "kind", "message"),
    [
        (["--data", "no/such/folder"], DataError, "no such file or folder"),
        (["--backbone", "resnet19"], UsageError, "did you mean resnet18"),
        (["--recipe", "fast"], UsageError, "there is no recipe 'fast'"),
        (["--set", "loss.average_k=99"], UsageError, "average_k must be in [1, 3] for 3 classes"),
        (["--set", "colour=red"], UsageError, "unknown setting colour"),
        (["--epochs", "-1"], UsageError, "epochs must be a whole number >= 0, got -1"),
    ],
)
def test_a_mistake_is_a_clear_error_with_its_exit_code(
    photos: Path, tmp_path: Path, extra: list[str], kind: type[FlorilegeError], message: str
) -> None:
    error = error_of(cli.app, *_quick(photos, tmp_path / "run"), *extra)
    assert type(error) is kind
    assert message in str(error)
    assert not (tmp_path / "run").exists()


def test_an_interruption_before_the_first_step_says_that_nothing_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("florilege.training.train.train_run", interrupted)
    run = _train("--data", "flora", "--out", tmp_path / "run")
    assert "nothing to resume" in run.output
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last.pt").touch()
    run = _train("--data", "flora", "--out", tmp_path / "run")
    assert "nothing to resume" not in run.output

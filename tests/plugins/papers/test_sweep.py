"""What a sweep trains, resumes, chooses and measures; the runs are simulated."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from florilege.cores import cores
from florilege.errors import DataError, SomeInputsFailed, UsageError
from florilege.plugins.papers import sweep as module
from florilege.plugins.papers.cli import _overrides_of, _points_of
from florilege.plugins.papers.sweep import ConfigOf, sweep
from florilege.plugins.papers.sweep_record import FIGURES, PICTURE, Changes, Record, RunRecord
from florilege.training.config import TrainConfig
from florilege.training.configuration import RunFolder, resolve
from florilege.training.train import TrainResult
from tests.data.pictures import write_folder
from tests.florilege.test_files import holder
from tests.training.small import small_config, train_quietly

DATA = "flora:train=100,val=10,test=10"


class Runs:
    """Simulated runs, whose accuracy rises with the number of epochs."""

    def __init__(self) -> None:
        self.trained, self.tested = list[str](), list[str]()
        self.broken: dict[str, BaseException] = {}

    def train(self, config: TrainConfig, out: Path, **_others: Any) -> TrainResult:
        name = f"{config.epochs} epochs, seed {config.seed}"
        self.trained.append(name)
        if name in self.broken:
            raise self.broken[name]
        return TrainResult(
            run=str(out),
            epochs=config.epochs,
            best_epoch=1,
            metric="average-3 accuracy",
            set_size="",
            accuracy=0.5 + config.epochs / 10 + config.seed / 1000,
            head="linear",
            score_kind="softmax",
            weight_decay=None,
            seconds=1.0,
        )

    def test(self, run: RunRecord, _folder: Path) -> list[dict[str, Any]]:
        name = run.run.removeprefix("runs/")
        self.tested.append(name)
        if name in self.broken:
            raise self.broken[name]
        figures = dict.fromkeys(FIGURES, 0.5)
        return [{"rule": rule, "k": 3.0, **figures} for rule in ("average_k", "top_k")]

    def forget(self) -> None:
        self.trained, self.tested, self.broken = [], [], {}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    result = Runs()
    monkeypatch.setattr(module, "train_run", result.train)
    monkeypatch.setattr(module, "_tested", result.test)
    return result


def _plan(
    over: str = "epochs=1,3,2", seeds: int = 2, **flags: Any
) -> tuple[ConfigOf, list[Changes], range]:
    settings = {"recipe": "demo", "data": DATA, "device": "cpu", **flags}

    def config_of(changes: Changes, seed: int) -> TrainConfig:
        return resolve({**settings, "seed": seed}, overrides=_overrides_of(changes))

    return config_of, _points_of([over]), range(seeds)


def test_val_chooses_and_test_is_touched_by_the_seeds_of_that_setting_alone(
    runs: Runs, tmp_path: Path
) -> None:
    record = sweep(*_plan(), tmp_path / "s")
    assert len(runs.trained) == 6
    assert runs.tested == ["2/seed-0", "2/seed-1"]
    assert Record.read(tmp_path / "s") == record
    assert (tmp_path / "s" / PICTURE).is_file()
    record.check_complete()
    runs.forget()
    assert sweep(*_plan(), tmp_path / "s", resume=True) == record
    assert runs.trained == runs.tested == []


def test_others_go_on_when_a_run_fails_and_only_that_is_tried_again(
    runs: Runs, tmp_path: Path
) -> None:
    runs.broken["3 epochs, seed 0"] = RuntimeError("CUDA out of memory")
    record = sweep(*_plan(), tmp_path)
    assert len(runs.trained) == 6
    assert runs.tested == ["3/seed-0", "3/seed-1"]  # the next best: two epochs
    message = (
        "1 of 6 runs failed, so their settings were not chosen; --resume repeats them:\n"
        "  epochs=3, seed 0: RuntimeError: CUDA out of memory"
    )
    with pytest.raises(SomeInputsFailed, match=re.escape(message)):
        record.check_complete()
    runs.forget()
    before = (tmp_path / PICTURE).read_bytes()
    record = sweep(*_plan(), tmp_path, resume=True)
    assert runs.trained == ["3 epochs, seed 0"]
    assert runs.tested == ["2/seed-0", "2/seed-1"]
    assert (tmp_path / PICTURE).read_bytes() != before  # of another setting
    record.check_complete()


def test_nothing_is_chosen_where_every_setting_has_a_failed_run(runs: Runs, tmp_path: Path) -> None:
    runs.broken = {f"{epochs} epochs, seed 1": DataError("no") for epochs in (1, 2, 3)}
    record = sweep(*_plan(), tmp_path)
    assert (record.chosen(), runs.tested) == ([], [])
    assert not (tmp_path / PICTURE).exists()


def test_an_interrupted_sweep_keeps_what_has_ended(runs: Runs, tmp_path: Path) -> None:
    runs.broken["3 epochs, seed 1"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        sweep(*_plan(), tmp_path)
    runs.forget()
    runs.broken["2/seed-1"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        sweep(*_plan(), tmp_path, resume=True)
    assert runs.trained == ["3 epochs, seed 1", "2 epochs, seed 0", "2 epochs, seed 1"]
    runs.forget()
    sweep(*_plan(), tmp_path, resume=True)
    assert (runs.trained, runs.tested) == ([], ["2/seed-1"])


OF_BATCHES: dict[str, Any] = {"over": "batch_size=8,16", "epochs": 1}


@pytest.mark.parametrize(
    ("first", "changed", "message"),
    [
        ({}, {"over": "epochs=1,3"}, "over was ['epochs=1', 'epochs=3', 'epochs=2'], now"),
        ({}, {"seeds": 3}, "seeds was [0, 1], now [0, 1, 2]"),
        ({}, {"batch_size": 8}, "batch_size was 64, now 8"),
        (OF_BATCHES, OF_BATCHES | {"epochs": 2}, "epochs was 1, now 2"),  # which a run may change
    ],
)
def test_a_sweep_resumes_only_with_the_same_settings(
    runs: Runs, tmp_path: Path, first: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    sweep(*_plan(**first), tmp_path)
    runs.forget()
    with pytest.raises(UsageError, match=re.escape(message)):
        sweep(*_plan(**changed), tmp_path, resume=True)
    assert runs.trained == []


def test_where_it_computes_may_change(runs: Runs, tmp_path: Path) -> None:
    sweep(*_plan(), tmp_path)
    runs.forget()
    sweep(*_plan(device="auto"), tmp_path, resume=True)
    assert runs.trained == runs.tested == []  # all of its runs are there


def test_a_folder_with_something_in_it_is_refused(runs: Runs, tmp_path: Path) -> None:
    sweep(*_plan(), tmp_path)
    with pytest.raises(UsageError, match="resume"):
        sweep(*_plan(), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot use"):
        sweep(*_plan(), tmp_path / "file")


def test_two_sweeps_do_not_share_a_folder(runs: Runs, tmp_path: Path) -> None:
    with holder(tmp_path), pytest.raises(UsageError, match="another process"):
        sweep(*_plan(), tmp_path, resume=True)
    assert runs.trained == []


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("validation.k=2,3", "use average-2 accuracy and average-3 accuracy, which cannot"),
        ("epochs=0,1", "epochs must be at least 1"),
        ("loss.alpha=1,2", "cross_entropy: has no alpha"),
        ("loss.label_smoothing=0.1,3", "label_smoothing"),
    ],
)
def test_a_grid_that_cannot_be_trained_or_compared_is_refused_at_once(
    runs: Runs, tmp_path: Path, over: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        sweep(*_plan(over), tmp_path / "s")
    assert not (tmp_path / "s").exists()
    assert runs.trained == []


def test_data_without_test_are_refused_before_anything_is_trained(
    runs: Runs, tmp_path: Path
) -> None:
    counts = {"a": 2, "b": 2}
    data = write_folder(tmp_path / "data", {"train": counts, "val": counts})
    with pytest.raises(DataError, match="no split 'test'"):
        sweep(*_plan(data=str(data)), tmp_path / "s")
    assert runs.trained == []


def test_a_missing_onnx_runtime_is_refused_before_training(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = {"onnxruntime": "1", "onnxruntime-gpu": "1"}
    monkeypatch.setattr("florilege.models.runtime.installed_wheels", lambda: wheels)
    with pytest.raises(UsageError, match="both installed"):
        sweep(*_plan(), tmp_path / "s")
    assert not (tmp_path / "s").exists()
    assert runs.trained == []


def test_a_run_of_a_gpu_is_measured_where_onnx_runtime_has_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs/1/seed-0")
    config = small_config("flora:train=64,val=16,test=16", epochs=1)
    result = train_quietly(config, folder.path)
    folder.config.write_text(folder.config.read_text().replace("device: cpu", "device: cuda"))
    run = RunRecord(
        changes={}, seed=0, run="runs/1/seed-0", head=result.head, score_kind=result.score_kind
    )
    rows = module._tested(run, tmp_path)
    assert {row["rule"] for row in rows} == {"average_k", "top_k"}
    assert {row["k"] for row in rows} == {1.0, 1.5, 2.0, 3.0, 5.0, 10.0}


@pytest.mark.parametrize(
    ("settings", "alone", "together"),
    [({}, 0, 3), ({"freeze": "backbone", "weights": "net.safetensors"}, 1, 2)],
)
def test_the_features_of_a_frozen_network_are_computed_by_one_run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    settings: dict[str, Any],
    alone: int,
    together: int,
) -> None:
    parts = list[tuple[int, list[str]]]()

    def outcomes(jobs: list[Any], devices: list[str]) -> list[Any]:
        parts.append((len(jobs), devices))
        return []

    monkeypatch.setattr(module, "_devices", lambda _: ["0", "1"])
    monkeypatch.setattr(module, "_outcomes", outcomes)
    config = small_config(tmp_path, **settings)
    module._train_runs(Record.of(config, [{}], [0, 1, 2], 9), [config] * 3, tmp_path)
    assert parts == [(alone, ["0"]), (together, ["0", "1"])]


@pytest.mark.parametrize(("jobs", "share"), [(3, 4), (2, 4), (1, 8)])
def test_runs_on_several_gpus_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jobs: int, share: int
) -> None:
    """The pool prepares this process as it does its own; nothing is started."""
    counts = list[int]()

    def pool(count: int, _context: object, prepare: Callable[..., None], given: Any) -> Any:
        prepare(*given)
        counts.extend((count, cores()))
        raise KeyboardInterrupt

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(8)))
    monkeypatch.setattr("florilege.cores._processes", 1)
    monkeypatch.setattr("torch.set_num_threads", counts.append)
    monkeypatch.setattr(module, "ProcessPoolExecutor", pool)
    run = RunRecord(changes={}, seed=0, run="runs/1")
    job = module._Job(run, "", small_config(tmp_path), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(module._outcomes([job] * jobs, ["0", "1"]))
    assert counts == [share, min(jobs, 2), share]

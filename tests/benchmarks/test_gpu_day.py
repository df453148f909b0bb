"""Slices for a GPU: each is run once, in its time, and reported whatever becomes of it."""

import csv
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import gpu_day
from benchmarks.gpu_day import SLICE_S, GpuDay, Step, steps_of
from florilege.training.configuration import resolve
from florilege.training.network import _make_objective

PYTHON = (sys.executable, "-c")


def _step(name: str, *scripts: str, gpus: int = 0, continues: bool = False) -> Step:
    commands = [(*PYTHON, script) for script in scripts]
    return Step(name=name, title=name, commands=commands, gpus=gpus, continues=continues)


def _day(steps: list[Step], out: Path) -> GpuDay:
    return GpuDay(steps, out, out / "figures.csv", "a card")


def _outcomes(out: Path) -> dict[str, str]:
    results = json.loads((out / "results.json").read_text())
    return {name: result["outcome"] for name, result in results.items()}


def test_each_slice_runs_once_and_a_failure_ends_its_step_alone(tmp_path: Path) -> None:
    steps = [
        _step("good", "print('first')", "print('second')"),
        _step("bad", "print('before'); raise SystemExit('why')", "print('never')"),
        _step("last", "print('third')"),
    ]
    _day(steps, tmp_path).run(10, gpus=0)
    failed = "failed with exit code 1"
    outcomes = {"good-1": "done", "good-2": "done", "bad-1": failed, "last": "done"}
    assert _outcomes(tmp_path) == outcomes
    report = (tmp_path / "report.md").read_text()
    assert all(word in report for word in ("first", "second", "before", "why", "third"))
    assert "| bad-2 | not run |" in report

    again = [_step(step.name, *["raise SystemExit(1)"] * len(step.commands)) for step in steps]
    _day(again, tmp_path).run(10, gpus=0)
    assert _outcomes(tmp_path) == outcomes


def test_what_a_slice_prints_is_kept_with_card_versions_and_date(tmp_path: Path) -> None:
    noise = "import sys; sys.stderr.write('noise')"
    _day([_step("one", f"{noise}; print('a, 1'); print(); print('b')")], tmp_path).run(10, gpus=0)
    _day([_step("two", "print('c')")], tmp_path).run(10, gpus=0)  # another day
    with (tmp_path / "figures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["slice"], row["measured"]) for row in rows] == [
        *(("one", "a, 1"), ("one", "b"), ("two", "c"))
    ]
    for row in rows:
        assert row["card"] == "a card"
        assert row["versions"].startswith("torch ")
        assert len(row["date"]) == len("2026-11-28")


@pytest.mark.parametrize("continues", [False, True])
def test_a_slice_ends_as_by_ctrl_c_and_goes_on_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, continues: bool
) -> None:
    checkpoint = tmp_path / "checkpoint"
    script = (
        f"import pathlib, time; file = pathlib.Path({str(checkpoint)!r})\n"
        "if file.exists(): print('continued'); raise SystemExit\n"
        "try: time.sleep(60)\nexcept KeyboardInterrupt: file.touch()"
    )
    steps = [_step("long", script, continues=continues)]
    monkeypatch.setattr(gpu_day, "SLICE_S", 1.0)
    _day(steps, tmp_path).run(10, gpus=0)
    assert _outcomes(tmp_path) == {"long": "to be continued" if continues else "out of time"}
    assert checkpoint.exists()
    assert not (tmp_path / "figures.csv").exists()
    monkeypatch.setattr(gpu_day, "SLICE_S", 30.0)
    _day(steps, tmp_path).run(10, gpus=0)
    assert _outcomes(tmp_path) == {"long": "done" if continues else "out of time"}


def test_what_time_and_cards_do_not_allow_is_left_for_another_run(tmp_path: Path) -> None:
    steps = [_step("two cards", "print(1)", gpus=2), _step("one", "print(1)")]
    _day(steps, tmp_path).run(SLICE_S / 60 - 0.1, gpus=1)
    assert (tmp_path / "report.md").read_text().count("| not run |") == 2
    _day(steps, tmp_path).run(10, gpus=1)
    assert (tmp_path / "report.md").read_text().count("| not run |") == 1
    _day(steps, tmp_path).run(10, gpus=2)
    assert "not run" not in (tmp_path / "report.md").read_text()


def test_what_this_python_lacks_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_day", "--device", "cpu", "--out", str(tmp_path / "out")])
    absent = {"fastapi", "pydantic"}
    monkeypatch.setattr(gpu_day, "find_spec", lambda name: None if name in absent else object())
    with pytest.raises(SystemExit, match="2"):
        gpu_day.main()
    assert "lacks fastapi, pydantic: install" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_command_names_a_module_that_exists_and_the_device(
    device: str, tmp_path: Path
) -> None:
    steps = steps_of(device, tmp_path, None)
    names = [step.name for step in steps]
    assert "tests-gpu" in names[: names.index("pipeline")]
    assert [step.name for step in steps if step.gpus > 1] == ["ranks"] * (device == "cuda")
    for step in steps:
        for command in step.commands:
            assert command[0] == sys.executable
            assert command[1] == "-m"
            place = Path(*command[2].split("."))
            ours = command[2].startswith(("benchmarks", "florilege"))
            assert not ours or place.with_suffix(".py").exists() or place.is_dir()
    trainings = [step.commands[0] for step in steps if step.name.startswith("training-")]
    variants = [command[command.index("--only") + 1 :] for command in trainings]
    assert {"ours", "plain", "network alone"} < {word for words in variants for word in words}
    assert all(len([w for w in words if w[:2] != "--"]) <= 3 for words in variants), "two minutes"
    assert all(step.continues for step in steps if "--compile" in step.commands[0])


def test_rows_of_cifar_100_are_runs_of_four_losses_that_resume(tmp_path: Path) -> None:
    steps = steps_of("cuda", tmp_path, Path("cifar-100"))
    rows = [step for step in steps if step.name.startswith("row-")]
    assert len({step.name for step in rows}) == 4 * 2 * 3
    for step in rows:
        assert step.continues
        words = [*step.commands[0][4:]]
        assert words[-1] == "--resume"
        flags = {key[2:].replace("-", "_"): value for key, value in pairwise(words)}
        overrides = [value for key, value in pairwise(words) if key == "--set"]
        named = {name: flags[name] for name in ("recipe", "data", "loss", "backbone")}
        numbers = {name: int(flags[name]) for name in ("seed", "epochs")}
        config = resolve({**named, **numbers}, overrides=overrides)
        assert (config.epochs, config.precision, config.schedule.name) == (60, "bf16", "cosine")
        assert config.backbone == "resnet18_small"
        loss = _make_objective(config, [500] * 100).loss_fn
        assert {loss.k, loss.average_k} <= {5, None}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_loads_on_a_server_end_in_half_a_slice(device: str, tmp_path: Path) -> None:
    loads = 0
    for step in steps_of(device, tmp_path, None):
        for command in step.commands:
            if "benchmarks.load.server" not in command:
                continue
            loads += 1
            values = dict(pairwise(command))
            seconds, rounds = float(values["--seconds"]), int(values["--rounds"])
            puts = 1 + len(values["--connections"].split(","))  # and one of photos by chance
            assert len(values["--workers"].split(",")) == len(values["--photos"].split(",")) == 1
            # the limit before and after each, and something to warm up with
            assert seconds * (2 + puts * (2 * rounds + 1)) < SLICE_S / 2
    assert loads == (8 if device == "cuda" else 2)

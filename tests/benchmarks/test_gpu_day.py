"""Steps for a GPU: each is run once, in its time, and reported whatever becomes of it."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_day import GpuDay, Step, steps_of

PYTHON = (sys.executable, "-c")


def _step(name: str, *scripts: str, minutes: float = 1, gpus: int = 0) -> Step:
    commands = [(*PYTHON, script) for script in scripts]
    return Step(name=name, title=name, commands=commands, minutes=minutes, gpus=gpus)


def test_each_step_runs_once_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    steps = [
        _step("good", "print('first')", "print('second')"),
        _step("bad", "print('before'); raise SystemExit(3)", "print('never')"),
        _step("last", "print('third')"),
    ]
    GpuDay(steps, tmp_path).run(1, gpus=0)
    results = json.loads((tmp_path / "results.json").read_text())
    outcomes = {name: result["outcome"] for name, result in results.items()}
    assert outcomes == {"good": "done", "bad": "failed with exit code 3", "last": "done"}
    report = (tmp_path / "report.md").read_text()
    assert all(word in report for word in ("first", "second", "before", "third"))
    assert "never\n" not in report

    again = [_step(step.name, "raise SystemExit(1)") for step in steps]
    GpuDay(again, tmp_path).run(1, gpus=0)
    assert json.loads((tmp_path / "results.json").read_text()) == results


def test_a_step_ends_as_by_ctrl_c_when_its_time_is_over(tmp_path: Path) -> None:
    script = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('checkpoint')"
    GpuDay([_step("long", script, minutes=1 / 60)], tmp_path).run(1, gpus=0)
    assert "| long | out of time | 1 |" in (tmp_path / "report.md").read_text()
    assert "checkpoint" in (tmp_path / "long.log").read_text()


def test_what_time_and_cards_do_not_allow_is_left_for_another_run(tmp_path: Path) -> None:
    steps = [_step("two cards", "print(1)", gpus=2), _step("one", "print(1)")]
    GpuDay(steps, tmp_path).run(0, gpus=1)
    assert (tmp_path / "report.md").read_text().count("| not run |") == 2
    GpuDay(steps, tmp_path).run(1, gpus=1)
    assert (tmp_path / "report.md").read_text().count("| not run |") == 1
    GpuDay(steps, tmp_path).run(1, gpus=2)
    assert "not run" not in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_command_names_a_module_that_exists_and_the_device(
    device: str, tmp_path: Path
) -> None:
    steps = steps_of(device, tmp_path, None)
    assert [step.name for step in steps][:2] == ["tests", "pipeline"]
    assert sum(step.minutes for step in steps) <= 45
    assert [step.name for step in steps if step.gpus > 1] == ["ranks"] * (device == "cuda")
    for step in steps:
        for command in step.commands:
            assert command[0] == sys.executable
            assert command[1] == "-m"
            place = Path(*command[2].split("."))
            ours = command[2].startswith(("benchmarks", "florilege"))
            assert not ours or place.with_suffix(".py").exists() or place.is_dir()
    last = steps_of(device, tmp_path, Path("cifar-100"))[-1]
    assert any("cifar-100" in part for part in last.commands[0])

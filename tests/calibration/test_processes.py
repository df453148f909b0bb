"""Several processes give what one gives, and end whatever happens."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import calibration.scoring
from calibration.calibrating import calibrate_bundle
from calibration.processes import in_processes
from models.bundle import Bundle, open_bundle
from models.errors import DataError, FlorilegeError, UsageError
from tests.calibration import chores
from tests.calibration.small_bundle import CLASSES, make_bundle, make_data

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "b")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "d", rows=6)


def test_results_come_in_the_order_of_the_rows_from_every_process() -> None:
    found = list(in_processes(chores.squares, 7, 3))
    assert [square for square, _ in found] == [row * row for row in range(7)]
    pids = [pid for _, pid in found]
    assert pids == [pids[row % 3] for row in range(7)]
    assert len({*pids, os.getpid()}) == 4


def test_what_work_prints_does_not_garble_its_results() -> None:
    assert list(in_processes(chores.chatter, 5, 2)) == list(range(5))


def test_an_error_keeps_its_class_and_its_words() -> None:
    with pytest.raises(DataError, match=r"^photo 2$"):
        list(in_processes(partial(chores.failing, DataError("photo 2")), 9, 2))
    with pytest.raises(DataError, match="nothing to begin with"):
        list(in_processes(chores.unprepared, 9, 2))
    with pytest.raises(FlorilegeError, match=r"KeyError.*'gone'"):
        list(in_processes(partial(chores.failing, KeyError("gone")), 9, 2))


def test_rows_before_the_failing_one_are_given_first() -> None:
    results = in_processes(partial(chores.failing, DataError("photo 2")), 9, 2)
    assert [next(results), next(results)] == [0, 1]


@pytest.mark.parametrize(
    ("with_signal", "message"),
    [(signal.SIGKILL, "memory: repeat with fewer --workers"), (signal.SIGTERM, "signal 15")],
)
def test_a_killed_process_is_an_error_that_says_what_to_do(
    with_signal: signal.Signals, message: str
) -> None:
    with pytest.raises(FlorilegeError, match=message):
        list(in_processes(partial(chores.dying, with_signal), 9, 2))


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(UsageError, match="--workers 1"):
        list(in_processes(lambda: lambda row: row, 3, 2))


def test_nobody_works_far_ahead(tmp_path: Path) -> None:
    results = in_processes(partial(chores.marking, tmp_path), 1000, 2)
    for _ in range(10):
        next(results)
    results.close()  # type: ignore[attr-defined]  # a generator
    assert len(list(tmp_path.iterdir())) <= 10 + 2 * 2


def test_processes_end_when_they_are_no_longer_asked() -> None:
    results = in_processes(chores.squares, 100_000, 2)
    pids = [next(results)[1] for _ in range(2)]
    results.close()  # type: ignore[attr-defined]  # a generator
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def written(bundle: Path) -> dict[str, object]:
    """``calibration.json`` without its time, and the name that this gives it."""
    plain = json.loads(open_bundle(bundle).read("calibration.json"))
    return {name: plain[name] for name in plain if name not in ("created", "calibration_id")}


def test_any_number_of_processes_gives_the_same_calibration(bundle: Bundle, data: Path) -> None:
    texts = []
    for workers in (1, 2, 3):
        calibrate_bundle(bundle.path, str(data), workers=workers)
        texts.append(json.dumps(written(bundle.path)))
    assert texts[1] == texts[0]
    assert texts[2] == texts[0]


def test_photos_that_cannot_be_read_are_listed_whoever_reads_them(
    bundle: Bundle, data: Path
) -> None:
    (data / "val" / "c1" / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"1 of 37 photos .*\n.*bad\.png"):
        calibrate_bundle(bundle.path, str(data), workers=2)


def test_more_processes_than_photos_are_not_started_and_none_is_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, started = make_data(tmp_path / "few", rows=1, splits=("val",)), list[int]()

    def counted(prepare: Any, count: int, processes: int) -> Iterator[Any]:
        started.append(processes)
        return in_processes(prepare, count, processes)

    monkeypatch.setattr(calibration.scoring, "in_processes", counted)
    assert calibrate_bundle(bundle.path, str(data), workers=99).measured.rows == CLASSES
    assert started == [CLASSES]
    with pytest.raises(UsageError, match="--workers must be at least 1, got 0"):
        calibrate_bundle(bundle.path, str(data), workers=0)


def start(*arguments: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
    """A Python process; who reads its stderr to the end has waited for all it started too."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def test_a_script_without_a_guard_runs_once(bundle: Bundle, data: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun')\n"
        "from calibration.calibrating import calibrate_bundle\n"
        f"print(calibrate_bundle({str(bundle.path)!r}, {str(data)!r}, workers=2).measured.rows)\n"
    )
    out, errors = start(str(script), cwd=tmp_path).communicate(timeout=60)
    assert (out, errors) == ("begun\n36\n", "")


@pytest.fixture
def begun(bundle: Bundle, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a calibration that takes a while; gives it back when two workers are there."""
    data = make_data(tmp_path / "many", rows=1, splits=("val",))
    for photo in data.rglob("000.png"):
        for copy in range(1500):
            (photo.parent / f"copy{copy}.png").hardlink_to(photo)

    def begin(*program: str) -> subprocess.Popen[str]:
        arguments = ["calibrate", str(bundle.path), "--data", str(data), "--workers", "2"]
        process = start(*program, *arguments)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and len(children.read_text().split()) < 2:
            pass
        return process

    return begin


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers in /proc")
@pytest.mark.parametrize("program", [["-m", "florilege"], [str(ROOT / "florilege.py")]])
def test_an_interrupt_ends_every_process_quietly(
    begun: Callable[..., subprocess.Popen[str]], bundle: Bundle, program: list[str]
) -> None:
    process = begun(*program)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not open_bundle(bundle.path).has("calibration.json")


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers in /proc")
def test_processes_end_after_their_caller_was_killed(
    begun: Callable[..., subprocess.Popen[str]],
) -> None:
    process = begun("-m", "florilege")
    process.kill()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (-signal.SIGKILL, "")

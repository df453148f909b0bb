"""A run folder is opened like a bundle; its bundle is made once, by commands that are said."""

import io
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from florilege import run_bundle
from florilege.cli import app
from florilege.errors import BundleError, DataError, FlorilegeError, UsageError
from florilege.models.staging import Manifest, sha256_of


class Maker:
    """Stands in for the commands; remembers which were called."""

    def __init__(self, bundle: Path) -> None:
        self.bundle, self.made = bundle, list[str]()
        self.failure: Exception | None = None
        self.flags: tuple[str, ...] = ()

    def __call__(self, words: run_bundle.Words, *, results: bool) -> None:
        assert not results  # stdout is that of the verb that opens the run
        self.made.append(str(words[0]))
        if words[0] == "export":
            assert words[1:] == (self.bundle.parent, "--out", self.bundle)
            exported(self.bundle, self.bundle.parent / "best.safetensors")
            (self.bundle / "calibration.json").unlink(missing_ok=True)
            return
        assert words == ("calibrate", self.bundle, "--data", "photos", *self.flags)
        if self.failure is not None:
            raise self.failure
        (self.bundle / "calibration.json").touch()


def exported(bundle: Path, weights: Path) -> None:
    """The part of a bundle that tells what it was exported from."""
    manifest = Manifest(
        name="a",
        version="1",
        created="today",
        heads={"linear": "logits"},
        files={"weights.safetensors": sha256_of(weights)},
        schema_version=1,
    )
    bundle.mkdir(exist_ok=True)
    (bundle / "bundle.json").write_bytes(manifest.to_json())


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("data: photos\n")
    (run / "best.safetensors").touch()
    made = Maker(run / "bundle")
    monkeypatch.setattr(run_bundle, "run_step", made)
    monkeypatch.setattr(run_bundle, "find_spec", lambda _: True)  # of torch
    return made


def opened(maker: Maker, *, weights: bytes = b"first") -> list[str]:
    maker.made.clear()
    run = maker.bundle.parent
    (run / "best.safetensors").write_bytes(weights)  # later than the bundle, as a copy may be
    assert run_bundle.bundle_folder(str(run)) == maker.bundle
    return list(maker.made)


def test_a_run_is_exported_and_calibrated_again_only_after_further_training(maker: Maker) -> None:
    both = ["export", "calibrate"]
    weights = (b"first", b"first", b"second", b"second")
    assert [opened(maker, weights=each) for each in weights] == [both, [], both, []]


def test_an_empty_name_is_not_the_run_in_the_working_folder(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(maker.bundle.parent)
    with pytest.raises(UsageError, match="name of the bundle is empty"):
        run_bundle.load("")
    for wrong in (None, 3):
        with pytest.raises(UsageError, match="a bundle is a path"):
            run_bundle.load(wrong)  # type: ignore[arg-type]  # a wrong call
    assert not maker.made


@pytest.mark.parametrize("words", [["predict", "", "photos"], ["predict", "bundle", ""],
                                   ["bundle", "inspect", ""], ["evaluate", "bundle", "--data", ""],
                                   ["fit", "photos", "--out="]])  # fmt: skip
def test_an_empty_word_of_a_command_is_not_the_working_folder(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "is empty" in result.stderr


def test_a_run_that_left_out_damaged_photos_is_calibrated_without_them(maker: Maker) -> None:
    config = maker.bundle.parent / "config.yaml"
    config.write_text("data: photos\nskip_damaged: true\n")
    maker.flags = ("--skip-damaged",)
    assert opened(maker) == ["export", "calibrate"]
    maker.flags = ()
    (maker.bundle / "calibration.json").unlink()
    config.write_text("data: photos\nskip_damaged: false\n")
    assert opened(maker) == ["calibrate"]


def test_after_a_failed_calibration_only_that_is_repeated(maker: Maker) -> None:
    maker.failure = DataError("no photos")
    with pytest.raises(DataError, match="no photos"):
        opened(maker)
    maker.failure = None
    assert opened(maker) == ["calibrate"]


def test_a_folder_of_fit_has_its_run_and_its_bundle_side_by_side(
    tmp_path: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = tmp_path / "fitted"
    fitted.mkdir()
    maker.bundle.parent.rename(fitted / "run")
    seen = list[run_bundle.Words]()

    def step(words: run_bundle.Words, *, results: bool) -> None:
        seen.append(words)
        if words[0] == "export":
            exported(fitted / "bundle", fitted / "run" / "best.safetensors")
        else:
            (fitted / "bundle" / "calibration.json").touch()

    monkeypatch.setattr(run_bundle, "run_step", step)
    assert run_bundle.bundle_folder(str(fitted)) == fitted / "bundle"
    assert seen[0] == ("export", fitted / "run", "--out", fitted / "bundle")
    assert run_bundle.bundle_folder(str(fitted)) == fitted / "bundle"
    assert len(seen) == 2


def test_without_torch_a_run_says_where_to_export_it(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_bundle, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"export it on another machine: florilege export .*run"):
        opened(maker)


def test_other_folders_are_opened_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()  # bundles have one too
    (tmp_path / "bundle.json").touch()
    for path in (tmp_path, tmp_path / "missing"):
        assert run_bundle.bundle_folder(str(path)) == path


class Process:
    """Stands in for a command that ends with a code after lines on stderr."""

    def __init__(self, code: int, lines: str = "") -> None:
        self.returncode, self.stderr, self.waits = code, io.StringIO(lines), list[float | None]()
        self.terminated = False

    def __call__(self, words: list[str], **options: Any) -> "Process":
        self.words, self.options = words, options
        return self

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.stderr.close()

    def wait(self, timeout: float | None = None) -> int:
        self.waits.append(timeout)
        return self.returncode

    def terminate(self) -> None:
        self.terminated = True


Started = Callable[[Process], Process]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    def start(process: Process) -> Process:
        monkeypatch.setattr(subprocess, "Popen", process)
        return process

    return start


def test_a_step_is_said_whole_and_what_it_writes_is_passed_on(
    started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    process = started(Process(0, "exporting\nwarning: few photos\n"))
    run_bundle.run_step(("export", Path("my run"), "--out", "b"), results=False)
    assert process.words[1:] == ["-m", "florilege", "export", "my run", "--out", "b"]
    assert process.options["stdout"] == subprocess.DEVNULL
    assert process.options["env"]["FLORILEGE_STEP"] == "1"
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "$ florilege export 'my run' --out b", "exporting", "warning: few photos"
    ]  # fmt: skip
    assert said.out == ""


@pytest.mark.parametrize(
    ("code", "kind"), [(1, FlorilegeError), (2, UsageError), (3, DataError), (4, BundleError)]
)
def test_a_failed_step_is_the_error_of_the_command(
    code: int, kind: type[FlorilegeError], started: Started, capsys: pytest.CaptureFixture[str]
) -> None:
    started(Process(code, "reading\nerror: the run has no weights\nhelp: florilege --help\n"))
    with pytest.raises(FlorilegeError, match=r"\Athe run has no weights\nhelp: .*\Z") as caught:
        run_bundle.run_step(("export", "run"))
    assert type(caught.value) is kind
    assert capsys.readouterr().err.splitlines() == ["$ florilege export run", "reading"]


@pytest.mark.parametrize(
    ("code", "reason"), [(1, "failed; what"), (-9, "was ended by signal 9, perhaps .* memory")]
)
def test_a_failure_without_a_message_names_the_step(
    code: int, reason: str, started: Started
) -> None:
    started(Process(code, "reading\n"))
    with pytest.raises(FlorilegeError, match=f"`florilege export` {reason}"):
        run_bundle.run_step(("export", "run"))


@pytest.mark.parametrize("code", [130, -2])
def test_a_stopped_step_stops_what_called_it(code: int, started: Started) -> None:
    started(Process(code))
    with pytest.raises(KeyboardInterrupt):
        run_bundle.run_step(("train",))


def test_after_an_interruption_a_step_has_time_to_save_its_work(started: Started) -> None:
    class Stopped(Process):
        def wait(self, timeout: float | None = None) -> int:
            super().wait(timeout)
            if len(self.waits) == 1:
                raise KeyboardInterrupt
            if len(self.waits) == 2:
                raise subprocess.TimeoutExpired("train", 20)
            return 130

    process = started(Stopped(0))
    with pytest.raises(KeyboardInterrupt):
        run_bundle.run_step(("train",))
    assert process.waits == [None, 20, None]
    assert process.terminated

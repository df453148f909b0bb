"""A run folder is opened like a bundle; its bundle is made once."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from florilege import run_bundle
from florilege.errors import BundleError, DataError, FlorilegeError, UsageError

CALIBRATE = "florilege.calibration.calibrate.calibrate"


class Maker:
    """Stands in for the export and the calibration; remembers what it made."""

    def __init__(self, bundle: Path) -> None:
        self.bundle, self.made = bundle, list[str]()
        self.failure: Exception | None = None

    def export(self, words: list[str], **_: Any) -> SimpleNamespace:
        assert words[3:5] == ["export", str(self.bundle.parent)]
        self.made.append("export")
        self.bundle.mkdir(exist_ok=True)
        (self.bundle / "bundle.json").touch()
        (self.bundle / "calibration.json").unlink(missing_ok=True)
        return SimpleNamespace(returncode=0, stderr="")

    def calibrate(self, bundle: Path, data: str, split: str, *, say: Any) -> None:
        assert (bundle, data, split) == (self.bundle, "photos", "val")
        self.made.append("calibrate")
        if self.failure is not None:
            raise self.failure
        say("the two runtimes differ")
        (bundle / "calibration.json").touch()


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("data: photos\n")
    (run / "best.safetensors").touch()
    made = Maker(run / "bundle")
    monkeypatch.setattr(subprocess, "run", made.export)
    monkeypatch.setattr(f"{CALIBRATE}.calibrate_bundle", made.calibrate)
    monkeypatch.setattr(f"{CALIBRATE}.cautions", lambda _: ["few photos"])
    return made


def opened(maker: Maker, *, trained_at: float) -> list[str]:
    maker.made.clear()
    run = maker.bundle.parent
    for name in ("best.safetensors", "config.yaml"):
        os.utime(run / name, (trained_at, trained_at))
    assert run_bundle.bundle_folder(str(run)) == maker.bundle
    return list(maker.made)


def test_a_run_is_exported_and_calibrated_again_only_after_further_training(maker: Maker) -> None:
    now, both = time.time(), ["export", "calibrate"]
    assert [opened(maker, trained_at=at) for at in (now - 60, now - 60, now + 60)] == [
        both,
        [],
        both,
    ]


def test_it_says_what_it_does_and_shows_the_warnings(
    maker: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(maker, trained_at=time.time() - 60)
    output = capsys.readouterr()
    assert output.out == ""
    first, second, *rest = output.err.splitlines()
    assert "is a run folder: exporting" in first
    assert "thresholds on the val photos of photos" in second
    assert rest[:2] == ["warning: the two runtimes differ", "warning: few photos"]
    assert f"{maker.bundle} is kept" in rest[2]


def test_after_a_failed_calibration_only_that_is_repeated(maker: Maker) -> None:
    maker.failure = DataError("no photos")
    with pytest.raises(DataError, match="no photos"):
        opened(maker, trained_at=time.time() - 60)
    maker.failure = None
    assert opened(maker, trained_at=time.time() - 60) == ["calibrate"]


@pytest.mark.parametrize(
    ("code", "kind"), [(1, FlorilegeError), (2, UsageError), (3, DataError), (4, BundleError)]
)
def test_a_failed_export_is_the_error_of_the_command(
    code: int, kind: type[FlorilegeError], maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = SimpleNamespace(returncode=code, stderr="error: the run has no weights\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failure)
    with pytest.raises(FlorilegeError, match=r"\Athe run has no weights\Z") as caught:
        opened(maker, trained_at=time.time())
    assert type(caught.value) is kind


def test_without_torch_a_run_says_where_to_export_it(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"export it on another machine: florilege export .*run"):
        opened(maker, trained_at=time.time())


def test_other_folders_are_opened_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()  # bundles have one too
    (tmp_path / "bundle.json").touch()
    for path in (tmp_path, tmp_path / "missing"):
        assert run_bundle.bundle_folder(str(path)) == path

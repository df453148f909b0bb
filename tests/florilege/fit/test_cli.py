"""`florilege fit`: one command from photos to a bundle that is calibrated and measured."""

from pathlib import Path

import pytest

from florilege import cli
from florilege.calibration.record.record_file import read_record
from florilege.command_line import fit_cli
from florilege.errors import BundleError
from florilege.models.bundle import open_bundle
from florilege.run_bundle import Words, bundle_folder
from tests.commands import call
from tests.florilege.fit.in_process import Steps

DATA = "flora:train=120,val=100,test=60"

pytestmark = pytest.mark.usefixtures("without_drawings")


def test_one_command_makes_a_calibrated_bundle_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    steps = Steps(monkeypatch)
    result = call(cli.app, "fit", DATA, "--out", out, "--k", "1,2", "--seed", 3)
    assert result.exit_code == 0, result.output + steps.output
    assert read_record(open_bundle(out / "bundle")).asked_k == (1.0, 2.0)
    assert "report.html" in {path.name for path in out.iterdir()}
    assert bundle_folder(str(out)) == out / "bundle"
    first, *_, time, forward, other = result.stderr.splitlines()
    assert first.startswith(f"from {DATA} to prediction sets in {out}: check, train,")
    assert f"everything is in {out}" in time
    assert (forward, other) == (
        f"next: florilege serve {out}", f"  or: florilege predict {out} PHOTO"
    )  # fmt: skip
    assert "next:" not in steps.output  # the steps leave that to the whole
    assert [words[0] for words in steps.lines] == ["train", "export", "calibrate", "evaluate"]
    assert steps.lines[0][steps.lines[0].index("--seed") + 1] == "3"


@pytest.mark.parametrize(("flags", "hints"), [((), True), (("--weights", "w.pt"), False)])
def test_weights_that_cannot_be_fetched_can_be_brought(
    flags: tuple[str, ...], hints: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(words: Words) -> None:
        if words[0] == "train":
            raise BundleError("the pretrained weights could not be downloaded")

    for name in ("train/a", "val/a", "train/b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "0.jpg").touch()
    monkeypatch.setattr(fit_cli, "run_step", step)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.pt").touch()
    result = call(cli.app, "fit", tmp_path / "photos", "--out", tmp_path / "out", *flags)
    assert result.exit_code == 4
    assert "error: the pretrained weights could not be downloaded" in result.stderr
    assert (f"florilege fit {tmp_path / 'photos'} --weights FILE" in result.stderr) == hints
    assert (f"florilege fit {tmp_path / 'photos'} --weights none" in result.stderr) == hints


def test_a_file_of_weights_that_is_missing_is_reported_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lite0.safetensors").touch()
    steps = Steps(monkeypatch)
    result = call(cli.app, "fit", DATA, "--out", "out", "--weights", "lite.safetensors")
    assert result.exit_code == 2
    assert "no such file; did you mean lite0.safetensors?" in result.stderr
    assert steps.lines == []
    (tmp_path / "run").mkdir()  # `train` says what is wrong with it, if anything is
    call(cli.app, "fit", DATA, "--out", "out", "--backbone", "tiny", "--weights", "run")
    assert [line[0] for line in steps.lines] == ["train"]

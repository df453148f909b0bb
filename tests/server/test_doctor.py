"""`florilege doctor`: what is installed, without importing it."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilege.server.cli import _examine, _print_report, app
from florilege.terminal import Console
from tests.server.server_process import ROOT


def test_doctor_prints_one_json_object_and_the_same_for_people() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["ok"] is True
    assert report["problems"] == []
    assert "CPUExecutionProvider" in report["onnxruntime"]["providers"]
    assert report["codecs"]["heif"]
    assert report["codecs"]["avif"]
    assert "image/heic" in report["image_types"]
    assert report["cores"] >= 1
    assert report["free_disk_bytes"] > 0
    assert report["packages"]["numpy"]
    text = CliRunner().invoke(app, ["doctor"]).stdout
    assert "ready to serve" in text
    assert re.search(r"^runs on +((CUDA, )?CPU) *$", text, re.MULTILINE)
    assert report["python"] in text
    report["executable"] = f"/home/{'a' * 90}/bin/python"
    console = Console(width=50, record=True, file=io.StringIO())
    _print_report(report, console)
    assert report["executable"] in re.sub(r"\s+", "", console.export_text())


@pytest.mark.parametrize(("torch", "command"), [("2.14", "demo"), (None, "serve BUNDLE")])
def test_the_next_command_is_one_that_works_here(
    torch: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.server.cli._examine", lambda: _examine() | {"torch": torch})
    assert CliRunner().invoke(app, ["doctor"]).stderr == f"next: florilege {command}\n"


def test_doctor_imports_no_torch_and_the_verbs_beside_serve_no_fastapi() -> None:
    program = (
        "import sys; from florilege.server import cli; "
        "cli._examine(); cli.app.registered_commands; "
        "sys.exit(bool({'torch', 'fastapi'} & set(sys.modules)))"
    )
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert process.returncode == 0


def test_doctor_works_in_a_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "gone"
    missing.mkdir()
    monkeypatch.chdir(missing)
    missing.rmdir()
    assert _examine()["free_disk_bytes"] > 0

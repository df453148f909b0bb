"""The front door: verbs are found, loaded late, and failures end in one line and a code."""

import errno
import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import florilege
from models.errors import BundleError, DataError, FlorilegeError, GateFailed, SomeInputsFailed

RUNNER = CliRunner()


def run(*arguments: str, **environment: str) -> Any:
    return RUNNER.invoke(florilege.app, list(arguments), env=environment)


def command(*verbs: str) -> Any:
    """The command that a verb runs, or that its own verb runs."""
    found: Any = typer.main.get_command(florilege.app)
    for verb in verbs:
        found = found.get_command(typer.Context(found), verb)
    return found


def test_help_lists_every_verb_and_imports_no_package() -> None:
    program = (
        "import sys, florilege\n"
        "try:\n    florilege.app(['--help'], prog_name='florilege')\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'onnxruntime', 'fastapi', 'numpy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    for verb in [*florilege.VERBS, "demo"]:
        assert f" {verb} " in answer.stdout


@pytest.mark.parametrize("verb", [*florilege.VERBS, "demo"])
def test_every_verb_explains_itself(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0, result.output
    assert "Usage" in result.output


def test_a_mistyped_verb_is_a_usage_error_with_a_suggestion() -> None:
    result = run("calibrat")
    assert result.exit_code == 2
    assert "calibrate" in result.output


def test_the_version_is_the_installed_one() -> None:
    assert run("--version").output.strip().endswith(importlib.metadata.version("florilege"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FlorilegeError("x"), 1),
        (DataError("x"), 3),
        (BundleError("x"), 4),
        (GateFailed("x"), 5),
        (SomeInputsFailed("x"), 6),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "there"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_failure_ends_in_one_line_and_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(florilege.LazyVerbs, "get_command", fail)
    result = run("serve", "somewhere")
    assert result.exit_code == code
    assert "Traceback" not in result.output
    if isinstance(error, Exception):
        assert result.output.startswith("error: ")


def test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nhost: 127.0.0.9\n")
    seen: dict[str, Any] = {}
    serve = command("serve")
    serve.callback = lambda **values: seen.update(values)

    def parse(*arguments: str, environment: dict[str, str]) -> dict[str, Any]:
        seen.clear()
        group = typer.main.get_command(florilege.app)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(florilege.LazyVerbs, "get_command", lambda *_: serve)
            for name, value in environment.items():
                patch.setenv(name, value)
            assert group.main(["serve", "B", *arguments], standalone_mode=False) in (None, 0)
        return dict(seen)

    name = "FLORILEGE_SERVE_PORT"
    assert parse(environment={})["port"] == 8000
    assert parse("--config", str(file), environment={})["port"] == 1
    assert parse("--config", str(file), environment={})["host"] == "127.0.0.9"
    assert parse("--config", str(file), environment={name: "2"})["port"] == 2
    assert parse("--config", str(file), "--port", "3", environment={name: "2"})["port"] == 3


def test_a_config_file_with_an_unknown_name_says_which_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("prot: 1\n")
    result = run("serve", "B", "--config", str(file))
    assert result.exit_code == 2
    assert "prot" in result.output
    assert "port" in result.output


def test_a_config_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("- port\n")
    result = run("serve", "B", "--config", str(file))
    assert result.exit_code == 2
    assert "flag: value" in result.output


def test_numbers_of_a_config_file_may_be_a_list(tmp_path: Path) -> None:
    file = tmp_path / "calibrate.yaml"
    file.write_text("k: [1, 2.5]\ncoverage: 0.8\n")
    seen: dict[str, Any] = {}
    calibrate = command("calibrate")
    calibrate.callback = lambda **values: seen.update(values)
    calibrate.main(["B", "--config", str(file)], standalone_mode=False)
    assert (seen["k"], seen["coverage"]) == ("1,2.5", "0.8")


def test_a_verb_whose_extra_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="torch")

    monkeypatch.setattr(importlib, "import_module", missing)
    result = run("train", "--help")
    assert result.exit_code == 2
    assert ".[train]" in result.output


def test_a_variable_is_named_after_its_flag_and_the_version_has_none() -> None:
    train = command("train")
    names = {parameter.name: getattr(parameter, "envvar", None) for parameter in train.params}
    assert names["overrides"] == "FLORILEGE_TRAIN_SET"
    assert names["as_json"] == "FLORILEGE_TRAIN_JSON"
    check = command("data", "check")
    assert "FLORILEGE_DATA_CHECK_JSON" in {getattr(p, "envvar", None) for p in check.params}
    assert "florilege" not in run("doctor", "--help", FLORILEGE_VERSION="1").output[:9]

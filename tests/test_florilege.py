"""The front door: verbs are found, loaded late, and failures end in one line and a code."""

import errno
import importlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from florilege import cli, run_bundle
from florilege.errors import (
    BundleError,
    DataError,
    FlorilegeError,
    GateFailed,
    SomeInputsFailed,
    UsageError,
)

RUNNER = CliRunner()
ROOT = Path(__file__).parents[1]
COMMANDS = ROOT / "docs" / "commands.md"


def run(*arguments: str, **environment: str) -> Any:
    return RUNNER.invoke(cli.app, list(arguments), env=environment)


def help_without(words: list[str], *heavy: str) -> str:
    """The help of a verb, printed by a process that must not import ``heavy`` packages."""
    program = (
        "import sys\nfrom florilege import cli\n"
        f"try:\n    cli.app([*{words}, '--help'], prog_name='florilege')\n"
        "except SystemExit:\n    pass\n"
        f"heavy = set({heavy}) & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_help_lists_every_verb_and_imports_no_package() -> None:
    text = help_without([], "torch", "onnxruntime", "fastapi", "numpy", "PIL")
    assert all(f" {verb} " in text for verb in (*cli.VERBS, "push"))


def test_the_help_of_a_calibration_opens_neither_photos_nor_networks() -> None:
    heavy = ("torch", "onnxruntime", "PIL", "florilege.data", "florilege.models.bundle")
    assert "--baseline" in help_without(["evaluate"], *heavy)


def test_the_version_is_the_installed_one() -> None:
    assert (
        run("--version")
        .output.strip()
        .endswith(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])
    )


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
QUOTA = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "there")


def command(verb: str) -> Any:
    """A verb as the group loads it."""
    group: Any = typer.main.get_command(cli.app)
    return group.resolve_command(typer.Context(group), [verb])[1]


def parsed(verb: str, *arguments: str) -> dict[str, Any]:
    """The values a verb would be called with."""
    counts: dict[str, Any] = {}
    loaded = command(verb)
    loaded.callback = lambda **values: counts.update(values)
    loaded.main(list(arguments), standalone_mode=False)
    return counts


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every verb raise."""

    def fail(bundle: str = "B") -> None:
        raise error

    module: Any = ModuleType("raising")
    module.app = typer.Typer()
    monkeypatch.setitem(sys.modules, "florilege.raising", module)
    for verb, spec in cli.VERBS.items():
        module.app.command(verb)(fail)
        monkeypatch.setitem(
            cli.VERBS, verb, replace(spec, module="florilege.raising", about="fails")
        )


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FlorilegeError("x"), 1, "error: x"),
        (UsageError("x"), 2, "error: x"),
        (DataError("x"), 3, "error: x"),
        (BundleError("x"), 4, "error: x"),
        (GateFailed("x"), 5, "error: x"),
        (SomeInputsFailed("x"), 6, "error: x"),
        (FULL, 1, f"error: the disk: {FULL.strerror}; free some space or choose another"),
        (QUOTA, 1, f"error: the disk: {QUOTA.strerror}; free some space or choose another"),
        (READ_ONLY, 1, f"error: there: {READ_ONLY.strerror}; choose another path"),
    ],
    ids=str,
)
def test_a_failure_ends_in_one_line_and_its_exit_code(
    error: Exception, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(error, monkeypatch)
    result = run("evaluate")
    assert result.exit_code == code
    assert result.output.startswith(words)
    assert result.output.count("\n") == 1
    view = run("--traceback", "evaluate")
    assert view.exit_code == code
    assert "Traceback" in view.output


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("evaluate", "stopped; nothing was changed"),
        ("predict", "stopped"),
        ("calibrate", "stopped; each file is complete or unchanged"),
        ("serve", "stopped"),
    ],
)
def test_ctrl_c_says_what_is_left(verb: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    result = run(verb)
    assert (result.exit_code, result.output) == (130, f"{line}\n")


def test_ctrl_c_while_a_verb_is_imported_leaves_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch takes seconds, in which people change their minds."""

    def importing(verb: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_load", importing)
    result = run("train")
    assert (result.exit_code, result.output) == (130, "stopped; nothing was changed\n")


def test_an_unexpected_failure_is_two_lines_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for error in (ZeroDivisionError("by\nnothing"), EOFError(), OSError("strange")):
        raising(error, monkeypatch)
        result = run("evaluate")
        assert result.exit_code == 1
        what, where = result.output.splitlines()
        assert what.startswith(f"error: unexpected: {type(error).__name__}:")
        (file,) = tmp_path.iterdir()
        assert str(file) in where
        assert "--traceback" in where
        text = file.read_text()
        assert "Traceback" in text
        assert type(error).__name__ in text
        assert file.stat().st_mode & 0o077 == 0
        file.unlink()
        assert "Traceback" in run("--traceback", "evaluate").output
        assert run("evaluate", FLORILEGE_TRACEBACK="1").output.startswith("Traceback")
        assert list(tmp_path.iterdir()) == []


def test_an_unexpected_failure_is_two_lines_where_no_file_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    raising(ZeroDivisionError("by nothing"), monkeypatch)
    result = run("evaluate")
    assert result.exit_code == 1
    _, where = result.output.splitlines()
    assert "cannot be written" in where
    assert "--traceback" in where


def test_a_reader_that_has_enough_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)), monkeypatch)
    result = run("evaluate")
    assert (result.exit_code, result.output) == (1, "")


def test_flags_win_over_the_environment_and_that_over_the_file_and_that_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nhost: 127.0.0.9\n")
    words = ("serve", "B", "--config", str(file))
    assert parsed("serve", "B")["port"] == 8000
    assert (parsed(*words)["port"], parsed(*words)["host"]) == (1, "127.0.0.9")
    monkeypatch.setenv("FLORILEGE_SERVE_PORT", "2")
    assert parsed(*words)["port"] == 2
    assert parsed(*words, "--port", "3")["port"] == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot: 1\n", "has prot; allowed are .* port,.*; did you mean port"),
        ("- port\n", "flag: value"),
        ("config: other.yaml\n", "has config; allowed are "),
        ("port: [\n", "cannot be read as YAML"),
    ],
)
def test_a_config_file_that_cannot_be_used_is_refused(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    result = run("serve", "B", "--config", str(file))
    assert result.exit_code == 2
    assert re.search(message, result.output)


@pytest.mark.parametrize(
    ("verb", "content", "values"),
    [
        ("calibrate", "k: [1, 2.5]\ncoverage: 0.8", {"k": "1,2.5", "coverage": "0.8"}),
        (
            "serve",
            "cors_origin: [https://a, https://b]",
            {"cors_origin": ["https://a", "https://b"]},
        ),
        ("serve", "cors-origin: https://a", {"cors_origin": ["https://a"]}),
        ("serve", "cors_origin:", {"cors_origin": []}),
        ("predict", "paths: [a.png, b.png]", {"paths": ["a.png", "b.png"]}),
        ("predict", "paths: c", {"paths": ["c"]}),
    ],
)
def test_a_config_file_has_a_list_or_one_value_for_numbers_repeated_flags_and_photos(
    verb: str, content: str, values: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"bundle: B\n{content}\n")
    result = {name: parsed(verb, "--config", str(file))[name] for name in values}
    assert {name: list(v) if isinstance(v, tuple) else v for name, v in result.items()} == values


def completions(words: str, *code: str) -> list[str]:
    """What bash is offered after these words, in a process of its own."""
    variables = {
        **os.environ,
        "_FLORILEGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = [sys.executable, *(code or ("-m", "florilege"))]
    process = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert process.stderr == ""
    return process.stdout.split()


def test_the_shell_completes_verbs_and_flags() -> None:
    assert completions("florilege ca") == ["calibrate"]
    assert completions("florilege bundle ins") == ["inspect"]
    assert completions("florilege evaluate --against A --spl") == ["--split"]


def test_completing_a_verb_whose_package_is_missing_says_nothing() -> None:
    code = "import sys; sys.modules['pydantic'] = None; from florilege import cli; cli.main()"
    assert completions("florilege import --wei", "-c", code) == []


def test_completion_is_installed_at_the_top_alone(tmp_path: Path) -> None:
    assert "completion" not in COMMANDS.read_text("utf-8")
    command = [sys.executable, "-m", "florilege", "--install-completion", "bash"]
    detection = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"  # the parent may be no shell
    variables = {**os.environ, "HOME": str(tmp_path), detection: "1"}
    process = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert process.returncode == 0, process.stderr
    assert "complete_bash" in (tmp_path / ".bash_completions/florilege.sh").read_text()


def test_a_verb_whose_extra_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == "florilege.training.cli":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    result = run("train", "--help")
    assert result.exit_code == 2
    assert ".[train]" in result.output


def test_a_run_folder_that_is_not_trained_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")

    def step(words: Sequence[Any], *, results: bool) -> None:  # here, where torch may be loaded
        outcome = run(*map(str, words))
        assert outcome.exit_code == 4
        raise BundleError(outcome.output)

    monkeypatch.setattr(run_bundle, "run_step", step)
    (tmp_path / "config.yaml").write_text("data: flora\n")
    result = run("predict", str(tmp_path), "photo.png")
    assert result.exit_code == 4
    assert f"cannot read {tmp_path}" in result.output


def test_a_flag_with_a_placeholder_has_its_name_written_out() -> None:
    pytest.importorskip("torch")
    modules = {spec.module for spec in cli._verbs().values()}
    apps = [importlib.import_module(module).app for module in sorted(modules)]
    verbs = [each.callback for app in apps for each in app.registered_commands]
    for verb in verbs:
        for parameter in inspect.signature(verb).parameters.values():
            for part in getattr(parameter.annotation, "__metadata__", ()):
                if isinstance(part, typer.models.OptionInfo) and part.metavar:
                    names = [part.default, *(part.param_decls or ())]  # the first is positional
                    assert any(str(name).startswith("--") for name in names), parameter.name


def test_a_variable_is_named_after_its_flag_and_the_version_has_none() -> None:
    pytest.importorskip("torch")
    names = {each.name: getattr(each, "envvar", None) for each in command("train").params}
    assert names["overrides"] == ["FLORILEGE_TRAIN_SET"]
    assert names["as_json"] == ["FLORILEGE_TRAIN_JSON"]
    check = command("data").commands["check"]
    assert ["FLORILEGE_DATA_CHECK_JSON"] in [getattr(p, "envvar", None) for p in check.params]
    assert "florilege" not in run("doctor", "--help", FLORILEGE_VERSION="1").output[:9]

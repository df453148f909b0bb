"""The plugin of `docs/plugins.md`, from a wheel of its own; and plugins that cannot be used."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from florilege import hooks
from florilege.errors import UsageError
from tests.server import garden

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


def ran(words: list[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert process.returncode == 0, process.stdout + process.stderr
    return process


def test_the_plugin_of_the_page_is_installed_and_adds_a_layout_and_a_format(
    bundle: Path, tmp_path: Path
) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names = {"toml": "pyproject.toml", "python": "florilege_finds.py"}
    project, installed = tmp_path / "project", tmp_path / "installed"
    project.mkdir()
    for kind, text in blocks:
        (project / names[kind]).write_text(text)
    build: list[str | Path] = [
        "-m",
        "uv",
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
    ]
    ran([*build, "--out-dir", tmp_path, project])
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(installed)
    finds = tmp_path / "finds"
    finds.mkdir()
    rows = [("train", "a.png", "Rosa"), ("train", "b.png", "Mentha"), ("val", "c.png", "Rosa")]
    for index, (_, photo, _) in enumerate(rows):
        (finds / photo).write_bytes(garden.photo(index))
    (finds / "finds.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    checked = ran(["-m", "florilege", "data", "check", finds], env=environment)
    assert "Mentha" in checked.stdout
    answers = tmp_path / "photos.names"
    predict: list[str | Path] = [
        "predict",
        bundle,
        finds / "a.png",
        "-o",
        answers,
        "--output-cache",
        "none",
    ]
    ran(["-m", "florilege", *predict], env=environment)
    assert re.fullmatch(r".*a\.png: \w+.*\n", answers.read_text())


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs one plugin: a function that takes its module."""

    def install(module: ModuleType | None) -> None:
        monkeypatch.setitem(sys.modules, "their_plugin", module)
        entry = EntryPoint("theirs", "their_plugin", hooks.GROUP)
        monkeypatch.setattr(hooks, "entry_points", lambda group: [entry])
        hooks._plugins.cache_clear()

    yield install
    hooks._plugins.cache_clear()


def module_with(**functions: Any) -> ModuleType:
    module = ModuleType("their_plugin")
    vars(module).update({name: hooks.hookimpl(each) for name, each in functions.items()})
    return module


def test_a_plugin_that_cannot_be_loaded_is_named(installed: Any) -> None:
    installed(None)
    with pytest.raises(UsageError, match=r"the plugin theirs of .* cannot be loaded: .*remove it"):
        hooks._plugins()


def test_a_hook_that_there_is_not_is_an_error(installed: Any) -> None:
    installed(module_with(output_format=lambda: {}))
    with pytest.raises(UsageError, match=r"theirs.*output_format"):
        hooks._plugins()


@pytest.mark.parametrize("name", ["hub", "theirs"])
def test_a_plugin_may_have_any_name_and_that_of_another(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        module = ModuleType(f"plugin_{number}")
        vars(module)["recipes"] = hooks.hookimpl(lambda number=number: {f"r{number}": None})
        monkeypatch.setitem(sys.modules, module.__name__, module)
    entries = [EntryPoint(name, f"plugin_{number}", hooks.GROUP) for number in range(2)]
    monkeypatch.setattr(hooks, "entry_points", lambda group: entries)
    hooks._plugins.cache_clear()
    try:
        assert {"r0", "r1"} <= hooks.recipes().keys()
    finally:
        hooks._plugins.cache_clear()


def test_two_plugins_with_one_name_are_an_error(installed: Any) -> None:
    installed(module_with(output_formats=lambda: {"dwc": None}))
    with pytest.raises(UsageError, match="two plugins have the output format 'dwc'"):
        hooks.output_formats()


def test_a_bundle_that_no_plugin_fetches_is_a_folder(installed: Any) -> None:
    fetch: Any = lambda address: Path("/fetched") if address == "x:y" else None  # noqa: E731
    installed(module_with(local_bundle=fetch))
    assert hooks.local_bundle("bundles/first") == Path("bundles/first")
    assert hooks.local_bundle("x:y") == Path("/fetched")

"""The README is true: its commands run, its names are those of the code."""

import contextlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilege import cli
from florilege.settings import fields_of
from florilege.training.config import TrainConfig
from florilege.training.losses import LOSSES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TABLES = "".join(
    (ROOT / "docs" / n).read_text("utf-8") for n in ("training.md", "losses.md", "reference.md")
)


def test_the_marked_commands_run_one_after_the_other(tmp_path: Path) -> None:
    (block,) = re.findall(r"<!-- tested -->\n```sh\n(.*?)```", README, re.DOTALL)
    commands = block.strip().splitlines()
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "florilege"
        with contextlib.chdir(tmp_path):
            result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 0, f"{command}\n{result.output}"
    assert (tmp_path / "bundles/first/calibration.json").is_file()


def test_every_loss_verb_and_setting_is_documented() -> None:
    names = [*LOSSES, *(f"florilege {verb}" for verb in cli.VERBS)]
    names += fields_of(TrainConfig)
    missing = [name for name in names if f"`{name}" not in TABLES]
    assert not missing


def test_the_first_lines_name_two_make_targets_and_no_other() -> None:
    head = "\n".join(README.splitlines()[:60])
    assert set(re.findall(r"make ([a-z][a-z-]*)", head)) == {"demo", "test"}


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_every_local_link_leads_somewhere(page: Path) -> None:
    for place in (page, ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", place.read_text("utf-8")):
            assert (place.parent / link).exists(), f"{place.name} links to {link}"


def test_the_examples_of_every_docstring_are_run() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    places = [ROOT / name for name in settings["tool"]["pytest"]["ini_options"]["testpaths"]]
    assert set(places) == {ROOT / "tests", ROOT / "florilege", ROOT / "clients" / "python"}

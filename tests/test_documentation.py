"""Nothing that a person can use is left out of the documentation, and what it counts on is so."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import florilege
from florilege import cli
from florilege.calibration.rules import RULES
from florilege.errors import FlorilegeError
from florilege.settings import fields_of
from florilege.training.config import TrainConfig
from florilege.training.losses import LOSSES
from florilege.training.recipes import RECIPES
from tests import write_commands
from tests.server import write_tables
from tests.test_packaging import FOLDERS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DOCS = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES = "\n".join([README, *DOCS.values()])


@pytest.mark.parametrize("module", [write_commands, write_tables], ids=lambda each: each.__name__)
def test_a_page_that_is_written_from_the_code_is_up_to_date(module: Any) -> None:
    """After a wanted change: `python -m` and the name of the module."""
    assert module.PAGE.read_text("utf-8") == module.page()


def test_every_rule_recipe_loss_verb_and_setting_is_documented() -> None:
    assert [name for name in (*RULES, *RECIPES) if f"`{name}`" not in PAGES] == []
    tables = "".join(DOCS[name] for name in ("training.md", "losses.md", "reference.md"))
    names = [
        *LOSSES,
        *(f"florilege {verb}" for verb in cli._verbs() if " " not in verb),
        *fields_of(TrainConfig),
    ]
    assert [name for name in names if f"`{name}" not in tables] == []


def test_the_first_lines_name_two_make_targets_and_no_other() -> None:
    head = "\n".join(README.splitlines()[:60])
    assert set(re.findall(r"make ([a-z][a-z-]*)", head)) == {"demo", "test"}


def test_the_tests_that_make_targets_name_exist() -> None:
    paths = re.findall(r"\btests/[\w/.]+", (ROOT / "Makefile").read_text("utf-8"))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_no_test_of_the_ranges_without_torch_imports_it() -> None:
    """`make test-ranges` has environments without it, in which such a file cannot be collected."""
    content = (ROOT / "Makefile").read_text("utf-8")
    folders, without = (
        [ROOT / "tests" / path for path in re.findall(r"[\w/.]+", listed)]
        for listed in (
            *re.findall(r"TESTS_serving = .*addprefix tests/,([^)]*)", content),
            *re.findall(r"NEED_TORCH := .*addprefix --ignore tests/,([^)]*)", content),
        )
    )
    needs = r"^(from|import) (torch|torchvision|timm|florilege\.training|tests\.training)\b"
    files = [path for folder in folders for path in folder.rglob("test_*.py")]
    assert files
    assert [
        str(path)
        for path in files
        if re.search(needs, path.read_text("utf-8"), re.MULTILINE)
        and not any(path.is_relative_to(other) for other in without)
    ] == []


def test_the_examples_of_every_docstring_are_run() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    places = settings["tool"]["pytest"]["ini_options"]["testpaths"]
    assert set(places) == {"tests", "florilege", "clients/python"}


def test_nothing_is_installed_by_a_name_that_no_package_index_has() -> None:
    """Nobody has registered the name: whoever did could run code on our users' machines."""
    by_name = re.compile(r"florilege\[[a-z]|pip3? install [^`#\n]*?\bflorilege\b(?!-)")
    places = [ROOT / folder for folder in (*FOLDERS, "deploy", "docs")]
    files = [*ROOT.glob("*.*"), *(path for place in places for path in place.rglob("*.*"))]
    kinds = {".py", ".md", ".js", ".html", ".yaml", ".yml"}
    text = [path for path in files if path.suffix in kinds and path.name != "CHANGELOG.md"]
    lines = [line for path in text for line in path.read_text("utf-8").splitlines()]
    assert [line for line in lines if by_name.search(line)] == []


def test_every_exit_code_is_documented() -> None:
    (line,) = re.findall(r"^Exit codes: .*$", PAGES, re.MULTILINE)
    codes = {kind.exit_code for kind in FlorilegeError.__subclasses__()} | {0, 1, 130}
    assert codes == {int(code) for code in re.findall(r"(\d+) [a-z]", line)}


def test_every_route_is_documented() -> None:
    golden = json.loads((ROOT / "tests/golden/openapi.json").read_text("utf-8"))
    assert [path for path in golden["paths"] if path not in PAGES] == []


def test_the_tour_shows_the_code_of_its_files() -> None:
    excerpts = re.findall(
        r"^`(florilege/\S+)`\n\n```python\n(.*?)```",
        DOCS["architecture.md"],
        re.MULTILINE | re.DOTALL,
    )
    assert len(excerpts) > 8
    for file, excerpt in excerpts:
        code = _stripped((ROOT / file).read_text("utf-8"))
        for part in excerpt.split("...\n"):
            assert _stripped(part) in code, f"{file}:\n{part}"


def test_what_the_table_of_rooms_names_is_there() -> None:
    """A file or a folder of the room, with or without its ending; or a verb, or a page."""
    rows = re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", DOCS["architecture.md"], re.MULTILINE)
    assert len(rows) > 6
    verbs = {f"florilege {verb}" for verb in cli._verbs()} | {*cli._verbs()}
    for room, about in rows:
        folders = [ROOT / room, ROOT / "florilege" / room]
        for name in re.findall(r"`([^`]+)`", about):
            paths = [folder / f"{name}{end}" for folder in folders for end in ("", ".py")]
            api = hasattr(florilege, name.removeprefix("florilege."))
            exists = any(path.is_dir() if name.endswith("/") else path.exists() for path in paths)
            assert exists or api or name in verbs or name == "calibration.json", f"{room}: {name}"


def test_each_folder_has_a_folder_of_tests() -> None:
    """As CONTRIBUTING says, and which one is an exception."""
    product, tests = ROOT / "florilege", ROOT / "tests"
    folders = {path.parent.relative_to(product) for path in product.rglob("*.py")}
    assert {folder for folder in folders if not (tests / folder).is_dir()} == {Path("command_line")}
    assert any((tests / "florilege").glob("test_*.py"))


def _stripped(code: str) -> str:
    """The lines without indentation and without empty ones."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())

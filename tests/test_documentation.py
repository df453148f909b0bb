"""Nothing that a person can use is left out of the documentation."""

import json
import re
from pathlib import Path

from florilege.calibration.rules import RULES
from florilege.errors import FlorilegeError
from florilege.training.recipes import RECIPES
from tests.server import write_tables
from tests.test_packaging import FOLDERS
from tests.write_commands import PAGE, page

ROOT = Path(__file__).parents[1]
PAGES = "\n".join(
    page.read_text("utf-8") for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
)


def test_the_page_of_commands_is_up_to_date() -> None:
    """After a wanted change: `python -m tests.write_commands`."""
    assert PAGE.read_text("utf-8") == page()


def test_the_tables_of_the_http_interface_are_up_to_date() -> None:
    """After a wanted change: `python -m tests.server.write_tables`."""
    assert write_tables.PAGE.read_text("utf-8") == write_tables.page()


def test_every_rule_and_recipe_is_documented() -> None:
    assert [name for name in (*RULES, *RECIPES) if f"`{name}`" not in PAGES] == []


def test_nothing_is_installed_by_a_name_that_no_package_index_has() -> None:
    """Nobody has registered the name: whoever did could run code on our users' machines."""
    by_name = re.compile(r"florilege\[[a-z]|pip3? install [^`#\n]*?\bflorilege\b(?!-)")
    files = [
        path for folder in (*FOLDERS, "deploy", "docs") for path in (ROOT / folder).rglob("*.*")
    ]
    files += [
        path for path in ROOT.glob("*.*") if path.name not in ("CHANGELOG.md", "pyproject.toml")
    ]
    text = [
        path for path in files if path.suffix in (".py", ".md", ".js", ".html", ".yaml", ".yml")
    ]
    lines = [line for path in text for line in path.read_text("utf-8").splitlines()]
    assert [line for line in lines if by_name.search(line)] == []


def test_every_exit_code_is_documented() -> None:
    (line,) = re.findall(r"^Exit codes: .*$", PAGES, re.MULTILINE)
    codes = {kind.exit_code for kind in FlorilegeError.__subclasses__()} | {0, 1, 130}
    assert codes == {int(code) for code in re.findall(r"(\d+) [a-z]", line)}


def test_every_route_is_documented() -> None:
    golden = json.loads((ROOT / "tests/golden/openapi.json").read_text("utf-8"))
    assert [path for path in golden["paths"] if path not in PAGES] == []

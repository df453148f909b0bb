"""Write the table of settings in `docs/http.md`: `python -m tests.server.write_settings`."""

from pathlib import Path
from typing import Any

import typer

from models.files import write_atomic
from server.cli import app

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "http.md"
BEGIN, END = "<!-- settings: written by tests/server/write_settings.py -->\n", "<!-- end -->\n"


def table() -> str:
    """Every flag of `serve` with its default and its help."""
    serve: Any = typer.main.get_command(app)
    flags = [flag for flag in serve.commands["serve"].params if flag.opts[0].startswith("--")]
    return "| flag of `serve` | default | |\n|---|---|---|\n" + "".join(
        f"| {_names(flag)} | {_default(flag)} | {flag.help} |\n" for flag in flags
    )


def _names(flag: Any) -> str:
    return ", ".join(f"`{name}`" for name in [*flag.opts, *flag.secondary_opts])


def _default(flag: Any) -> str:
    if isinstance(flag.default, bool):
        return "on" if flag.default else "off"
    if isinstance(flag.default, float):
        return f"`{flag.default:g}`"
    return "" if flag.default is None else f"`{flag.default}`"


def described(text: str) -> str:
    """The documentation with this table."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    write_atomic(DOCUMENTATION, described(DOCUMENTATION.read_text()).encode())

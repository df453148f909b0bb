"""Write `docs/commands.md` from the commands themselves: `python -m tests.write_commands`."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from florilege import cli

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """# Every command

Written from the commands themselves (`python -m tests.write_commands`); `florilege VERB --help`
says the same. Each flag can also be an environment variable, `FLORILEGE_SERVE_PORT=8080` for `serve
--port`, or a line `port: 8080` of the YAML file given with `--config`. Flags win over variables,
and those over the file.
"""


def verbs(command: Any, name: str = "florilege") -> Iterator[tuple[str, Any]]:
    """Every verb with its command, those of groups too."""
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    context = typer.Context(command)
    for inner in command.list_commands(context):
        if not (result := command.resolve_command(context, [inner])[1]).hidden:
            yield from verbs(result, f"{name} {inner}")


def page() -> str:
    """The whole page."""
    parts = [_section(name, command) for name, command in verbs(typer.main.get_command(cli.app))]
    return "\n".join([HEAD, *parts])


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    words = " ".join([name, *(str(each.metavar or each.name).upper() for each in arguments)])
    lines = [f"## {words}", "", inspect.cleandoc(command.help or ""), ""]
    flags = [each for each in command.params if each.opts[0].startswith("-") and not each.hidden]
    flags = [each for each in flags if each.name != "help_all"]
    lines += ["| flag | default | |", "|---|---|---|"]
    return "\n".join([*lines, *map(_row, flags), ""])


def _row(flag: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*flag.opts, *flag.secondary_opts))
    default = "" if flag.default in (None, False, ()) or callable(flag.default) else flag.default
    default = flag.show_default if isinstance(flag.show_default, str) else default
    text = f"`{','.join(map(str, default)) if isinstance(default, list) else default}`"
    return f"| {names} | {text if default != '' else ''} | {flag.help or ''} |"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

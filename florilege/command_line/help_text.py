"""The help of a verb: a line for each flag, so that none is cut and all can be copied.

Flags under a heading of their own are for few people: ``--help`` names them, ``--help-all``
describes them.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

_WIDTH = 80
_VALUES = {int: "N", float: "NUMBER", Path: "PATH"}
_OWN_HEADINGS = ("Arguments", "Options")  # always described
HELP_ALL = "florilege.help_all"
"""Key of ``context.meta``: whether to describe every flag."""


def write_help(kinds: Mapping[str, Any], context: Any, formatter: Any) -> None:
    """Write the help of the verb of a context; takes the place of its method ``format_help``.

    ``kinds`` are the types of its parameters, which typer keeps in a way of its own.
    """
    panels = _panels(context.command, context)
    arguments = map(_argument, panels["Arguments"])
    usage = f"Usage: {' '.join([context.command_path, '[OPTIONS]', *arguments])}"
    formatter.write(f"{fill(usage, _WIDTH, subsequent_indent='  ')}\n\n")
    for paragraph in (context.command.help or "").split("\n\n"):
        formatter.write(f"{_filled(paragraph, '')}\n\n")
    described = panels if context.meta.get(HELP_ALL) else _OWN_HEADINGS
    for title in filter(panels.get, described):
        text = "\n".join(line for entry in panels[title] for line in _lines(entry, kinds))
        formatter.write(f"{typer.style(title, bold=True)}\n{text}\n\n")
    lines = [_named(*panel) for panel in panels.items() if panel[0] not in described]
    if lines:
        about = f"More, described by {context.command_path} --help-all"
        formatter.write("\n".join([typer.style(about, bold=True), *lines, ""]))


def write_overview(context: Any, formatter: Any) -> None:
    """Write the help of a group of commands, a line or two for each."""
    group = context.command
    formatter.write(f"Usage: {context.command_path} [OPTIONS] COMMAND [ARGS]...\n\n")
    formatter.write(f"{_filled(group.help or '', '')}\n\n")
    names = [name for name in group.list_commands(context) if not group.commands[name].hidden]
    column = 2 + max(map(len, names)) + 2
    formatter.write(f"{typer.style('Commands', bold=True)}\n")
    for name in names:
        about = (group.commands[name].help or "").partition("\n\n")[0]
        text = _filled(about, " " * column)[2 + len(name) :]
        formatter.write(f"  {typer.style(name, bold=True)}{text}\n")
    options = _panels(group, context)["Options"]
    if options:
        lines = (line for option in options for line in _lines(option, {}))
        formatter.write("\n".join(["", typer.style("Options", bold=True), *lines, ""]))


def _named(title: str, parameters: Iterable[Any]) -> str:
    """A heading with only the names of its flags."""
    names = ", ".join(map(_names, parameters))
    return _filled(f"{title}: {names}", "  ", hanging="      ")


def _panels(command: Any, context: Any) -> dict[str, list[Any]]:
    """The parameters by heading; those without one come first."""
    panels: dict[str, list[Any]] = {title: [] for title in _OWN_HEADINGS}
    about_help = {"help", "help_all"}  # who reads this has found them
    for parameter in command.get_params(context):
        if parameter.name in about_help:
            continue
        if parameter.param_type_name == "argument":
            panels["Arguments"].append(parameter)
        elif not parameter.hidden:
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            panels.setdefault(title, []).append(parameter)
    return panels


def _names(parameter: Any) -> str:
    """Every name of a flag."""
    names = ", ".join(sorted(parameter.opts, key=len))
    return " / ".join([names, *parameter.secondary_opts])


def _argument(parameter: Any) -> str:
    name = parameter.metavar or str(parameter.name).upper()
    name = f"{name}..." if parameter.nargs == -1 else name
    return name if parameter.required else f"[{name}]"


def _filled(text: str, indent: str, hanging: str | None = None) -> str:
    joined = " ".join(text.split())
    return fill(
        joined,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines(parameter: Any, kinds: Mapping[str, Any]) -> Iterator[str]:
    """The flag with its value, then what it does and its default."""
    about = [parameter.help or ""]
    if parameter.param_type_name == "argument":
        yield f"  {typer.style(_argument(parameter), bold=True)}"
    else:
        names = _names(parameter)
        value = "" if parameter.is_flag else parameter.metavar or _value(kinds.get(parameter.name))
        if len(f"  {names} {value}") > _WIDTH:
            about.append(f"One of {value.replace('|', ', ')}.")
            value = str(parameter.name).upper()
        yield f"  {typer.style(names, bold=True)} {value}".rstrip()
    about.append("[required]" if parameter.required else _default(parameter))
    if text := " ".join(filter(None, about)):
        yield _filled(text, " " * 6)


def _value(kind: Any) -> str:
    """The placeholder of a flag's value, from the type of its parameter.

    Example:
        >>> _value(Annotated[Path | None, "a folder"]), _value(list[str]), _value(Literal["a", "b"])
        ('PATH', 'TEXT', 'a|b')
    """
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) in (Annotated, Union, UnionType, list, tuple):
        return _value(get_args(kind)[0])
    return _VALUES.get(kind, "TEXT")


def _default(parameter: Any) -> str:
    words = getattr(parameter, "show_default", None)
    value = words if isinstance(words, str) else parameter.default
    if value in (None, False, (), [], "") or callable(value) or not words:
        return ""
    if value is True:
        value = parameter.opts[0]
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f"[default: {text}]"

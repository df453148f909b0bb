"""The help of a verb: a line for each flag, so that none is cut and all can be copied."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

_WIDTH = 80
_VALUES = {int: "N", float: "NUMBER", Path: "PATH"}


def write_help(kinds: Mapping[str, Any], context: Any, formatter: Any) -> None:
    """Write the help of the verb of a context; takes the place of its method ``format_help``.

    ``kinds`` are the types of its parameters, which typer keeps in a way of its own.
    """
    command = context.command
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    words = " ".join([context.command_path, "[OPTIONS]", *map(_argument, arguments)])
    formatter.write(f"{fill(f'Usage: {words}', _WIDTH, subsequent_indent='  ')}\n\n")
    for paragraph in (command.help or "").split("\n\n"):
        formatter.write(f"{_filled(paragraph, '')}\n\n")
    for title, parameters in _panels(command, context).items():
        if parameters:
            formatter.write(f"{typer.style(title, bold=True)}\n")
            formatter.write("\n".join(line for each in parameters for line in _lines(each, kinds)))
            formatter.write("\n\n")


def _panels(command: Any, context: Any) -> dict[str, list[Any]]:
    """The parameters by heading; those without one come last."""
    panels: dict[str, list[Any]] = {}
    others = list[Any]()
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            panels.setdefault("Arguments", []).append(parameter)
        elif not parameter.hidden:
            title = getattr(parameter, "rich_help_panel", None)
            (panels.setdefault(title, []) if title else others).append(parameter)
    return panels | {"Options": others}


def _argument(parameter: Any) -> str:
    name = parameter.metavar or str(parameter.name).upper()
    name = f"{name}..." if parameter.nargs == -1 else name
    return name if parameter.required else f"[{name}]"


def _filled(text: str, indent: str) -> str:
    joined = " ".join(text.split())
    return fill(
        joined,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines(parameter: Any, kinds: Mapping[str, Any]) -> Iterator[str]:
    """The flag with its value, then what it does and its default."""
    about = [parameter.help or ""]
    if parameter.param_type_name == "argument":
        yield f"  {typer.style(_argument(parameter), bold=True)}"
    else:
        names = ", ".join(sorted(parameter.opts, key=len))
        names = " / ".join([names, *parameter.secondary_opts])
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

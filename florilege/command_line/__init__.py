"""What the command line says: help, errors, and hints where a word has another name now.

The modules are the verbs that combine several packages.

The help of a verb has a line for each flag, so that none is cut and all can be copied. Flags under
a heading of their own are for few people: ``--help`` names them, ``--help-all`` describes them. The
old name of a command or flag works for one version.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from traceback import format_exception
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from florilege.errors import DISK_FULL, FlorilegeError, did_you_mean, suggestion, way_out
from florilege.terminal import between_words, warn

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
    about_help = {"--help", "--help-all"}  # who reads this has found them
    for parameter in command.get_params(context):
        if about_help.intersection(parameter.opts):  # click 8.5 renamed the parameter itself
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


_REMOVED_FLAGS = {
    "--correct-prior": "calibrate again on labelled photos with the new class frequencies",
    "--feedback-photos-max-bytes": "--feedback-max-bytes limits rows and photos together",
    "--micro-weight": "use --macro-weight with 1 less its value",
    "--processes": "run several servers behind one port with --workers, see docs/scaling.md",
    "--quantize": "`florilege calibrate --runtime openvino` halves the cost of a photo",
    "--small-classes": "--macro-weight decides how much classes with few photos count",
}
"""Alternatives to removed flags."""

_HABITUAL_FLAGS = {
    "--learning-rate": "--set optimiser.learning_rate=VALUE",
    "--lr": "--set optimiser.learning_rate=VALUE",
    "--model": "--backbone",
    "--num-workers": "--set workers=NUMBER",
    "--optimizer": "--set optimiser.name=NAME",
    "--pretrained": "--weights pretrained",
    "--workers": "--set workers=NUMBER",
}
"""Our flags by their names in other training programs."""


def usage_exit(error: Any) -> Exception:
    """Print a usage error in two lines, and return the exception to raise."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.ctx.get_help())
        return typer.Exit(error.exit_code)
    command = error.ctx.command_path if error.ctx else "florilege"
    message = f"error: {_usage_message(error)}\nhelp: {command} --help\n"
    sys.stderr.write(between_words(message))
    return typer.Exit(error.exit_code)


def _usage_message(error: Any) -> str:
    """Click's message in one line, with suggestions for a mistyped word."""
    context, message = error.ctx, " ".join(error.format_message().split())
    option = getattr(error, "option_name", None)
    if context and option and (unknown := _unknown_option(context, option)):
        return unknown
    if verb := re.match(r"No such command '(.*?)'\.", message):
        verbs = context.command.list_commands(context)
        return f"{context.command_path} has no command {verb[1]}{suggestion(verb[1], verbs)}"
    message = _with_value(message.replace("Value error, ", "").rstrip("."), error)
    parameter: Any = getattr(error, "param", None)
    source = context and parameter and context.get_parameter_source(parameter.name)
    if choice := re.search(r"'([^']*)' is not one of (.*)$", message):
        message += suggestion(choice[1], re.findall(r"'([^']*)'", choice[2]))
    if getattr(source, "name", "") == "ENVIRONMENT" and parameter.envvar:
        message += f" (env var: {parameter.envvar[0]!r})"
    return f"{message[:1].lower()}{message[1:]}"


def _with_value(message: str, error: Any) -> str:
    """A message about a flag's value with that value, which newer versions of typer leave out."""
    if not (part := re.match(r"(.*): Input should be ([^,]*)", message)):
        return message
    return f"{part[1]}: it must be {part[2]}, got {error.__cause__.errors()[0]['input']!r}"


def _unknown_option(context: Any, option: str) -> str | None:
    """The message about a flag that the command lacks; None if the command has it."""
    flags = [name for parameter in context.command.params for name in parameter.opts]
    if option in flags:
        return None
    if option in _REMOVED_FLAGS:
        return f"{option} was removed: {_REMOVED_FLAGS[option]}"
    ours = _HABITUAL_FLAGS.get(option, "")
    hint = did_you_mean([ours]) if ours.split(" ")[0] in flags else suggestion(option, flags)
    return f"{context.command_path} has no option {option}{hint}"


def error_message(error: Exception, *, traceback: bool) -> str:
    """One line for an error that a person can fix; otherwise a second line locates the details."""
    if traceback:
        return "".join(format_exception(error))
    message = str(error) if isinstance(error, FlorilegeError) else _path_message(error)
    if message is not None:
        return f"error: {message}\n"
    summary = " ".join(f"{type(error).__name__}: {error}".split())
    details = f"{_write_details(error)}; `florilege --traceback ...` shows them"
    return f"error: unexpected: {summary}\n{details}\n"


def _path_message(error: Exception) -> str | None:
    """The message about a path that cannot be used; None for other errors."""
    if not isinstance(error, OSError):
        return None
    where = error.filename or ("the disk" if error.errno in DISK_FULL else None)
    return where and f"{where}: {error.strerror or error}{way_out(error)}"


def _write_details(error: Exception) -> str:
    try:
        handle, path = tempfile.mkstemp(prefix="florilege-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join((f"{sys.argv}\n", *format_exception(error))))
    except OSError as failure:
        return f"the details cannot be written ({failure})"
    return f"the details are in {path}"


RENAMED = {
    "bundle names": "bundle set-names",
    "calibrate --lists": "calibrate --list",
    "calibrate --scores": "calibrate --score-log",
    "calibrate --workers": "calibrate --ray-workers",
    "evaluate --against": "evaluate --baseline",
    "evaluate --audit": "evaluate --feedback-store",
    "predict --output": "predict --out",
    "predict --workers": "predict --ray-workers",
}
"""New names of commands and flags by old name, without ``florilege``."""


def current_words(words: Sequence[str]) -> list[str]:
    """The words after ``florilege`` with current names; words after ``--`` are not flags."""
    end = words.index("--") if "--" in words else len(words)
    start = next((place for place in range(end) if not words[place].startswith("-")), end)
    current = list(words)
    for place in range(start + 1, end):
        word, equals, value = words[place].partition("=")
        old = f"{words[start]} {word}"
        if old in RENAMED and (word.startswith("--") or place == start + 1):
            warn(f"{old!r} is now called {RENAMED[old]!r}")
            current[place] = f"{RENAMED[old].rpartition(' ')[2]}{equals}{value}"
    for verb in words[start : start + 1]:
        _warn_of_old_variables(verb)
    return current


def _warn_of_old_variables(verb: str) -> None:
    for flag in _flags(verb).values():
        new, *old = variables(verb, flag)
        for name in old:
            if os.environ.get(name) and not os.environ.get(new):
                warn(f"{name} is now called {new}")


def current_keys(verb: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the current parameter names of a verb, such as ``baseline``."""
    current = {_key(old): _key(new) for old, new in _flags(verb).items()}
    for name in values:
        if name in current:
            warn(f"{name} is now called {current[name]}")
    return {current.get(name, name): value for name, value in values.items()}


def variables(command: str, flag: str) -> list[str]:
    """The environment variables of a flag: FLORILEGE_TRAIN_BATCH_SIZE, then its old names."""
    names = [flag, *(old for old, new in _flags(command).items() if new == flag)]
    return [f"florilege {command} {_key(name)}".replace(" ", "_").upper() for name in names]


def _flags(verb: str) -> dict[str, str]:
    """The renamed flags of a verb: new name by old name."""
    pairs = ((old.split(" "), new.split(" ")) for old, new in RENAMED.items())
    return {old[1]: new[1] for old, new in pairs if old[0] == verb and old[1].startswith("--")}


def _key(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")

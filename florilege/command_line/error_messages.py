"""Turn an exception into the message that the command line prints."""

import errno
import os
import re
import sys
import tempfile
from traceback import format_exception
from typing import Any

import typer

from florilege.errors import FlorilegeError, did_you_mean, suggestion
from florilege.terminal import between_words

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
    message = message.replace("Value error, ", "").rstrip(".")
    parameter: Any = getattr(error, "param", None)
    source = context and parameter and context.get_parameter_source(parameter.name)
    if choice := re.search(r"'([^']*)' is not one of (.*)$", message):
        message += suggestion(choice[1], re.findall(r"'([^']*)'", choice[2]))
    if getattr(source, "name", "") == "ENVIRONMENT" and parameter.envvar:
        message += f" (env var: {parameter.envvar[0]!r})"
    return f"{message[:1].lower()}{message[1:]}"


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
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or 'the disk'}: {error.strerror}; free some space and try again"
    if error.errno is None or error.filename is None:
        return None
    return f"{error.filename}: {error.strerror}; choose another path, or make this one usable"


def _write_details(error: Exception) -> str:
    try:
        handle, path = tempfile.mkstemp(prefix="florilege-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join((f"{sys.argv}\n", *format_exception(error))))
    except OSError as failure:
        return f"the details cannot be written ({failure})"
    return f"the details are in {path}"

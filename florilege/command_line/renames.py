"""Renamed commands and flags: the old name works for one version, with a hint."""

import os
from collections.abc import Mapping
from typing import Any

from florilege.terminal import warn

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


def current_command(path: str, name: str, *, hint: bool = True) -> str:
    """The current name of a command typed after ``path``, which is empty for a verb."""
    old = f"{path} {name}".strip()
    new = RENAMED.get(old, old)
    if new != old and hint:
        warn(f"{old!r} is now called {new!r}")
    return new.removeprefix(path).strip()


def current_keys(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the current parameter names of a command, such as ``baseline``."""
    current = {_key(old): new for old, new in _flags(command).items()}
    for name in values:
        if name in current:
            warn(f"{name} is now called {_key(current[name])}")
    return {_key(current.get(name, name)): value for name, value in values.items()}


def accept_old_flags(command: Any, name: str) -> None:
    """Let a command take the old names of its flags, as flags and as environment variables."""
    renamed = _flags(name)
    if not renamed:
        return
    parse = command.parse_args
    command.parse_args = lambda ctx, words: parse(ctx, _current_words(words, renamed))
    for old, new in renamed.items():
        for parameter in command.params:
            if new in parameter.opts:
                _accept_old_variable(parameter, variable(name, old))


def variable(command: str, flag: str) -> str:
    """The environment variable of a flag: FLORILEGE_TRAIN_BATCH_SIZE."""
    words = f"florilege {command} {flag.lstrip('-')}"
    return words.replace("-", "_").replace(" ", "_").upper()


def _flags(command: str) -> dict[str, str]:
    """The renamed flags of a command: new name by old name."""
    pairs = ((old.rpartition(" "), new.rpartition(" ")) for old, new in RENAMED.items())
    return {old[2]: new[2] for old, new in pairs if old[0] == command and old[2][:2] == "--"}


def _current_words(words: list[str], renamed: Mapping[str, str]) -> list[str]:
    """The words after a command with current flags; words after ``--`` are not flags."""
    end = words.index("--") if "--" in words else len(words)
    current = []
    for word in words[:end]:
        flag, equals, value = word.partition("=")
        if flag in renamed:
            warn(f"{flag} is now called {renamed[flag]}")
        current.append(f"{renamed.get(flag, flag)}{equals}{value}")
    return current + words[end:]


def _accept_old_variable(parameter: Any, old: str) -> None:
    resolve = parameter.resolve_envvar_value

    def resolve_both(ctx: Any) -> str | None:
        value = resolve(ctx)
        if value is None and os.environ.get(old):
            warn(f"{old} is now called {parameter.envvar}")
            return os.environ[old]
        return value  # type: ignore[no-any-return]  # click is not typed here

    parameter.resolve_envvar_value = resolve_both


def _key(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")

"""Renamed commands and flags: the old name works for one version, with a hint."""

import os
from collections.abc import Mapping, Sequence
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

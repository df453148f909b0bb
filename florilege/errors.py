"""The errors that a person can fix, each with its exit code on the command line.

A message says what is wrong, where, and what to do next. Any other exception, from an unusable
path or a bug, has exit code 1.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from florilege.version import own_version


class FlorilegeError(Exception):
    """Base class of the errors that the command line prints as one line."""

    exit_code: ClassVar[int] = 1


class UsageError(FlorilegeError):
    """A flag, setting or configuration file is not usable."""

    exit_code = 2


class DataError(FlorilegeError):
    """A data set is unreadable or does not fit."""

    exit_code = 3


class BundleError(FlorilegeError):
    """A bundle, run folder or checkpoint is damaged, incomplete or does not fit."""

    exit_code = 4


class GateFailed(FlorilegeError):
    """A new bundle is worse than the gate allows."""

    exit_code = 5


class SomeInputsFailed(FlorilegeError):
    """Some inputs failed, and the output lists each; the others were answered."""

    exit_code = 6


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, each once, in order of appearance.

    Example:
        >>> repeated(["b", "a", "b", "b"])
        ['b']
    """
    return [name for name, count in Counter(names).items() if count > 1]


def first(names: Sequence[str], limit: int = 5) -> str:
    """The first few names for a message, and the number of the others.

    Example:
        >>> first(["a", "b", "c"], limit=2)
        "'a', 'b' and 1 more"
    """
    listed = ", ".join(repr(name) for name in names[:limit])
    return listed if len(names) <= limit else f"{listed} and {len(names) - limit} more"


def install_hint(extra: str) -> str:
    """The commands that install an extra, for a message; no package index has Florilege.

    Example:
        >>> install_hint("report").partition(",")[0]
        "in a checkout pip install '.[report]'"
    """
    wheel = f"florilege-{own_version()}-py3-none-any.whl"
    return f"in a checkout pip install '.[{extra}]', from the wheel pip install '{wheel}[{extra}]'"

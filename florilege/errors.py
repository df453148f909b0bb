"""The errors that a person can fix, each with its exit code; and what is installed to fix them.

A message says what is wrong, where, and what to do next. Any other exception, from an unusable
path or a bug, has exit code 1. :func:`suggestion` adds the known names similar to a mistyped word.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import ClassVar, Final

_MIN_SIMILARITY = 60  # of 100: words with a letter exchanged, missing or doubled score higher
_MAX_GAP = 15  # names that score this much below the best are left out
_SHORT = 4  # letters
_CHECKOUT: Final = Path(__file__).parents[1] / "pyproject.toml"


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


DISK_FULL: Final = (ENOSPC, EDQUOT)
"""A disk without room, or a user without a share of it."""


def way_out(error: OSError) -> str:
    """The end of a message about a path that cannot be used: what to do."""
    if error.errno in DISK_FULL:
        return "; free some space or choose another path"
    return "; choose another path, or make this one usable"


@contextmanager
def os_error_as(
    kind: type[FlorilegeError], what: str, remedy: str | Callable[[OSError], str] = ""
) -> Iterator[None]:
    """Raise ``kind`` for an `OSError` in the block: ``what`` failed, the reason and a remedy.

    The message names the file or folder of the error if ``what`` does not.
    """
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        where = "" if name in what else f" ({name})"
        advice = remedy if isinstance(remedy, str) else remedy(error)
        raise kind(f"{what}: {error.strerror or error}{where}{advice}") from error


def reason_of(error: Exception) -> str:
    """Why a file could not be read, in words for a line that names it."""
    reason = getattr(error, "strerror", None) or str(error)
    windows = isinstance(error, FileNotFoundError) and "\\" in str(error.filename)
    return f"{reason}; write its path with / instead of \\" if windows else reason


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


def count_of(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, ``1 photo``, ``2 photos``; ``many`` if it is not ``one`` and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def own_version() -> str:
    """The version of Florilege; ``unknown`` for a copy of the package without its project."""
    return installed("florilege") or "unknown"


def installed(name: str) -> str | None:
    """The version of a distribution; None if it is not installed.

    A checkout of Florilege on ``PYTHONPATH`` has no metadata: its ``pyproject.toml`` says the same.
    """
    from importlib.metadata import PackageNotFoundError, version  # --help needs none of it

    try:
        return version(name)
    except PackageNotFoundError:
        return _checkout_version(_CHECKOUT) if name == "florilege" else None


def _checkout_version(file: Path) -> str | None:
    try:
        project = tomllib.loads(file.read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return str(project.get("version")) if project.get("name") == "florilege" else None


def install_hint(extra: str) -> str:
    """The commands that install an extra, for a message; no package index has Florilege.

    Example:
        >>> install_hint("report").partition(",")[0]
        "in a checkout pip install '.[report]'"
    """
    wheel = f"florilege-{own_version()}-py3-none-any.whl"
    return f"in a checkout pip install '.[{extra}]', from the wheel pip install '{wheel}[{extra}]'"


class KnownNames:
    """Names to search more than once: preparing thousands takes longer than a search."""

    def __init__(self, names: Iterable[str]) -> None:
        from rapidfuzz.utils import default_process  # lazy: only mistakes need it

        self.names = list(names)
        self.plain = [default_process(name) for name in self.names]

    def shortest_with(self, part: str) -> list[str]:
        """The names that contain ``part``, the shortest first."""
        both = zip(self.names, self.plain, strict=True)
        return sorted((name for name, plain in both if part in plain), key=len)


def nearest(word: str, known_names: Iterable[str] | KnownNames, most: int = 3) -> list[str]:
    """The known names closest to a word, best first; none if none is close.

    If none is close but some contain the word, the shortest of these. Case does not matter, and
    ``-``, ``_`` and space are equal.

    Example:
        >>> nearest("averge-k", ["average_k", "top_k", "balanced_average_k"])
        ['average_k']
        >>> nearest("photo", ["average_k", "top_k"])
        []
    """
    from rapidfuzz.fuzz import ratio  # lazy: only mistakes need it
    from rapidfuzz.process import extract
    from rapidfuzz.utils import default_process

    names = known_names if isinstance(known_names, KnownNames) else KnownNames(known_names)
    typed = default_process(word)
    matches = extract(typed, names.plain, scorer=ratio, score_cutoff=_MIN_SIMILARITY, limit=most)
    near = [row for _, score, row in matches if score >= matches[0][1] - _MAX_GAP]
    if len(typed) <= _SHORT:  # gpu is not cpu
        near = [row for row in near if names.plain[row][:1] == typed[:1]]
    if near or len(typed) < _SHORT:
        return [names.names[row] for row in near]
    return names.shortest_with(typed)[:most]


def suggestion(word: str, known_names: Iterable[str]) -> str:
    """The end of an error message: similar names, or nothing.

    Example:
        >>> suggestion("softmx", ["softmax", "sigmoid"])
        '; did you mean softmax?'
    """
    return did_you_mean(nearest(word, known_names))


def did_you_mean(names: Iterable[str]) -> str:
    """Like :func:`suggestion`, for names that are known to be similar."""
    listed = list(names)
    return f"; did you mean {' or '.join(listed)}?" if listed else ""


def nearest_paths(path: Path) -> list[str]:
    """Paths in the same folder with names similar to that of ``path``."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []
    return [str(path.with_name(name)) for name in nearest(path.name, names)]

"""Near names: what a mistyped word was probably meant to be."""

from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

LEAST_LIKE = 0.6  # of 1: words with a letter transposed, missing or doubled are above
MUCH_BETTER = 0.15  # a name is left out if another is that much more like the word
SHORT = 4  # letters


def nearest(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that a word is closest to, best first; none if none is close.

    Capitals and ``-``, ``_`` or blanks make no difference; a name that holds the word is close.

    Example:
        >>> nearest("averge-k", ["average_k", "top_k", "balanced_average_k"])
        ['average_k']
        >>> nearest("photo", ["average_k", "top_k"])
        []
    """
    typed, matcher = _plain(word), SequenceMatcher[str]()
    matcher.set_seq2(typed)  # what it counts of this one it remembers
    found = {name: _likeness(typed, _plain(name), matcher) for name in known}
    least = max([LEAST_LIKE, *(like - MUCH_BETTER for like in found.values())])
    close = sorted((name for name in found if found[name] >= least), key=lambda name: -found[name])
    return close[:most]


def meant(word: str, known: Iterable[str], most: int = 3) -> str:
    """The end of an error message: what the word may have meant, or nothing.

    Example:
        >>> meant("softmx", ["softmax", "sigmoid"])
        '; did you mean softmax?'
    """
    return did_you_mean(nearest(word, known, most))


def did_you_mean(names: Iterable[str]) -> str:
    """:func:`meant` for names that are known to be near."""
    listed = list(names)
    return f"; did you mean {' or '.join(listed)}?" if listed else ""


def nearest_paths(path: Path) -> list[str]:
    """What there is in the same folder under a name like that of ``path``."""
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []
    return [str(path.with_name(name)) for name in nearest(path.name, beside)]


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _likeness(typed: str, name: str, matcher: SequenceMatcher[str]) -> float:
    """From 0 to 1; the beginning of a name, and a long part of it, are like it."""
    if typed and name.startswith(typed):
        return 0.9 + 0.1 * len(typed) / len(name)
    if len(typed) >= SHORT and typed in name:
        return 0.7 + 0.2 * len(typed) / len(name)
    if len(typed) <= SHORT and typed[:1] != name[:1]:
        return 0.0  # gpu is not cpu
    matcher.set_seq1(name)
    if matcher.real_quick_ratio() < LEAST_LIKE or matcher.quick_ratio() < LEAST_LIKE:
        return 0.0  # most names of thousands
    return matcher.ratio()

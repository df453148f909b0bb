"""Near names: what a mistyped word was probably meant to be."""

from collections.abc import Iterable
from pathlib import Path

_LEAST_LIKE = 60  # of 100: words with a letter exchanged, missing or doubled are above
_MUCH_BETTER = 15  # a name is left out if another is that much more like the word
_SHORT = 4  # letters


def nearest(word: str, known_names: Iterable[str], most: int = 3) -> list[str]:
    """The known names that a word is closest to, best first; none if none is close.

    Where none is close but some hold the word, the shortest of these. Capitals make no
    difference, nor which of ``-``, ``_`` and blank is written.

    Example:
        >>> nearest("averge-k", ["average_k", "top_k", "balanced_average_k"])
        ['average_k']
        >>> nearest("photo", ["average_k", "top_k"])
        []
    """
    from rapidfuzz.fuzz import ratio  # here, because only mistakes need it
    from rapidfuzz.process import extract
    from rapidfuzz.utils import default_process as plain

    names, typed = list(known_names), plain(word)
    matches = extract(
        typed, names, scorer=ratio, processor=plain, score_cutoff=_LEAST_LIKE, limit=most
    )
    near = [name for name, score, _ in matches if score >= matches[0][1] - _MUCH_BETTER]
    if len(typed) <= _SHORT:  # gpu is not cpu
        near = [name for name in near if plain(name)[:1] == typed[:1]]
    if near or len(typed) < _SHORT:
        return near
    return sorted((name for name in names if typed in plain(name)), key=len)[:most]


def suggestion(word: str, known_names: Iterable[str], most: int = 3) -> str:
    """The end of an error message: what the word may have meant, or nothing.

    Example:
        >>> suggestion("softmx", ["softmax", "sigmoid"])
        '; did you mean softmax?'
    """
    return did_you_mean(nearest(word, known_names, most))


def did_you_mean(names: Iterable[str]) -> str:
    """:func:`suggestion` for names that are known to be near."""
    listed = list(names)
    return f"; did you mean {' or '.join(listed)}?" if listed else ""


def nearest_paths(path: Path) -> list[str]:
    """What there is in the same folder under a name like that of ``path``."""
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []
    return [str(path.with_name(name)) for name in nearest(path.name, beside)]

"""Suggest known names that are similar to a mistyped word."""

from collections.abc import Iterable
from pathlib import Path

_MIN_SIMILARITY = 60  # of 100: words with a letter exchanged, missing or doubled score higher
_MAX_GAP = 15  # names that score this much below the best are left out
_SHORT = 4  # letters


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

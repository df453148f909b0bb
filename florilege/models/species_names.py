"""Find the class that a name in somebody else's table means."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from florilege.models.classes import ClassTable, plain_id

_GBIF_ADDRESS: Final = re.compile(r"(?:https?://(?:www\.)?gbif\.org/species/|gbif:)(\d+)/?", re.I)
_SUBGENUS: Final = re.compile(r"^(\w+) \([^)]*\)")


class SpeciesNames:
    """The classes of a model by id, GBIF key or scientific name.

    Authors, case, a subgenus and the way to write a hybrid do not count. A subspecies that is no
    class is its species.
    """

    def __init__(self, classes: ClassTable) -> None:
        self._classes = classes
        self._index_of: dict[str, int | None] = {}  # results, because tables repeat their names

    def index(self, text: str) -> int | None:
        """The output index of the class that ``text`` means; None without one.

        Example:
            >>> from florilege.models.classes import ClassInfo
            >>> names = SpeciesNames(ClassTable((ClassInfo(id="7", scientific_name="Poa annua"),)))
            >>> names.index("poa annua L."), names.index("7"), names.index("Poa alpina")
            (0, 0, None)
        """
        if text not in self._index_of:
            self._index_of[text] = self._find(text)
        return self._index_of[text]

    def _find(self, text: str) -> int | None:
        if (ids := self._classes.ids_of([text])).keys():
            return self._classes.index_of[ids[text]]
        address = _GBIF_ADDRESS.fullmatch(text.strip())
        if (at := self._by_key.get(address[1] if address else text.strip())) is not None:
            return at
        words = _key(_words(text))
        if (at := self._by_name.get(words)) is not None:
            return at
        # The authors follow the name: the longest beginning that is a name. One word is a genus,
        # and what a hybrid sign follows is one of the parents.
        for end in range(min(len(words) - 1, 5), 1, -1):
            at = self._by_name.get(words[:end])
            if at is not None and words[end] != "x":
                return at
        return None

    @cached_property
    def _by_key(self) -> Mapping[str, int]:
        return {info.gbif: at for at, info in enumerate(self._classes) if info.gbif}

    @cached_property
    def _by_name(self) -> Mapping[tuple[str, ...], int]:
        names = [info.scientific_name for info in self._classes]
        bare = {_key(_without_author(name)): at for at, name in enumerate(names)}
        return bare | {_key(_words(name)): at for at, name in enumerate(names)}


def _words(name: str) -> list[str]:
    text = plain_id(name.replace("_", " ").replace("\u00d7", " x "))
    return _SUBGENUS.sub(r"\1", text).split()


def _key(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.casefold() for word in words)


def _without_author(name: str) -> list[str]:
    """The words before the first, from the third on, that does not begin with a small letter."""
    words = _words(name)
    ends = (at for at, word in enumerate(words) if at > 1 and not word[0].islower())
    return words[: next(ends, None)]

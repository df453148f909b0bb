"""The classes of a network in output order, with their names and other properties, and which of
them a name in somebody else's table means."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BeforeValidator, Field

from florilege.errors import BundleError, repeated
from florilege.models.staging import read_json

_GENUS = re.compile(r"(?P<genus>[A-Z][a-z-]+)[ _](?:[x\u00d7][ _])?\u00d7?[a-z][\w-]+")
# Controls, soft hyphens, marks of order and of direction; not the joiners, which change how Persian
# and Hindi look.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u2069\ufeff]"
)
_OPTIONAL = ("genus", "family", "gbif", "link", "thumbnail")
# Genus, hybrid sign, epithet, and epithet of a subspecies, variety or form; the authors follow.
SPECIES_NAME: Final = re.compile(
    r"[A-Z][\w-]+(?: [x\u00d7])?(?: \u00d7?[a-z][\w-]+)(?: (?:subsp\.|var\.|f\.) [a-z][\w-]+)?"
)


def plain_id(text: str) -> str:
    """The class id that a folder or a cell means: what people read, whatever its bytes.

    A Mac writes an accent as a character of its own (NFD), other systems do not (NFC), and nobody
    sees a blank at the end, or a blank without width that came with a copy from a page. Two classes
    that look the same would be one mistake.

    Example:
        >>> plain_id("Rosa  canina "), plain_id("e\u0301pine") == "\u00e9pine"
        ('Rosa canina', True)
    """
    if not text.isprintable():
        text = _INVISIBLE.sub("", text)
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _gbif_key(text: str) -> str:
    """A key of GBIF; pandas and R write 5231190.0 for a column in which another key is missing."""
    return text.removesuffix(".0")


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """Credits for a class's reference picture, see `florilege.models.reference_pictures`."""

    author: str | None = None
    licence: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClassInfo:
    """One class; unknown values are None. The best name in each language comes first."""

    id: Annotated[str, BeforeValidator(str)]  # stable: the folder's name or ``class_id``
    scientific_name: str = ""  # shown to people; by default the id
    genus: str | None = None
    family: str | None = None
    gbif: str | None = None  # key in the GBIF backbone
    common_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by language code
    training_count: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    link: str | None = None  # URL of a page about it
    thumbnail: Thumbnail | None = None  # None if there is no picture

    def __post_init__(self) -> None:
        object.__setattr__(self, "scientific_name", self.scientific_name or self.id)
        object.__setattr__(self, "gbif", self.gbif and _gbif_key(self.gbif))

    @property
    def genus_name(self) -> str:
        """The genus, given or from a name like ``Rosa canina``; empty if unknown."""
        match = _GENUS.match(self.scientific_name)
        return self.genus or (match["genus"] if match else "")

    @cached_property
    def by_language(self) -> Mapping[str, tuple[str, ...]]:
        """`common_names` by lower-case language code."""
        return {language.lower(): names for language, names in self.common_names.items()}

    def updated(self, newer: "ClassInfo") -> "ClassInfo":
        """This class with the known values of ``newer``; its other values stay.

        New names in a language replace all old names in that language.
        """
        languages = {language.lower() for language in newer.common_names}
        others = {k: names for k, names in self.common_names.items() if k.lower() not in languages}
        changes = {key: value for key in _OPTIONAL if (value := getattr(newer, key)) is not None}
        if newer.scientific_name != newer.id:
            changes["scientific_name"] = newer.scientific_name
        return replace(self, common_names={**others, **newer.common_names}, **changes)


@dataclass(frozen=True)
class ClassTable(Sequence[ClassInfo]):
    """All classes; position ``i`` belongs to output ``i`` of the network."""

    items: tuple[ClassInfo, ...]

    def __post_init__(self) -> None:
        if twice := repeated(self.ids):
            raise BundleError(f"class ids must be unique; these appear more than once: {twice[:5]}")

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[ClassInfo]:
        return iter(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(item.id for item in self.items)

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        return {name: index for index, name in enumerate(self.ids)}

    @cached_property
    def _id_of_plain(self) -> Mapping[str, str]:
        return {plain_id(name): name for name in self.ids}

    def ids_of(self, texts: Iterable[str]) -> dict[str, str]:
        """The id that each text is, or else looks like (`plain_id`); unknown texts are left out."""
        ids = ((text, self._id_of_plain.get(plain_id(text))) for text in texts)
        return {
            text: text if text in self.index_of else id_ for text, id_ in ids if id_ is not None
        }

    def with_counts(self, counts: Sequence[int]) -> "ClassTable":
        """The same classes with other numbers of training images."""
        pairs = zip(self.items, counts, strict=True)
        return ClassTable(tuple(replace(item, training_count=count) for item, count in pairs))

    @property
    def counts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
        """Training images per class, shape ``(classes,)``, or None if any is unknown."""
        counts = [item.training_count for item in self.items]
        return None if None in counts else np.array(counts, dtype=np.int64)

    def to_json(self) -> str:
        return json.dumps([asdict(item) for item in self.items], ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "ClassTable":
        """Read ``classes.json``; a `BundleError` if the text is not a list of classes, or empty."""
        if not (items := read_json(tuple[ClassInfo, ...], text, "classes.json")):
            raise BundleError("classes.json is damaged: it lists no class; export the bundle again")
        return cls(items)


def without_author(name: str) -> str:
    """The name of a species without its authors; unchanged if it is not a species name.

    Example:
        >>> without_author("Lactuca virosa L."), without_author("Mentha × piperita L.")
        ('Lactuca virosa', 'Mentha × piperita')
    """
    match = SPECIES_NAME.match(name)
    return match.group() if match else name


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
        if ids := self._classes.ids_of([text]):
            return self._classes.index_of[ids[text]]
        address = _GBIF_ADDRESS.fullmatch(text.strip())
        if (at := self._by_key.get(address[1] if address else _gbif_key(text.strip()))) is not None:
            return at
        words = _key(_words(text))
        if (at := self._by_name.get(words)) is not None:
            return at
        # The authors follow the name: the longest beginning that is a name. One word is a genus,
        # and what a hybrid sign follows is one of the parents.
        # Five at most: genus, x, epithet, rank and epithet.
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

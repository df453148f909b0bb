"""The classes that a model knows: their taxa in answers, and lists to show and to search."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache, partial
from typing import Final
from urllib.parse import quote

from pydantic import TypeAdapter

from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.reference_pictures import Credit
from florilege.server.schemas import (
    ClassEntry,
    CommonName,
    Picture,
    Taxon,
    ThumbnailInfo,
)

LANGUAGES_KEPT: Final = 8
"""Languages for which the taxa and entries of all classes are cached."""
_SEPARATOR: Final = "\0"  # occurs in no name
_ENTRY = TypeAdapter(ClassEntry)
_PICTURES = TypeAdapter(list[Picture])


class TaxonTable:
    """The classes of a model as taxa and as JSON, each made once per language.

    An answer may hold thousands of taxa; lists of 10,000 classes take milliseconds.
    """

    def __init__(self, classes: ClassTable) -> None:
        self.classes = classes
        cached = lru_cache(maxsize=LANGUAGES_KEPT * len(classes))
        # Not of methods: they would hold this table in a cycle, and no cycle of the first bundle
        # is collected, because a server freezes it.
        self._taxon = cached(partial(_taxon_of, classes))
        self._entry = cached(partial(_entry_of, classes, self._taxon))

    def __contains__(self, class_id: str) -> bool:
        return class_id in self.classes.index_of

    def taxon(self, item: ClassInfo, languages: Sequence[str]) -> Taxon:
        """The taxon of a class, with names in the first of ``languages`` that has any."""
        return self._taxon(item.id, language_of(item, languages))

    def entry(self, class_id: str, languages: Sequence[str]) -> bytes:
        """The `ClassEntry` of a class, with names as in `taxon`."""
        item = self.classes.items[self.classes.index_of[class_id]]
        return self._entry(class_id, language_of(item, languages))

    def details(
        self,
        class_id: str,
        languages: Sequence[str],
        pictures: Sequence[Credit],
        others: Sequence[int],
    ) -> bytes:
        """The `ClassDetails` of a class, with its pictures and the classes of these indices."""
        address = f"{_picture_of(class_id)}&number="
        listed = [
            Picture(url=f"{address}{number}", **asdict(credit))
            for number, credit in enumerate(pictures, start=1)
        ]
        entries = b",".join(self.entry(self.classes.ids[index], languages) for index in others)
        # The entry without its closing brace: two more fields follow.
        own, pictured = self.entry(class_id, languages)[:-1], _PICTURES.dump_json(listed)
        return b'%b,"pictures":%b,"look_alikes":[%b]}' % (own, pictured, entries)

    def find(self, languages: Sequence[str], q: str | None, limit: int | None) -> bytes:
        """A `ClassList` of the classes whose id or any name, in any language, contains ``q``."""
        matches: Sequence[str] = self.classes.ids
        if q is not None:
            part = q.casefold()
            named = zip(matches, self._names, strict=True)
            matches = [id_ for id_, names in named if part in names and _SEPARATOR not in part]
        entries = b",".join(self.entry(class_id, languages) for class_id in matches[:limit])
        return b'{"total":%d,"classes":[%b]}' % (len(matches), entries)

    @cached_property
    def languages(self) -> frozenset[str]:
        """Those in which at least one class has a name."""
        return frozenset(language for item in self.classes for language in item.by_language)

    @cached_property
    def _names(self) -> list[str]:
        """All names of each class, to search."""
        texts = []
        for item in self.classes:
            names = [item.id, item.scientific_name, item.genus or "", item.family or ""]
            names += [name for listed in item.common_names.values() for name in listed]
            texts.append(_SEPARATOR.join(names).casefold())
        return texts


def _entry_of(
    classes: ClassTable, taxon_of: Callable[[str, str], Taxon], class_id: str, language: str
) -> bytes:
    count = classes.items[classes.index_of[class_id]].training_count
    entry = ClassEntry(class_id=class_id, taxon=taxon_of(class_id, language), training_count=count)
    return _ENTRY.dump_json(entry)


def _picture_of(class_id: str) -> str:
    return f"v1/thumbnails?class_id={quote(class_id, safe='')}"


def _taxon_of(classes: ClassTable, class_id: str, language: str) -> Taxon:
    item, thumbnail = classes.items[classes.index_of[class_id]], None
    if item.thumbnail is not None:
        thumbnail = ThumbnailInfo(
            url=_picture_of(class_id),
            author=item.thumbnail.author,
            licence=item.thumbnail.licence,
        )
    names = item.by_language.get(language, ())
    return Taxon(
        scientific_name=item.scientific_name,
        genus=item.genus,
        family=item.family,
        ids={"gbif": item.gbif},
        common_names=[CommonName(name=name, lang=language) for name in names],
        link=item.link,
        thumbnail=thumbnail,
    )


def language_of(item: ClassInfo, languages: Sequence[str]) -> str:
    """The first of a fallback chain in which a class has a name; empty if there is none."""
    by_language = item.by_language
    return next((language for language in languages if by_language.get(language)), "")

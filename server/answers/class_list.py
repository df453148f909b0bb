"""The classes that a model knows, to list and to search."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from pydantic import TypeAdapter

from florilege.models.classes import ClassInfo
from florilege.server.answers.common_names import LANGUAGES_KEPT, TaxonTable, language_of
from florilege.server.schemas import ClassEntry

SEPARATOR: Final = "\0"  # occurs in no name
_ENTRY = TypeAdapter(ClassEntry)


class ClassCatalogue:
    """The classes of a model as JSON, each serialised once per language.

    Lists of 10,000 classes take milliseconds.
    """

    def __init__(self, taxa: TaxonTable) -> None:
        self._table = table = taxa.classes
        self._names = [_names(item) for item in table]
        self._languages = frozenset(language for item in table for language in item.by_language)
        self._entry = lru_cache(maxsize=LANGUAGES_KEPT * len(table))(partial(_entry, taxa))

    def __contains__(self, class_id: str) -> bool:
        return class_id in self._table.index_of

    def entry(self, class_id: str, languages: Sequence[str]) -> bytes:
        """The `ClassEntry` of a class, named in the first possible of ``languages``."""
        return self._entry_at(self._table.index_of[class_id], languages)

    def available(self, languages: Sequence[str]) -> tuple[str, ...]:
        """The given languages in which at least one class has a name."""
        return tuple(language for language in languages if language in self._languages)

    def find(self, languages: Sequence[str], q: str | None, limit: int | None) -> bytes:
        """A `ClassList` of the classes whose id or any name, in any language, contains ``q``."""
        matches: Sequence[int] = range(len(self._table))
        if q is not None:
            part = q.casefold()
            matches = [
                index
                for index, names in enumerate(self._names)
                if part in names and SEPARATOR not in part
            ]
        entries = b",".join(self._entry_at(index, languages) for index in matches[:limit])
        return b'{"total":%d,"classes":[%b]}' % (len(matches), entries)

    def _entry_at(self, index: int, languages: Sequence[str]) -> bytes:
        return self._entry(index, language_of(self._table.items[index], languages))


def _entry(taxa: TaxonTable, index: int, language: str) -> bytes:
    item = taxa.classes.items[index]
    taxon = taxa.taxon(item, [language])
    entry = ClassEntry(class_id=item.id, taxon=taxon, training_count=item.training_count)
    return _ENTRY.dump_json(entry)


def _names(item: ClassInfo) -> str:
    names = [item.id, item.scientific_name, item.genus or "", item.family or ""]
    names += [name for listed in item.common_names.values() for name in listed]
    return SEPARATOR.join(names).casefold()

"""Common names in the requested language, with fallbacks."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from florilege.models.classes import ClassInfo, ClassTable
from florilege.server.schemas import CommonName, Taxon, ThumbnailInfo

FALLBACK = "en"
MAX_LANGUAGES = 30
MAX_TAG_LENGTH = 35
LANGUAGES_KEPT: Final = 8
"""Languages for which the taxa and entries of all classes are cached."""
LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")


def _accepted_languages(header: str) -> list[str]:
    """The languages of an ``Accept-Language`` header, the most preferred first.

    Unreadable entries are skipped, as are those after `MAX_LANGUAGES`: a malformed header is no
    reason to refuse a photo.

    Example:
        >>> _accepted_languages("fr-CH, fr;q=0.9, en;q=0.8, *;q=0.5")
        ['fr-CH', 'fr', 'en']
    """
    weighted = []
    for position, entry in enumerate(header.split(",", MAX_LANGUAGES)[:MAX_LANGUAGES]):
        tag, _, parameter = (part.strip() for part in entry.partition(";"))
        weight = _weight(parameter)
        if len(tag) <= MAX_TAG_LENGTH and LANGUAGE_TAG.fullmatch(tag) and weight > 0:
            weighted.append((-weight, position, tag))
    return [tag for _, _, tag in sorted(weighted)]


def request_languages(lang: str | None, accept_language: str) -> tuple[str, ...]:
    """The languages to use, the most preferred first: ``lang``, or those of the header."""
    return (lang,) if lang else tuple(_accepted_languages(accept_language)) or (FALLBACK,)


def _weight(parameter: str) -> float:
    if not parameter:
        return 1.0
    match = re.fullmatch(r"[qQ]=([01](?:\.\d{0,3})?)", parameter)
    return float(match[1]) if match else 0.0


def fallback_chain(languages: Iterable[str]) -> list[str]:
    """The languages to try for a name: each one, then its base, and English last.

    Example:
        >>> fallback_chain(["fr-CA"])
        ['fr-ca', 'fr', 'en']
    """
    chain: list[str] = []
    for tag in languages:
        lowered = tag.lower()
        chain += [lowered, lowered.partition("-")[0]]
    return list(dict.fromkeys([*chain, FALLBACK]))


def language_of(item: ClassInfo, languages: Sequence[str]) -> str:
    """The first of a `fallback_chain` in which a class has a name; empty if there is none."""
    by_language = item.by_language
    return next((each for each in languages if by_language.get(each)), "")


class TaxonTable:
    """The taxa of a model, each created once per language: an answer may hold thousands."""

    def __init__(self, classes: ClassTable) -> None:
        self.classes = classes
        self._taxon = lru_cache(maxsize=LANGUAGES_KEPT * len(classes))(self._make)

    def taxon(self, item: ClassInfo, languages: Sequence[str]) -> Taxon:
        """The taxon of a class, named in the first possible of ``languages``."""
        return self._taxon(item.id, language_of(item, languages))

    def _make(self, class_id: str, language: str) -> Taxon:
        item = self.classes[self.classes.index_of[class_id]]
        names = item.by_language.get(language, ())
        return Taxon(
            scientific_name=item.scientific_name,
            genus=item.genus,
            family=item.family,
            ids={"gbif": item.gbif},
            common_names=[CommonName(name=name, lang=language) for name in names],
            link=item.link,
            thumbnail=_thumbnail(item),
        )


def _thumbnail(item: ClassInfo) -> ThumbnailInfo | None:
    if item.thumbnail is None:
        return None
    return ThumbnailInfo(
        url=f"v1/thumbnails?class_id={quote(item.id, safe='')}",
        author=item.thumbnail.author,
        licence=item.thumbnail.licence,
    )

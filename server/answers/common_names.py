"""Languages of common names: what a request prefers, with fallbacks."""

import re
from collections.abc import Iterable

FALLBACK = "en"
MAX_LANGUAGES = 30
MAX_TAG_LENGTH = 35
LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")


def accepted_languages(header: str) -> list[str]:
    """The languages of an ``Accept-Language`` header, the most preferred first, else English.

    Unreadable entries are skipped, as are those after `MAX_LANGUAGES`: a malformed header is no
    reason to refuse a photo.

    Example:
        >>> accepted_languages("fr-CH, fr;q=0.9, en;q=0.8, *;q=0.5")
        ['fr-CH', 'fr', 'en']
    """
    weighted = []
    for position, entry in enumerate(header.split(",", MAX_LANGUAGES)[:MAX_LANGUAGES]):
        tag, _, parameter = (part.strip() for part in entry.partition(";"))
        match = re.fullmatch(r"[qQ]=([01](?:\.\d{0,3})?)", parameter or "q=1")
        weight = float(match[1]) if match else 0.0
        if len(tag) <= MAX_TAG_LENGTH and LANGUAGE_TAG.fullmatch(tag) and weight > 0:
            weighted.append((-weight, position, tag))
    return [tag for _, _, tag in sorted(weighted)] or [FALLBACK]


def fallback_chain(languages: Iterable[str]) -> list[str]:
    """The languages to try for a name: each one, then its base, and English last.

    Example:
        >>> fallback_chain(["fr-CA"])
        ['fr-ca', 'fr', 'en']
    """
    tags = [tag.lower() for tag in languages]
    chain = [each for tag in tags for each in (tag, tag.partition("-")[0])]
    return list(dict.fromkeys([*chain, FALLBACK]))

"""The phrases of ``calibration.record.statement``, one JSON file a language."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Phrases:
    """One language: pieces of the sentence, with the names of what is filled in.

    Attributes:
        decimal: Between units and tenths.
        thousands: Between thousands and hundreds.
        percent: A share of 100.
        whole: How the pieces become a sentence.
        candidates: One candidate, several candidates.
    """

    decimal: str
    thousands: str
    percent: str
    whole: str
    photos: str
    listed: str
    traffic: str
    traffic_groups: str
    plants: str
    species: str
    each_holds: str
    holds: str
    candidates: tuple[str, str]
    hits: str
    not_known: str
    guaranteed: str
    not_guaranteed: str
    caution: str
    on_average: str
    for_all_but: str
    no_requests: str
    trained: str
    chose: str
    chose_head: str
    unknown: str
    at_most: str
    at_least: str
    each_class: str
    each_class_but: str
    empty: str


def _read(path: Path) -> Phrases:
    """The phrases of one language; TypeError if the file lacks one or has one more."""
    content = json.loads(path.read_text("utf-8"))
    return Phrases(**content | {"candidates": tuple(content["candidates"])})


PHRASES = {
    path.stem: _read(path) for path in sorted((Path(__file__).parent / "languages").glob("*.json"))
}
"""By the code of the language, such as ``fr``."""
ENGLISH = PHRASES["en"]

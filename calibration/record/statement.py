"""The sentence that goes with a set: what was measured, and on how many photos."""

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from florilege.calibration.record.origin import TRAFFIC, Origin
from florilege.calibration.rules import RULES

if TYPE_CHECKING:
    from florilege.calibration.record.operating_point import OperatingPoint

Phrases = dict[str, str]
PHRASES: dict[str, Phrases] = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parent / "languages").glob("*.json"))
}
"""Pieces of the sentence by language code: ``whole`` joins them, and each file has the same."""


def statement(
    point: "OperatingPoint", languages: Iterable[str] = (), *, empty: bool = False
) -> str:
    """Say in plain words what sets of this rule hold on photos like those of the split.

    Everything in it was measured; a promise is called a guarantee only where the photos neither
    trained the network nor chose it.

    Args:
        point: What it is about.
        languages: Language tags such as ``fr-CH``, the most wanted first. The sentence is in the
            first that `PHRASES` has, English where it has none.
        empty: Whether it goes with an empty set, which holds nothing whatever others hold.
    """
    bases = (tag.lower().partition("-")[0] for tag in languages)
    language = next((base for base in bases if base in PHRASES), "en")
    sentences = _sentences(point, language)
    return f"{sentences} {PHRASES[language]['empty']}" if empty else sentences


@lru_cache(maxsize=256)  # a server says the same few again and again
def _sentences(point: "OperatingPoint", language: str) -> str:
    say = PHRASES[language]
    measured = say["whole"].format(
        measured=_measured_on(point, say), held=_held(point, say), truth=_truth(point, say)
    )
    return f"{measured}{_promise(point, say)}"


def _held(point: "OperatingPoint", say: Phrases) -> str:
    row = point.row
    if point.top_k is not None:
        size = _number(f"{row.size:.0f}", say)
        return say["each_holds"].format(size=size, candidates=_candidates(row.size, say))
    size, low, high = (_number(f"{x:.2f}", say) for x in (row.size, row.size_low, row.size_high))
    return say["holds"].format(size=size, candidates=_candidates(row.size, say), low=low, high=high)


def _truth(point: "OperatingPoint", say: Phrases) -> str:
    hits = point.estimates["hit_rate"]
    if hits is None:
        return say["not_known"]
    share, low, high = (_percent(x, say) for x in (hits.value, *hits.ci95))
    return say["hits"].format(share=share, low=low, high=high)


def _measured_on(point: "OperatingPoint", say: Phrases) -> str:
    images, split = point.table.images, point.measured.split
    if split == TRAFFIC:
        phrase = say["traffic"] if images == 1 else say["traffic_groups"]
    elif images == 1:
        phrase = say["photos"] if point.table.list_name is None else say["listed"]
    else:
        phrase = say["plants"] if point.table.made_from == "observations" else say["species"]
    rows = _number(f"{point.rows:,}", say)
    return phrase.format(rows=rows, images=images, split=split, name=point.table.list_name)


def _promise(point: "OperatingPoint", say: Phrases) -> str:
    if point.guarantee is None:
        return _caution(point, say)
    promise = _wanted(point, say)
    if not point.guaranteed:
        return " " + say["not_guaranteed"].format(why=_why(point, say), wanted=promise)
    which = say["on_average"]
    if point.delta is not None:
        which = say["for_all_but"].format(delta=_percent(point.delta, say))
    return " " + say["guaranteed"].format(which=which, wanted=promise)


def _caution(point: "OperatingPoint", say: Phrases) -> str:
    """A warning that new photos may do worse, where those of the hit rate chose something."""
    if point.row.hit_rate is None or not point.measured.selection_split:
        return ""
    return " " + say["caution"].format(why=_selection(point.measured, say))


def _wanted(point: "OperatingPoint", say: Phrases) -> str:
    if point.coverage is None:
        k = point.k or 0
        return say["at_most"].format(
            k=_number(f"{k:g}", say), candidates=_candidates(k, say), most=point.max_size
        )
    coverage = say["at_least"].format(coverage=_percent(point.coverage, say))
    if not RULES[point.rule].by_class:
        return coverage
    if not point.small_classes:
        return coverage + say["each_class"]
    small = _number(f"{point.small_classes:,}", say)
    return coverage + say["each_class_but"].format(small=small)


def _why(point: "OperatingPoint", say: Phrases) -> str:
    if point.table.made_from == "same_class":
        return say["no_requests"]
    if point.measured.split == TRAFFIC:
        return say["plants_of_traffic"]
    return _selection(point.measured, say)


def _selection(measured: Origin, say: Phrases) -> str:
    """What else the photos were used for, or that it is not known."""
    if measured.train_photos:
        return say["trained"].format(photos=_number(f"{measured.train_photos:,}", say))
    if measured.chose_checkpoint:
        photos = measured.selection_photos or measured.rows
        return say["chose"].format(photos=_number(f"{photos:,}", say))
    return say["chose_head"] if measured.chose_head else say["unknown"]


def _candidates(size: float, say: Phrases) -> str:
    return say["candidate" if size == 1 else "candidates"]


def _percent(share: float, say: Phrases) -> str:
    return say["percent"].format(_number(f"{100 * share:.1f}", say))


def _number(english: str, say: Phrases) -> str:
    return english.translate({ord(","): say["thousands"], ord("."): say["decimal"]})

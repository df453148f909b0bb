"""The sentence about a prediction set: its measured figures, and on how many photos."""

import json
from collections.abc import Iterable
from math import floor
from pathlib import Path
from re import fullmatch
from typing import TYPE_CHECKING

from florilege.calibration.record.schema import TRAFFIC

if TYPE_CHECKING:
    from florilege.calibration.record.operating_point import OperatingPoint

_Phrases = dict[str, str]
PHRASES: dict[str, _Phrases] = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parent / "languages").glob("*.json"))
}
"""Phrases of the sentence by language code; ``whole`` joins them. Each file has the same keys."""


def statement(
    point: "OperatingPoint", languages: Iterable[str] = (), *, empty: bool = False
) -> str:
    """Describe in plain words the sets of this rule on photos like those of the split.

    All figures are measured. The sentence states a guarantee only if the photos neither trained nor
    chose the network. Its language is the first of ``languages``, tags such as ``fr-CH``, that
    `PHRASES` has, by default English; ``empty`` adds that the set is empty.
    """
    bases = (tag.lower().partition("-")[0] for tag in languages)
    language = next((base for base in bases if base in PHRASES), "en")
    sentences = point.sentences.get(language)
    if sentences is None:
        sentences = point.sentences[language] = _sentences(point, language)
    return f"{sentences} {PHRASES[language]['empty']}" if empty else sentences


def _sentences(point: "OperatingPoint", language: str) -> str:
    words = PHRASES[language]
    measured = words["whole"].format(
        measured=_measured_on(point, words), held=_size(point, words), truth=_hits(point, words)
    )
    least = point.least_coverage
    if least:
        measured += " " + words["least"].format(share=_percent(_lower(least), words))
    return measured + _promise(point, words) + _wrong_labels(point, words)


def _size(point: "OperatingPoint", words: _Phrases) -> str:
    row = point.row
    if point.top_k is not None:
        size = f"{row.size:.0f}"
        return words["each_holds"].format(
            size=_number(size, words), candidates=candidates(size, words)
        )
    sizes = [f"{x:.2f}" for x in (row.size, row.size_low, row.size_high)]
    size, low, high = (_number(text, words) for text in sizes)
    return words["holds"].format(
        size=size, candidates=candidates(sizes[0], words), low=low, high=high
    )


def _hits(point: "OperatingPoint", words: _Phrases) -> str:
    hits = point.estimates["hit_rate"]
    if hits is None:
        return words["not_known"]
    share, low, high = (_percent(x, words) for x in (hits.value, *hits.ci95))
    return words["hits"].format(share=share, low=low, high=high)


def _measured_on(point: "OperatingPoint", words: _Phrases) -> str:
    view, split = point.table.view, point.measured.split
    if split == TRAFFIC:
        phrase = words["traffic"] if view.photos == 1 else words["traffic_groups"]
    elif view.photos == 1:
        phrase = words["photos"]
    else:
        phrase = words["plants"] if point.table.made_from == "observations" else words["species"]
    about = ""
    if view.list is not None:
        about += words["listed"].format(name=view.list)
    if view.place is not None:
        about += words[view.place]
    rows = _number(f"{point.rows:,}", words)
    return phrase.format(rows=rows, images=view.photos, split=split, known=about)


def _promise(point: "OperatingPoint", words: _Phrases) -> str:
    """The guarantee, or why there is none; without one a warning about what is unfit."""
    certificate = point.certificate
    if certificate.guarantee is None:
        if not certificate.reasons:
            return ""
        return " " + words["caution"].format(why=_why(point, words))
    promise, delta = _guarantee(point, words), certificate.delta
    if not certificate.guaranteed:
        return " " + words["not_guaranteed"].format(why=_why(point, words), wanted=promise)
    which = words["on_average"]
    if delta is not None:
        which = words["for_all_but"].format(delta=_requested(delta, words))
    return " " + words["guaranteed"].format(which=which, wanted=promise)


def _wrong_labels(point: "OperatingPoint", words: _Phrases) -> str:
    """What all figures and promises assume of wrong labels, if anything."""
    noise = point.certificate.label_noise
    if noise is None:
        return ""
    phrase = words["wrong_labels" if noise.source == "flag" else "wrong_labels_reviewed"]
    if point.table.view.photos > 1:
        phrase = words["wrong_labels_together"]
    shares = (noise.rate, noise.low, noise.high)
    share, low, high = (_percent(share, words) for share in shares)
    photos = _number(f"{noise.reviewed or 0:,}", words)
    drawn_from = words[f"drawn_from_{noise.kind}"]
    return " " + phrase.format(
        share=share, low=low, high=high, photos=photos, drawn_from=drawn_from
    )


def _guarantee(point: "OperatingPoint", words: _Phrases) -> str:
    certificate = point.certificate
    if certificate.mean_size is not None:
        k = f"{certificate.mean_size:g}"
        return words["at_most"].format(
            k=_number(k, words), candidates=candidates(k, words), most=point.max_size
        )
    each_class = words["each_class"] if certificate.each_class else ""
    share = _requested(certificate.coverage or 0.0, words)
    return words["at_least"].format(coverage=share) + each_class


def _why(point: "OperatingPoint", words: _Phrases) -> str:
    """The first reason why nothing is promised."""
    photos = _number(f"{point.measured.train_photos or 0:,}", words)
    return words[point.certificate.reasons[0]].format(photos=photos)


def candidates(size: str, words: _Phrases) -> str:
    """The noun after a size written in English, by the plural rules of Unicode."""
    is_singular = fullmatch(words["singular_sizes"], size)
    return words["candidate" if is_singular else "candidates"]


def _percent(share: float, words: _Phrases) -> str:
    return words["percent"].format(_number(f"{100 * share:.1f}", words))


def _lower(share: float) -> float:
    """A share cut to the digits of a percentage: what is promised is never rounded up."""
    return floor(1000 * share) / 1000


def _requested(share: float, words: _Phrases) -> str:
    """A share that somebody chose, with all its digits: 99.95 % is no promise of 100.0 %."""
    digits = f"{100 * share:.8g}"
    text = digits if "." in digits or "e" in digits else f"{digits}.0"
    return words["percent"].format(_number(text, words))


def _number(text: str, words: _Phrases) -> str:
    # Both in one pass: with one replacement after the other, German commas would become points
    # again.
    return text.translate({ord(","): words["thousands"], ord("."): words["decimal"]})

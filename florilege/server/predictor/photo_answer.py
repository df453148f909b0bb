"""An answer as Python shows it: its names, its length, a few lines of text, a picture of it."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from typing import Any, Final, Self

from PIL import Image
from pydantic import PrivateAttr

from florilege.calibration.rules import RULES
from florilege.errors import FlorilegeError
from florilege.models.images import ImageError, plain_jpeg
from florilege.server.predictor.photo_input import read_photo
from florilege.server.schemas import Answer, Measured, Result, SetInfo

_WIDTH: Final = 100  # characters of the line of names
_ROWS: Final = 12  # names below a photo
_SIDE: Final = 240  # pixels of a shown photo


@dataclass(frozen=True)
class _Photos:
    """The photos of an answer, in the form they were given; no part of what answers compare."""

    photos: Sequence[Any] = field(default=(), compare=False, repr=False)


class PhotoAnswer(Answer):
    """The prediction set of one plant: all that ``POST /v1/identify`` answers, for Python.

    It is a collection of the set's results, best first: ``len``, ``for`` and ``in`` work, the last
    with a name or a class id. What ``max_results`` or ``min_score`` leave out is only in
    ``set.size``. ``include=["scores"]`` adds classes outside the set to ``results`` alone.
    """

    _photos: _Photos = PrivateAttr(default_factory=_Photos)

    @classmethod
    def of_photos(cls, answer: Answer, photos: Sequence[Any]) -> Self:
        """An answer, with the photos to show beside it."""
        own = cls.model_construct(**vars(answer))
        own._photos = _Photos(photos)
        return own

    @property
    def names(self) -> list[str]:
        """The scientific names of the set, best first."""
        return [result.name for result in self]

    @property
    def top(self) -> Result | None:
        """The best of the set, with its name and score; None if the set is empty."""
        return next(iter(self), None)

    def __iter__(self) -> Iterator[Result]:  # type: ignore[override]  # pydantic iterates over fields
        return (result for result in self.results if result.in_set)

    def __len__(self) -> int:
        return sum(result.in_set for result in self.results)

    def __contains__(self, name: object) -> bool:
        return any(name in (result, result.name, result.class_id) for result in self)

    def __repr__(self) -> str:
        """Three lines at most: the names with scores, what such sets are worth, and a caution."""
        lines = [f"{_candidates(self.set.size)}{_names(list(self), self.set.size)}"]
        lines += [_worth(self.set), _caution(self)]
        return "\n".join(filter(None, lines))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """What a notebook shows: the photos, the names with scores, and what they are worth."""
        results = list(self)
        rows = "".join(
            f"<tr><td><i>{escape(result.name)}</i></td><td>{result.score:.2f}</td></tr>"
            for result in results[:_ROWS]
        )
        if self.set.size > len(results[:_ROWS]):
            rows += f"<tr><td>and {self.set.size - len(results[:_ROWS]):,} more</td><td></td></tr>"
        notes = "<br>".join(escape(text) for text in (_worth(self.set), _caution(self)) if text)
        pictures = "".join(filter(None, map(_picture, self._photos.photos)))
        return (
            '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start">'
            f'<div>{pictures}</div><div style="flex:1;min-width:16em">'
            f"<b>{_candidates(self.set.size)}</b>"
            f"<table>{rows}</table><small>{notes}</small></div></div>"
        )


def _candidates(size: int) -> str:
    return f"{size:,} candidate{'' if size == 1 else 's'}" if size else "no candidates"


def _names(results: Sequence[Result], size: int) -> str:
    """As many names with their scores as fit on a line, and the number of the others."""
    text, listed = "", 0
    for result in results:
        more = f"{', ' if listed else ': '}{result}"
        if listed and len(text) + len(more) > _WIDTH:
            break
        text, listed = text + more, listed + 1
    return f"{text} and {size - listed:,} more" if listed and size > listed else text


def _worth(info: SetInfo) -> str:
    """How often such sets are right, and what is promised of new photos."""
    value = info.k if RULES[info.rule].asks == "k" else info.coverage
    rule = f"{info.rule} {value:g}"
    if not info.calibrated:
        return f"{rule}: not calibrated for this request, so how often it is right is unknown"
    if info.hit_rate is None:
        return f"{rule}: how often such sets are right is unknown"
    words = f"{rule}: {_rate(info.hit_rate, ' of such sets hold the right one')}"
    if info.hit_rate_at_size is not None:
        words += f"; of size {info.size}: {_rate(info.hit_rate_at_size)}"
    return f"{words}; guaranteed for new photos like these" if info.guaranteed else words


def _rate(measured: Measured, of: str = "") -> str:
    """A rate with its interval, such as ``94.0 % (90 to 97 %)``."""
    interval = ""
    if measured.ci95 is not None:
        low, high = (f"{100 * bound:.0f}" for bound in measured.ci95)
        interval = f" ({low} to {high} %)"
    return f"{100 * measured.value:.1f} %{of}{interval}"


def _caution(answer: Answer) -> str:
    """The first reason to trust the answer less."""
    if answer.rejection.verdict in ("suspect", "rejected"):
        return "unlike the photos that the model knows: perhaps none of its classes"
    return answer.warnings[0].detail if answer.warnings else ""


def _picture(photo: Any) -> str:
    """A small picture as HTML; empty if the photo cannot be read any more."""
    with suppress(FlorilegeError, ImageError):
        content = read_photo(photo)
        if isinstance(content, Image.Image):
            small = content.convert("RGB")
            small.thumbnail((_SIDE, _SIDE))
            buffer = BytesIO()
            small.save(buffer, "JPEG")
            content = buffer.getvalue()
        encoded = base64.b64encode(plain_jpeg(content, side=_SIDE, quality=80)).decode()
        return f'<img alt="photo" src="data:image/jpeg;base64,{encoded}">'
    return ""

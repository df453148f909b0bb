"""The page on which people review labels: one HTML file that loads nothing and works offline.

Photos, classes and answers of others lie in it as JSON. Its style is that of the product's page.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from string import Template
from typing import Any, Final

from florilege.cores import in_order
from florilege.data.corrections import CONFIRMED, CORRECTED, ReviewAnswer
from florilege.data.records import Split
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import ImageError, plain_jpeg
from florilege.page_files import with_parts
from florilege.terminal import with_bar

_SIDE: Final = 480  # pixels of the longer side: flowers are told apart, and 200 photos take 8 MB
_QUALITY: Final = 70


@dataclass(frozen=True, kw_only=True)
class ReviewPage:
    """What a page shows.

    Attributes:
        source: The ``--data`` argument.
        classes: Those of the data, which a correction may name.
        others: The network's classes, which sets may hold.
        photos: The photos in the order of the review; labels index ``classes``.
        splits: The split of each photo.
        orders: The order of the review that drew it.
        sets: Class ids of the set of each photo, best first; empty without a network.
        answers: What others said of a photo, by its name.
    """

    source: str
    classes: ClassTable
    others: ClassTable | None
    photos: Split
    splits: Sequence[str]
    orders: Sequence[str]
    sets: Sequence[Sequence[str]]
    answers: Mapping[str, Sequence[ReviewAnswer]]

    def html(self) -> str:
        """The file."""
        script, style = _text("page.js"), _product_style() + _text("page.css")
        # A photo's address is data:, and nothing else is loaded: neither from here nor elsewhere.
        policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; " + (
            f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
        )
        # `<` would end the script that holds it, or begin a comment.
        review = json.dumps(self._content(), ensure_ascii=False).replace("<", "\\u003c")
        return Template(with_parts(_text("page.html"))).substitute(
            policy=policy, style=style, script=script, review=review
        )

    def _content(self) -> dict[str, Any]:
        labels = [self.classes.ids[label] for label in self.photos.labels.tolist()]
        identity = json.dumps([self.source, [*zip(self.photos.names, labels, strict=True)]])
        return {
            # Answers are stored under it: another page, or other labels, find none of them.
            "key": f"florilege-review-{hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            "data": self.source,
            "classes": [*map(_class, self.classes), *self._outside()],
            "photos": [
                {
                    "photo": name,
                    "label": label,
                    "split": split,
                    "order": order,
                    "set": list(members),
                    "others": [self._said(answer) for answer in self.answers.get(name, ())],
                    **picture,
                }
                for name, label, split, order, members, picture in zip(
                    self.photos.names,
                    labels,
                    self.splits,
                    self.orders,
                    self.sets,
                    _pictures(self.photos),
                    strict=True,
                )
            ],
        }

    def _outside(self) -> Iterable[dict[str, Any]]:
        """The classes that sets hold and the data lack."""
        missing = {name for members in self.sets for name in members} - self.classes.index_of.keys()
        infos = (item for item in self.others or () if item.id in missing)
        return ({**_class(item), "outside": True} for item in infos)

    def _said(self, answer: ReviewAnswer) -> str:
        words = {CONFIRMED: "right", CORRECTED: self._name(answer.corrected)}
        return f"{answer.by}: {words.get(answer.answer, answer.answer)}"

    def _name(self, class_id: str) -> str:
        place = self.classes.index_of.get(class_id)
        return class_id if place is None else str(self.classes[place].scientific_name)


def _class(info: ClassInfo) -> dict[str, Any]:
    names = info.by_language.get("en") or next(iter(info.common_names.values()), ())
    common = [name for name in names if name != info.scientific_name]
    return {"id": info.id, "name": info.scientific_name, "common": common, "outside": False}


def _pictures(photos: Split) -> Iterable[dict[str, str]]:
    results = in_order(partial(_picture, photos), range(len(photos)))
    return with_bar(results, len(photos), "thumbnails")


def _picture(photos: Split, row: int) -> dict[str, str]:
    """The photo as a small JPEG, or why there is none."""
    try:
        content = plain_jpeg(photos.read(row), side=_SIDE, quality=_QUALITY)
    except (OSError, ImageError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return {"fault": f"This photo cannot be shown: {reason}"}
    return {"src": f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"}


def _text(name: str) -> str:
    return files("florilege.label_review").joinpath(name).read_text("utf-8")


def _product_style() -> str:
    return files("florilege.server").joinpath("web", "style.css").read_text("utf-8")


def _hash(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

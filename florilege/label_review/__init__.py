"""The page on which people review labels, and what the answers of several people say together.

One HTML file that loads nothing and works offline: photos, classes and answers of others lie in it
as JSON. Its style is that of the product's page. `photo_order` says which photos it holds; `cli`
adds the verb `florilege data review` to those of `florilege.data.cli`.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from itertools import filterfalse
from string import Template
from typing import Any, Final, Self

import numpy as np

from florilege.calibration.intervals import effective_rows, wilson
from florilege.calibration.sets import Bools, Ints
from florilege.data.corrections import (
    COLUMNS,
    CONFIRMED,
    CORRECTED,
    RANDOM,
    UNDECIDED,
    ReviewAnswer,
)
from florilege.data.records import Split
from florilege.errors import reason_of
from florilege.files import with_parts
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import ImageError, plain_jpeg
from florilege.tables import Table
from florilege.terminal import with_bar


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All answers about one photo, the last of each person."""

    photo: str
    answers: Sequence[ReviewAnswer]

    @property
    def label(self) -> str:
        """The class id that the last person saw."""
        return self.answers[-1].label

    @property
    def class_ids(self) -> list[str]:
        """The classes named by those who decided."""
        return [answer.class_id for answer in self.answers if answer.class_id is not None]

    @cached_property
    def class_id(self) -> str | None:
        """The class that more than half of those who decided name; None while the photo is open."""
        counts = Counter(self.class_ids)
        return next((name for name, count in counts.items() if 2 * count > counts.total()), None)

    @property
    def wrong(self) -> bool:
        """Whether the label is known to be wrong."""
        return self.class_id not in (None, self.label)

    @property
    def order(self) -> str:
        """The order of the review that drew the photo: random if any of them was."""
        orders = [answer.order for answer in self.answers]
        return RANDOM if RANDOM in orders else orders[-1]

    @property
    def at_random(self) -> bool:
        """Whether a random review drew the photo, or nobody says which."""
        return self.order in (RANDOM, "")


def verdicts_of(files: Iterable[Sequence[ReviewAnswer]]) -> dict[str, Verdict]:
    """The verdict on each photo that the files name; a person's later answer replaces an earlier.

    Example:
        >>> ann = ReviewAnswer(photo="a.jpg", label="x", answer="confirmed", by="ann")
        >>> bob = ReviewAnswer(
        ...     photo="a.jpg", label="x", answer="corrected", corrected="y", by="bob"
        ... )
        >>> verdicts_of([[ann]])["a.jpg"].class_id, verdicts_of([[ann], [bob]])["a.jpg"].class_id
        ('x', None)
    """
    answers: dict[str, dict[str, ReviewAnswer]] = {}
    for answer in (answer for file in files for answer in file):
        people = answers.setdefault(answer.photo, {})
        people.pop(answer.by, None)  # so that the last answer stands last
        people[answer.by] = answer
    return {
        photo: Verdict(photo=photo, answers=list(people.values()))
        for photo, people in answers.items()
    }


def merged_table(verdicts: Iterable[Verdict]) -> Table:
    """One row for each photo, in the columns of a review; an open photo is undecided."""
    rows = []
    for verdict in verdicts:
        word = UNDECIDED if verdict.class_id is None else CORRECTED if verdict.wrong else CONFIRMED
        rows.append(
            {
                "photo": verdict.photo,
                "label": verdict.label,
                "answer": word,
                "corrected": (verdict.class_id or "") if verdict.wrong else "",
                "by": "+".join(answer.by for answer in verdict.answers),
                "split": verdict.answers[-1].split,
                "order": verdict.order,
            }
        )
    return {name: [row[name] for row in rows] for name in COLUMNS}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the answers say of the labels.

    The rate of wrong labels is measured on photos of the random sample that a random review drew,
    or on all of it where all is decided: a list that begins with the most doubtful photos would
    make it too high.
    """

    photos: int  # answered in any way
    decided: int  # of them confirmed or corrected
    wrong: int  # of them corrected
    open: Sequence[str]  # photos that are undecided, or that people disagree about
    shared: int  # photos that two people or more decided
    agreed: int  # of them those on which all name the same class
    sample: int  # photos of the random sample
    sample_decided: int
    sample_wrong: int
    ci95: tuple[float, float] | None  # of the rate of wrong labels; None without a decided photo

    @property
    def wrong_rate(self) -> float | None:
        """The share of wrong labels among the decided photos of the random sample."""
        return self.sample_wrong / self.sample_decided if self.sample_decided else None

    @property
    def agreement(self) -> float | None:
        """The share of the photos decided by two or more on which they agree."""
        return self.agreed / self.shared if self.shared else None

    @classmethod
    def of(
        cls,
        verdicts: Mapping[str, Verdict],
        sample: Sequence[str],
        observations: Ints | None = None,
    ) -> Self:
        """Sum up; ``sample`` are the photos of the random sample, with the observation of each.

        The interval is Wilson's, for as many independent photos as those of the observations are
        worth.
        """
        decided = {name: item for name, item in verdicts.items() if item.class_id is not None}
        named = (verdict.class_ids for verdict in verdicts.values())
        shared = [class_ids for class_ids in named if len(class_ids) > 1]
        rows = _rows_at_random(sample, decided)
        wrong = np.array([decided[sample[row]].wrong for row in rows], dtype=np.bool_)
        return cls(
            photos=len(verdicts),
            decided=len(decided),
            wrong=sum(verdict.wrong for verdict in decided.values()),
            open=list(filterfalse(decided.__contains__, verdicts)),
            shared=len(shared),
            agreed=[*map(len, map(set, shared))].count(1),
            sample=len(sample),
            sample_decided=len(rows),
            sample_wrong=int(wrong.sum()),
            ci95=_interval(wrong, observations, rows),
        )

    def figures(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "photos": self.photos,
            "decided": self.decided,
            "wrong": self.wrong,
            "wrong_rate": {
                "value": self.wrong_rate,
                "ci95": self.ci95,
                "rows": self.sample_decided,
                "sample": self.sample,
            },
            "agreement": {"value": self.agreement, "agreed": self.agreed, "rows": self.shared},
            "open": list(self.open),
        }


def _rows_at_random(sample: Sequence[str], decided: Mapping[str, Verdict]) -> list[int]:
    """The decided photos of a random sample that it drew, or all where every one is decided."""
    whole = decided.keys() >= {*sample}
    at_random = {name for name, item in decided.items() if whole or item.at_random}
    return [row for row, name in enumerate(sample) if name in at_random]


def _interval(
    wrong: Bools, observations: Ints | None, rows: Sequence[int]
) -> tuple[float, float] | None:
    if not wrong.size:
        return None
    effective = effective_rows(wrong, None if observations is None else observations[rows])
    return wilson(int(wrong.sum()), wrong.size, effective=effective)


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
    return with_bar(partial(_picture, photos), range(len(photos)), "thumbnails")


def _picture(photos: Split, row: int) -> dict[str, str]:
    """The photo as a small JPEG, or why there is none."""
    try:
        content = plain_jpeg(photos.read(row), side=_SIDE, quality=_QUALITY)
    except (OSError, ImageError) as error:
        return {"fault": f"This photo cannot be shown: {reason_of(error)}"}
    return {"src": f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"}


def _text(name: str) -> str:
    return files("florilege.label_review").joinpath(name).read_text("utf-8")


def _product_style() -> str:
    return files("florilege.server").joinpath("web", "style.css").read_text("utf-8")


def _hash(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""What the answers of several people say together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse
from typing import Any

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
from florilege.tables import Table


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

    The rate of wrong labels is measured on photos of the random sample alone: a list that begins
    with the most doubtful photos would make it too high.
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


def summary(
    verdicts: Mapping[str, Verdict], sample: Sequence[str], plants: Ints | None = None
) -> Summary:
    """Sum up; ``sample`` are the photos of the random sample, ``plants`` the plant of each.

    The interval is Wilson's, for as many independent photos as those of the plants are worth.
    """
    decided = {name: verdict for name, verdict in verdicts.items() if verdict.class_id is not None}
    named = (verdict.class_ids for verdict in verdicts.values())
    shared = [class_ids for class_ids in named if len(class_ids) > 1]
    rows = [row for row, name in enumerate(sample) if name in decided]
    wrong = np.array([decided[sample[row]].wrong for row in rows], dtype=np.bool_)
    return Summary(
        photos=len(verdicts),
        decided=len(decided),
        wrong=sum(verdict.wrong for verdict in decided.values()),
        open=list(filterfalse(decided.__contains__, verdicts)),
        shared=len(shared),
        agreed=[*map(len, map(set, shared))].count(1),
        sample=len(sample),
        sample_decided=len(rows),
        sample_wrong=int(wrong.sum()),
        ci95=_interval(wrong, plants, rows),
    )


def _interval(wrong: Bools, plants: Ints | None, rows: Sequence[int]) -> tuple[float, float] | None:
    if not wrong.size:
        return None
    effective = effective_rows(wrong, None if plants is None else plants[rows])
    return wilson(int(wrong.sum()), wrong.size, effective=effective)

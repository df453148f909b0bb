"""What ``--label-noise`` says of wrong labels: a rate, or the answers of people in a review."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

from florilege.calibration.conformal import binomial
from florilege.calibration.intervals import effective_rows, wilson
from florilege.calibration.photo_groups import observation_numbers
from florilege.calibration.rules import LabelNoise, NoiseKind, NoisyLabels, parse_label_noise
from florilege.calibration.sets import Ints
from florilege.data.corrections import (
    RANDOM,
    ReviewAnswer,
    answers_of,
    is_review,
    own_names,
    refuse_lines,
)
from florilege.data.records import Split
from florilege.data.sources import list_source
from florilege.errors import DataError, count_of, first, repeated
from florilege.models.classes import ClassTable, plain_id
from florilege.tables import read_numbered_table

COLUMNS = ("photo", "label", "answer", "corrected")
_UNLIKELY = 1e-3  # probability of so many corrections within a genus, if errors are even


def noisy_labels(
    text: str | None,
    classes: ClassTable,
    data: str,
    photos: Split,
    say: Callable[[str], None] = lambda _: None,
) -> NoisyLabels | None:
    """The assumption for the photos of a split; None for no text, or a rate of 0.

    ``say`` is told which photos of a review the split lacks.

    Raises:
        DataError: A class has no genus or no single group, every class is alone in its group, or a
            review does not fit the photos or the kind of noise.
    """
    kind, amount = parse_label_noise(text)
    if amount == 0:
        return None
    names = _groups(kind, classes, data)
    _, groups = np.unique(names, return_inverse=True)
    if np.unique(groups).size == len(classes):
        raise DataError(f"every class is alone in its {kind}, so no label can be wrong within it")
    if isinstance(amount, float):
        return NoisyLabels(noise=LabelNoise.of(kind, amount), groups=groups)
    noise = _of_review(amount, kind, groups, classes, photos, say)
    return NoisyLabels(noise=noise, groups=groups)


def _groups(kind: NoiseKind, classes: ClassTable, data: str) -> Sequence[str]:
    """The name of each class's group."""
    if kind == "uniform":
        return [""] * len(classes)
    if kind == "genus":
        names = [info.genus_name for info in classes]
    else:
        groups_of = list_source(data, splits=[]).groups
        names = ["".join(groups_of[name]) if len(groups_of.get(name, ())) == 1 else ""
                 for name in classes.ids]  # fmt: skip
    unknown = [name for name, group in zip(classes.ids, names, strict=True) if not group]
    if unknown:
        where = (
            "give every class a genus with `florilege bundle set-names`" if kind == "genus"
            else "name one group for each class in a column 'group' of the data or classes.csv"
        )  # fmt: skip
        raise DataError(f"no {kind} is known for these classes: {first(unknown)}; {where}")
    return names


def _of_review(
    path: Path,
    kind: NoiseKind,
    groups: Ints,
    classes: ClassTable,
    photos: Split,
    say: Callable[[str], None],
) -> LabelNoise:
    """The rate, with its 95 % interval, from the photos of the split that were reviewed."""
    before, after, observations = _answers(path, classes, photos, say)
    if kind == "uniform":
        inside = (after != before) & (after >= 0)
        _refuse_genus(path, before[inside], after[inside], classes)
    try:
        return noise_of_review(kind, before, after, groups, observations)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def noise_of_review(
    kind: NoiseKind, before: Ints, after: Ints, groups: Ints, observations: Ints | None = None
) -> LabelNoise:
    """The rate, with its 95 % interval, from labels and true classes of photos drawn at random.

    Args:
        kind: Where a replaced label is drawn from.
        before, after: Label and true class of each photo, ``(photos,)``; -1 for a class that is not
            among those of the bundle.
        groups: The group of each class, ``(classes,)``.
        observations: The observation of each photo, whose labels may be wrong together; None if
            unknown.

    Raises:
        ValueError: The photos cannot tell a rate, or every label is wrong.
    """
    sizes, changed = np.bincount(groups)[groups], after != before
    inside = changed & (after >= 0) & (groups[after] == groups[before])
    # A label that was replaced is that of the true class after all in one case of its group's size.
    visible = float((1 - 1 / sizes[before]).mean())
    if not visible:
        raise ValueError(f"every reviewed photo is of a class alone in its {kind}")
    rows, wrong = before.size, int(inside.sum())
    effective = effective_rows(inside, observations)
    low, high = (end / visible for end in wilson(wrong, rows, effective=effective))
    rate = wrong / rows / visible
    if rate >= 1:
        raise ValueError(f"{wrong} of {rows} labels are wrong, which leaves none to use")
    return LabelNoise(
        kind=kind,
        rate=rate,
        low=low,
        # Below 1, also after a review of a few photos: no share can be corrected for a rate of 1.
        high=min(high, (1 + rate) / 2),
        source="review",
        reviewed=rows,
        unexplained=int(changed.sum()) - wrong,
    )


def _answers(
    path: Path, classes: ClassTable, photos: Split, say: Callable[[str], None]
) -> tuple[Ints, Ints, Ints | None]:
    """Label, true class and plant of each photo that was decided; -1 for a class not listed."""
    answers = _decided(path, photos, say)
    ids = classes.ids_of(
        {name for answer in answers for name in (answer.label, answer.class_id or "")}
    )

    def index_of(text: str | None) -> int:
        return classes.index_of.get(ids.get(text or "", ""), -1)

    row_of = {name: row for row, name in enumerate(photos.names)}
    rows = [row_of[answer.photo] for answer in answers]
    before = np.array([index_of(answer.label) for answer in answers])
    after = np.array([index_of(answer.class_id) for answer in answers])
    refuse_lines(
        path,
        f"photos with another label in {photos.name} by now",
        compress(answers, before != photos.labels[rows]),
        "; calibrate with the labels that were reviewed, or with corrected ones and no review",
    )
    observations = observation_numbers(photos.observations)
    return before, after, None if observations is None else observations[rows]


def _decided(path: Path, photos: Split, say: Callable[[str], None]) -> list[ReviewAnswer]:
    """The answers about photos of the split that are decided, one for each photo."""
    names = set(photos.names)
    reviewed = _review(path, names)
    answers = [answer for answer in reviewed if answer.photo in names]
    outside = sorted({answer.photo for answer in reviewed} - names)
    decided = _of_sample(path, answers, len(names))
    if not decided:
        raise DataError(
            f"{path} decides no photo of {photos.name}, whose names look like {photos.names[0]!r}"
        )
    if outside:
        say(
            f"{photos.name} lacks {count_of(len(outside), 'photo')} of {path}, left out of the "
            f"rate: {first(outside)}"
        )
    twice = set(repeated([answer.photo for answer in decided]))
    several = [answer for answer in decided if answer.photo in twice]
    remedy = "; `florilege data review --merge` makes one of them"
    refuse_lines(path, "photos with several answers", several, remedy)
    return decided


def _of_sample(path: Path, decided: list[ReviewAnswer], photos: int) -> list[ReviewAnswer]:
    """The answers about photos drawn at random, or all where every photo is decided."""
    if len({answer.photo for answer in decided}) == photos:
        return decided
    sample = [answer for answer in decided if answer.order in ("", RANDOM)]
    if decided and not sample:
        raise DataError(
            f"{path} was ordered by {decided[0].order}: labels that are not drawn at random tell "
            "no rate; use the answers to a page of `florilege data review --order random`"
        )
    return sample


def _review(path: Path, names: Collection[str]) -> list[ReviewAnswer]:
    """The decided answers of a file, with the photos' names in the split, if it has them."""
    table, lines = read_numbered_table(path)
    if not is_review(table) or "label" not in table:
        raise DataError(f"{path} is no review: it lacks the columns {', '.join(COLUMNS)}")
    name_of = own_names(names)
    return [
        replace(answer, photo=name_of(answer.photo) or answer.photo)
        for answer in answers_of(path, table, lines)
        if answer.class_id is not None
    ]


def _refuse_genus(path: Path, before: Ints, after: Ints, classes: ClassTable) -> None:
    """Raise DataError where corrections stay within the genus far more often than by chance."""
    names = [plain_id(info.genus_name) for info in classes]
    if not before.size or not all(names):
        return
    _, genera = np.unique(names, return_inverse=True)
    others = float((np.bincount(genera)[genera][before] - 1).mean() / max(1, len(classes) - 1))
    within = int((genera[before] == genera[after]).sum())
    if 0 < others < 1 and binomial(before.size, others)[within:].sum() < _UNLIKELY:
        raise DataError(
            f"{path}: {within} of {before.size} corrections stay within the genus, where labels "
            f"drawn from all classes would be for {others:.1%}: use --label-noise genus:{path}"
        )

"""From species to the genus and family they share."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from florilege.models.classes import ClassInfo
from florilege.server.schemas import Rollup

Floats = NDArray[np.float64]


def roll_up(classes: Sequence[ClassInfo], scores: Floats, members: Sequence[int]) -> list[Rollup]:
    """The genera, then the families, of the classes in a set, best first.

    The score of a group is its share of the ``scores`` of all ``classes``, ``(classes,)``, none
    negative: with softmax the plain sum, with sigmoid, whose scores do not sum to one, it stays
    between 0 and 1. ``members`` are the indices of the classes in the set.
    """
    return [
        *_groups("genus", [item.genus for item in classes], scores, members),
        *_groups("family", [item.family for item in classes], scores, members),
    ]


def _groups(
    rank: Literal["genus", "family"],
    names: list[str | None],
    scores: Floats,
    members: Sequence[int],
) -> list[Rollup]:
    inside = {names[index] for index in members}
    total = float(scores.sum()) or 1.0
    sums = dict.fromkeys(inside, 0.0)
    for name, score in zip(names, scores.tolist(), strict=True):
        if name in sums:
            sums[name] += score
    groups = [
        Rollup(
            rank=rank,
            name=name,
            score=min(1.0, sums[name] / total),
            covers_set=inside == {name},
        )
        for name in inside
        if name is not None
    ]
    return sorted(groups, key=lambda group: (-group.score, group.name))

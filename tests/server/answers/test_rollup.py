"""Genus and family of a set."""

import numpy as np
import pytest

from florilege.models.classes import ClassInfo, ClassTable
from florilege.server.answers.answer import _roll_up

CLASSES = ClassTable(
    tuple(
        ClassInfo(id=str(i), scientific_name=f"s{i}", genus=genus, family=family)
        for i, (genus, family) in enumerate(
            [("Rosa", "Rosaceae"), ("Rosa", "Rosaceae"), ("Malus", "Rosaceae"), (None, None)]
        )
    )
)


@pytest.mark.parametrize(
    ("scores", "members", "expected"),
    [
        # of all classes of a group, not only of those in the set
        ([0.5, 0.2, 0.2, 0.1], [0], ["genus Rosa 0.7 covers", "family Rosaceae 0.9 covers"]),
        # a group covers the set if every member belongs to it
        (
            [0.2, 0.1, 0.6, 0.1],
            [2, 0],
            ["genus Malus 0.6", "genus Rosa 0.3", "family Rosaceae 0.9 covers"],
        ),
        # a class without a genus stops others from covering the set
        ([0.4, 0.1, 0.1, 0.4], [0, 3], ["genus Rosa 0.5", "family Rosaceae 0.6"]),
        # sigmoid scores give shares that stay below one
        (
            [0.9, 0.9, 0.9, 0.3],
            [0, 1, 2],
            ["genus Rosa 0.6", "genus Malus 0.3", "family Rosaceae 0.9 covers"],
        ),
        ([0.0] * 4, [], []),
        ([0.0] * 4, [0], ["genus Rosa 0 covers", "family Rosaceae 0 covers"]),
    ],
)
def test_groups_have_the_share_of_all_their_classes(
    scores: list[float], members: list[int], expected: list[str]
) -> None:
    groups = _roll_up(CLASSES, np.array(scores), members)
    assert [
        f"{group.rank} {group.name} {group.score:.12g}" + " covers" * group.covers_set
        for group in groups
    ] == expected

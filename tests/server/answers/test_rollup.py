"""Genus and family of a set."""

import numpy as np
import pytest

from florilege.models.classes import ClassInfo, ClassTable
from florilege.server.answers.answer import roll_up

CLASSES = ClassTable(
    tuple(
        ClassInfo(id=str(i), scientific_name=f"s{i}", genus=genus, family=family)
        for i, (genus, family) in enumerate(
            [("Rosa", "Rosaceae"), ("Rosa", "Rosaceae"), ("Malus", "Rosaceae"), (None, None)]
        )
    )
)


def test_a_genus_holds_the_scores_of_all_its_classes_not_only_of_those_in_the_set() -> None:
    genus, family = roll_up(CLASSES, np.array([0.5, 0.2, 0.2, 0.1]), [0])
    assert (genus.rank, genus.name, genus.covers_set) == ("genus", "Rosa", True)
    assert genus.score == pytest.approx(0.7)
    assert (family.rank, family.name, family.covers_set) == ("family", "Rosaceae", True)
    assert family.score == pytest.approx(0.9)


def test_a_group_covers_the_set_only_if_every_member_belongs_to_it() -> None:
    groups = roll_up(CLASSES, np.array([0.2, 0.1, 0.6, 0.1]), [2, 0])
    assert [(g.name, g.covers_set) for g in groups] == [
        ("Malus", False),
        ("Rosa", False),
        ("Rosaceae", True),
    ]


def test_a_class_without_genus_stops_others_from_covering_the_set() -> None:
    groups = roll_up(CLASSES, np.array([0.4, 0.1, 0.1, 0.4]), [0, 3])
    assert [(g.name, g.covers_set) for g in groups] == [("Rosa", False), ("Rosaceae", False)]


def test_sigmoid_scores_give_shares_that_stay_below_one() -> None:
    groups = roll_up(CLASSES, np.array([0.9, 0.9, 0.9, 0.3]), [0, 1, 2])
    assert [round(g.score, 6) for g in groups] == [0.6, 0.3, 0.9]


def test_an_empty_set_and_scores_of_zero_give_no_groups_and_no_division_by_zero() -> None:
    assert roll_up(CLASSES, np.zeros(4), []) == []
    assert [g.score for g in roll_up(CLASSES, np.zeros(4), [0])] == [0.0, 0.0]

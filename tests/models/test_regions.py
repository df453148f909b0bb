"""Occurrences: shares by region and month against a slow loop, and what a request may ask."""

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.models.regions import (
    NEIGHBOUR,
    PSEUDO_RECORDS,
    Occurrences,
    Place,
    cell_name,
    month_of,
)
from tests.models.bundles import npy_of_shape

ROWS = [  # region, month, class, weight
    ("south", 6, 0, 30.0),
    ("south", 7, 0, 10.0),
    ("south", 1, 1, 8.0),
    ("south", 0, 2, 24.0),
    ("north", 6, 1, 50.0),
    ("north", 12, 2, 5.0),
    ("north", 0, 0, 1.0),
]
CLASSES = 4  # the last one was never recorded


def table(rows: list[tuple[str, int, int, float]] = ROWS) -> Occurrences:
    return Occurrences.of(*map(list, zip(*rows, strict=True)), classes=CLASSES)


def slow_counts(region: str, month: int | None) -> list[float]:
    result = [0.0] * CLASSES
    for where, when, index, weight in ROWS:
        if where != region:
            continue
        if month is None:
            result[index] += weight
        elif when == 0:
            result[index] += weight * (1 + 2 * NEIGHBOUR) / 12
        elif when == month:
            result[index] += weight
        elif when in ((month % 12) + 1, ((month - 2) % 12) + 1):
            result[index] += weight * NEIGHBOUR
    return result


def slow_lift(region: str, month: int | None) -> list[float]:
    totals = [sum(w for *_, index, w in ROWS if index == c) for c in range(CLASSES)]
    overall = [(total + 1) / (sum(totals) + CLASSES) for total in totals]
    share = overall
    for when in [None] if month is None else [None, month]:
        counts = slow_counts(region, when)
        n = sum(counts) + PSEUDO_RECORDS
        share = [(c + PSEUDO_RECORDS * s) / n for c, s in zip(counts, share, strict=True)]
    lifts = [math.log(s / o) for s, o in zip(share, overall, strict=True)]
    return [lift if total else 0.0 for lift, total in zip(lifts, totals, strict=True)]


@pytest.mark.parametrize("region", ["south", "north", "nowhere"])
@pytest.mark.parametrize("month", range(13))
def test_counts_and_lifts_are_those_of_a_slow_loop(region: str, month: int) -> None:
    occurrences = table()
    assert occurrences.counts(region, month).tolist() == pytest.approx(
        slow_counts(region, month or None)
    )
    expected = slow_lift(region, month or None) if occurrences.knows(region) else [0.0] * CLASSES
    assert occurrences.log_lift(Place(region, month)).tolist() == pytest.approx(expected, abs=1e-12)


def test_a_class_is_in_range_where_it_was_recorded_at_that_season() -> None:
    occurrences = table()
    assert occurrences.in_range(Place("south")) == [True, True, True, None]
    assert occurrences.in_range(Place("south", 7)) == [True, False, True, None]
    assert occurrences.in_range(Place("south", 12)) == [False, True, True, None]
    assert occurrences.in_range(Place("nowhere", 7)) == [None] * CLASSES


def test_a_photo_at_its_place_scores_as_bayes_says() -> None:
    """With many records the lift turns the overall posterior into that of the region."""
    rng = np.random.default_rng(1)
    prior = rng.dirichlet(np.ones(CLASSES - 1), size=2)  # by region
    rows = [
        (name, 0, c, 1e7 * prior[r, c])
        for r, name in enumerate(["north", "south"])
        for c in range(CLASSES - 1)
    ]
    likelihood = rng.random(CLASSES - 1)
    overall = prior.mean(axis=0) * likelihood
    here = prior[1] * likelihood
    logits = np.log(overall) + table(rows).log_lift(Place("south"))[:-1]
    scores = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(scores, here / here.sum(), rtol=1e-4)


def test_a_table_survives_its_bytes() -> None:
    copy = Occurrences.of_bytes(table().to_bytes())
    assert copy.regions == ("north", "south")
    assert copy.to_bytes() == table().to_bytes() == table(ROWS[::-1]).to_bytes()


def _saved(*arrays: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array, allow_pickle=True)
    return file.getvalue()


ONE = np.array([0])
GOOD: list[NDArray[Any]] = [
    *(np.array(["north"]), np.array(2), ONE.astype(np.int32), ONE.astype(np.int8)),
    *(ONE.astype(np.int32), np.array([1.0])),
]


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"", table().to_bytes()[:300], b"x" * 500, b"PK\x03\x04" + bytes(50)),
        b"PK\x05\x06" + bytes(18),  # an empty zip
        *(npy_of_shape(*shape) for shape in ((2**44,), (2**62, 4), (-1,), (2**33,))),
        _saved(np.array([{}]), *GOOD[1:]),  # a pickle
        _saved(np.array([1.0]), *GOOD[1:]),
        _saved(np.array("north"), *GOOD[1:]),
        _saved(GOOD[0], np.array([2]), *GOOD[2:]),
        _saved(*GOOD[:4], np.array([0.5]), GOOD[5]),
        _saved(*GOOD[:5], np.array([1j])),
        _saved(*GOOD[:5], np.zeros(1, [("a", "<f8")])),
    ],
)
def test_what_is_no_table_is_refused(damaged: bytes) -> None:
    assert Occurrences.of_bytes(_saved(*GOOD)).regions == ("north",)
    with pytest.raises(ValueError, match="not a table of occurrences"):
        Occurrences.of_bytes(damaged)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("south", 13, 0, 1.0), "month"),
        (("south", -1, 0, 1.0), "month"),
        (("south", 1, CLASSES, 1.0), "class_index"),
        (("south", 1, 0, 0.0), "weight"),
        (("south", 1, 0, math.nan), "weight"),
    ],
)
def test_values_out_of_range_are_refused(row: tuple[str, int, int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table([*ROWS, row])


@pytest.mark.parametrize(
    ("place", "cell"),
    [
        ((43.61, 3.88, 1), "cell1_43_3"),
        ((-43.61, -3.88, 1), "cell1_-44_-4"),
        ((90, 180, 5), "cell5_90_180"),
        ((0.7, 0.2, 0.25), "cell0.25_0.5_0"),
        ((-0.0, -0.0, 1), "cell1_0_0"),
    ],
)
def test_a_place_lies_in_the_cell_south_west_of_it(
    place: tuple[float, float, float], cell: str
) -> None:
    assert cell_name(*place) == cell
    degrees = table([(cell, 1, 0, 1.0)]).cell_degrees
    assert degrees == place[2]


def test_named_regions_and_mixed_grids_have_no_cell() -> None:
    assert table().cell_degrees is None
    assert table([("cell1_0_0", 1, 0, 1.0), ("cell2_0_0", 1, 0, 1.0)]).cell_degrees is None
    for name in ("cell0_0_0", "cell0.0_0_0", "cell._0_0", "cell1.2.3_0_0"):  # no size of a cell
        assert table([(name, 1, 0, 1.0)]).cell_degrees is None
    with pytest.raises(ValueError, match="latitude"):
        cell_name(91, 0, 1)


def test_places_are_drawn_as_often_as_they_were_recorded() -> None:
    labels = np.array([0] * 4000 + [3] * 4000)
    places = table().draw(labels)
    share = np.mean([place == Place("south", 6) for place in places[:4000]])
    assert share == pytest.approx(30 / 41, abs=0.03)
    assert {place.region for place in places[:4000]} == {"north", "south"}
    share = np.mean([place == Place("south", 6) for place in places[4000:]])  # of any class
    assert share == pytest.approx(30 / 128, abs=0.03)
    assert places == table().draw(labels) != table().draw(labels, seed=1)


def test_entries_in_another_order_are_refused() -> None:
    table = Occurrences.of(["hills", "coast"], [1, 1], [0, 1], [1, 1], classes=2)
    with pytest.raises(ValueError, match="order of their regions"):
        replace(table, region=table.region[::-1])


@pytest.mark.parametrize("text", ["0", "13", "", "June", "2026", "2026-00-01", "2026-009",
                                  "06-12-2026", "6-3", "009"])  # fmt: skip
def test_a_month_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="month"):
        month_of(text)

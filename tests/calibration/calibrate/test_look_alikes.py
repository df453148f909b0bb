"""Classes that share sets, counted beside slow loops."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from florilege.calibration import calibrate as counting
from florilege.calibration.calibrate import (
    _FEWEST_PHOTOS,
    _MOST_LOOK_ALIKES,
    _PairCounts,
    look_alikes,
)
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, SplitOutputs
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.view import PLAIN
from tests.calibration.record.test_record import fitted

CLASSES, ROWS = 9, 400


Measured = tuple[CalibrationRecord, SplitOutputs]


def shared(measured: Measured) -> dict[int, list[int]]:
    record, outputs = measured
    nothing: Any = None  # of a bundle and its photos
    return look_alikes(BundleOutputs(nothing, record, outputs, nothing))


@pytest.fixture(scope="module")
def measured() -> Measured:
    random = np.random.default_rng(5)
    labels = np.sort(random.integers(0, CLASSES, ROWS))
    logits = random.normal(size=(ROWS, CLASSES)).astype(np.float32)
    logits[np.arange(ROWS), labels] += 2
    logits[np.arange(ROWS), (labels + 1) % CLASSES] += (
        labels / 4
    )  # neighbours, some more than others
    outputs = SplitOutputs({"sccp": CLASSES}, labels)
    outputs.append({"sccp": logits})
    record = fitted(
        {"sccp": logits},
        labels,
        class_counts=np.full(CLASSES, 10),
        classes=CLASSES,
        ks=(3.0,),
        score_kind="softmax",
    )
    return record, outputs


def by_hand(record: CalibrationRecord, outputs: SplitOutputs, largest: int) -> dict[int, list[int]]:
    """The look-alikes of each class, pair by pair and photo by photo."""
    point, counts = record.point(PLAIN, record.setting("average_k")), Counter[frozenset[int]]()
    for (logits,), labels in outputs.blocks("sccp"):
        for inside, label in zip(point.sets(record.scores(logits)), labels.tolist(), strict=True):
            members = np.flatnonzero(inside).tolist()
            if len(members) <= largest:
                counts.update(frozenset((label, each)) for each in members if each != label)
    pairs = sorted(
        (pair for pair in combinations(range(CLASSES), 2)),
        key=lambda pair: (-counts[frozenset(pair)], pair),
    )
    result = dict[int, list[int]]()
    for pair in (pair for pair in pairs if counts[frozenset(pair)] >= _FEWEST_PHOTOS):
        for own, other in (pair, pair[::-1]):
            result.setdefault(own, []).append(other)
    return {own: row[:_MOST_LOOK_ALIKES] for own, row in result.items()}


@pytest.mark.parametrize("largest", [20, 3])
def test_the_classes_that_share_most_sets_come_first(
    measured: Measured, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_LARGEST_SET", largest)
    result = shared(measured)
    assert result == by_hand(*measured, largest)
    assert len(result) == CLASSES
    assert any(len(row) == _MOST_LOOK_ALIKES for row in result.values())
    assert 8 in result[7]


def test_sets_of_one_class_confuse_nothing(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_LARGEST_SET", 1)
    rest = shared(measured)
    # a set of one wrong class confuses it with the right one
    assert rest == by_hand(*measured, 1)
    monkeypatch.setattr(counting, "_FEWEST_PHOTOS", ROWS)
    assert shared(measured) == {}


def test_one_photo_is_an_accident_and_two_are_none() -> None:
    counts = _PairCounts(4)
    sets = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]], dtype=bool)
    counts.update(sets, np.array([0, 0, 1, 3]))
    assert counts.by_class() == {}
    counts.update(sets[[2]], np.array([2]))  # the other way round
    assert counts.by_class() == {1: [2], 2: [1]}

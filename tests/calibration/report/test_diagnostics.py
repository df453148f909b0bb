"""What is said of single photos, pairs and scores agrees with a loop over the whole array."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.report.diagnostics import (
    MOST_LARGE,
    MOST_MEMBERS,
    MOST_PAIRS,
    SHOWN_MEMBERS,
    Diagnostics,
    diagnose,
)
from florilege.calibration.scores import scores
from florilege.calibration.view import PLAIN
from tests.calibration.estimates import hits_of
from tests.calibration.record.test_record import fitted, make_record, sample_logits, scoring_of
from tests.calibration.simulation import CLASSES


def sets_and_scores(
    record: CalibrationRecord,
) -> tuple[list[set[int]], list[list[float]], list[int]]:
    """Every set written out, every score, and the labels."""
    logits, labels = sample_logits()
    values = scores(logits, record.score_kind)
    inside = record.point(PLAIN, record.setting("average_k")).sets(values)
    return [set(np.flatnonzero(row).tolist()) for row in inside], values.tolist(), labels.tolist()


def test_the_photos_that_were_calibrated_on_repeat_the_record(
    record: CalibrationRecord, findings: Diagnostics
) -> None:
    for rows, rule in ((findings.average_k, "average_k"), (findings.top_k, "top_k")):
        assert [row.value for row in rows] == record.values(rule)
        points = [record.point(PLAIN, record.setting(rule, row.value)) for row in rows]
        assert [row.size for row in rows] == [point.row.size for point in points]
        assert [row.hit_rate for row in rows] == [hits_of(point).value for point in points]


def test_sizes_and_hits_of_the_default_k(record: CalibrationRecord, findings: Diagnostics) -> None:
    sets, _, labels = sets_and_scores(record)
    assert findings.k == 3
    assert findings.sizes.tolist() == [len(members) for members in sets]
    assert findings.hits.tolist() == [y in members for y, members in zip(labels, sets, strict=True)]


def test_scores_are_gathered_in_tenths(record: CalibrationRecord, findings: Diagnostics) -> None:
    _, values, labels = sets_and_scores(record)
    every = [(p, c == y) for row, y in zip(values, labels, strict=True) for c, p in enumerate(row)]
    best = [(max(row), row.index(max(row)) == y) for row, y in zip(values, labels, strict=True)]
    for result, expected in ((findings.all_scores, every), (findings.best_scores, best)):
        for place in range(10):
            inside = [pair for pair in expected if min(int(pair[0] * 10), 9) == place]
            assert result.counts[place] == len(inside)
            assert result.hits[place] == sum(hit for _, hit in inside)
            if inside:
                mean = sum(score for score, _ in inside) / len(inside)
                assert result.mean_scores[place] == pytest.approx(mean)
            else:
                assert np.isnan(result.mean_scores[place])


def test_the_gap_is_the_expected_calibration_error(findings: Diagnostics) -> None:
    best = findings.best_scores
    gaps = [
        count * abs(mean - hits / count)
        for count, mean, hits in zip(best.counts, best.mean_scores, best.hits, strict=True)
        if count
    ]
    assert best.gap == pytest.approx(sum(gaps) / len(findings.hits))


def test_pairs_are_counted_with_labels(record: CalibrationRecord, findings: Diagnostics) -> None:
    sets, values, labels = sets_and_scores(record)
    counts, of_first, of_second = (Counter[tuple[int, int]]() for _ in range(3))
    for members, row, label in zip(sets, values, labels, strict=True):
        best = sorted(members, key=lambda c: (-row[c], c))[:MOST_MEMBERS]
        for pair in combinations(sorted(best), 2):
            counts[pair] += 1
            of_first[pair] += pair[0] == label
            of_second[pair] += pair[1] == label
    expected = sorted(counts, key=lambda pair: (-counts[pair], pair))[:MOST_PAIRS]
    assert [pair.classes for pair in findings.pairs] == expected
    assert len(counts) > MOST_PAIRS
    for result in findings.pairs:
        assert result.sets == counts[result.classes]
        assert result.true == (of_first[result.classes], of_second[result.classes])


def test_the_largest_sets_come_first_with_their_best_members(
    record: CalibrationRecord, findings: Diagnostics
) -> None:
    sets, values, labels = sets_and_scores(record)
    expected = sorted(range(len(sets)), key=lambda row: (-len(sets[row]), row))[:MOST_LARGE]
    assert [large.row for large in findings.largest] == expected
    for large in findings.largest:
        members, row = sets[large.row], values[large.row]
        assert (large.size, large.label) == (len(members), labels[large.row])
        assert large.hit == (large.label in members)
        best = sorted(members, key=lambda c: (-row[c], c))[:SHOWN_MEMBERS]
        assert large.members == tuple((c, row[c]) for c in best)


def test_sets_beyond_the_limits_count_by_their_best_members() -> None:
    sharp = np.eye(CLASSES, dtype=np.float32)[np.arange(600) % CLASSES] * 20
    even = np.zeros((100, CLASSES), dtype=np.float32)
    even[:, :17] = np.linspace(10, 9.5, 17)  # classes 0 to 16, the first of them best
    logits, labels = np.concatenate([sharp, even]), np.full(700, 16)
    heads = {"linear": logits}
    record = fitted(heads, labels, class_counts=None, ks=(3.0,), coverages=(0.9,))
    findings = diagnose(record, scoring_of(heads, labels))
    assert findings.sizes.max() > MOST_MEMBERS
    together = {pair.classes for pair in findings.pairs}
    assert together == {(0, other) for other in range(1, MOST_MEMBERS)} | {(1, 2)}
    assert len(together) == MOST_PAIRS
    assert {len(large.members) for large in findings.largest} == {SHOWN_MEMBERS}


def test_sets_of_at_most_one_class_share_nothing_and_none_is_large() -> None:
    record = make_record(min_size=0)
    logits = np.zeros((4, CLASSES), dtype=np.float32)
    logits[:2, 3] = 20  # two sets of one class and two, all of it even, of none
    findings = diagnose(record, scoring_of({"multi_label": logits}, np.array([3, 4, 5, 3])))
    assert findings.sizes.tolist() == [1, 1, 0, 0]
    assert findings.hits.tolist() == [True, False, False, False]
    assert (findings.pairs, findings.largest) == ((), ())

"""Thresholds from traffic: sizes are restored, hit rates are not."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.monitoring.recalibration import FEWEST_REQUESTS, Traffic
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import NotCalibrated
from florilege.calibration.rejection import RejectionRule, generalised_entropy
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores
from florilege.calibration.view import PLAIN
from tests.calibration.simulation import PRIOR, draw

Logits = NDArray[np.float32]


def photos(
    seed: int, rows: int, prior: NDArray[np.float64] = PRIOR
) -> tuple[Logits, NDArray[np.int64]]:
    sample = draw(np.random.default_rng(seed), rows, prior=prior)
    return np.log(sample.scores).astype(np.float32), sample.labels


def traffic_of(
    logits: Logits, record: CalibrationRecord, judge: RejectionRule | None = None
) -> Traffic:
    def blocks() -> Iterator[Logits]:
        yield from np.array_split(logits[:, np.newaxis], 7)

    return Traffic(requests=blocks, record=record, judge=judge, scoring=record.scoring)


def test_thresholds_are_those_of_all_scores_at_once(record: CalibrationRecord) -> None:
    logits, _ = photos(1, 1500)
    report = traffic_of(logits, record).thresholds()
    assert (report.rows, report.left_out) == (1500, 0)
    assert [new.k for new in report.thresholds] == sorted(record.asked_k)
    values = scores(logits, "softmax")
    for new in report.thresholds:
        rule = calibrate("average_k", values, average_k=new.k)
        assert (new.new_lambda, new.new_size) == (rule.lambda_val, rule.achieved)
        point = record.point(PLAIN, record.setting("average_k", new.k))
        assert new.old_lambda == point.lambda_val
        assert new.old_size == pytest.approx(point.sets(values).sum(axis=1).mean())


def test_under_label_shift_sizes_are_restored_and_hits_are_lost(record: CalibrationRecord) -> None:
    traffic, _ = photos(2, 6000, PRIOR[::-1])
    plain = traffic_of(traffic, record).thresholds(ks=[3])
    assert plain.thresholds[0].old_size > 3.3
    assert plain.thresholds[0].new_size == 3.0
    logits, labels = photos(3, 20_000, PRIOR[::-1])
    values, rows = scores(logits, "softmax"), np.arange(20_000)
    old = record.point(PLAIN, record.setting("average_k", 3))
    hits = []
    for lambda_val in (old.lambda_val, plain.thresholds[0].new_lambda):
        members = replace(old, lambda_val=lambda_val).sets(values)
        hits.append(members[rows, labels].mean())
        if lambda_val != old.lambda_val:
            assert members.sum(axis=1).mean() == pytest.approx(3.0, abs=0.12)
    bar = 3 * np.sqrt(0.2 * 0.8 / 20_000)
    assert hits[1] < hits[0] - bar


def test_photos_of_something_else_move_the_threshold_unless_a_judge_leaves_them_out(
    record: CalibrationRecord,
) -> None:
    ours, strange = photos(4, 3000)[0], 0.05 * photos(5, 600)[0]  # hardly like any species
    validation = generalised_entropy(photos(6, 2000)[0], "softmax")[:, np.newaxis]
    judge = RejectionRule.fit(0.01, validation, head=record.head, score_kind="softmax")
    mixed = np.concatenate([ours, strange])
    clean, fooled, guarded = (
        traffic_of(logits, record, rule).thresholds(ks=[3])
        for logits, rule in ((ours, None), (mixed, None), (mixed, judge))
    )
    assert 600 < guarded.left_out < 600 + 60
    right = clean.thresholds[0].new_lambda
    assert abs(np.log(fooled.thresholds[0].new_lambda / right)) > 0.05
    # about 1 % of ours, the least clear ones, are left out with them
    assert abs(np.log(guarded.thresholds[0].new_lambda / right)) < 0.05


def test_a_photo_just_as_familiar_as_the_limit_is_used(record: CalibrationRecord) -> None:
    logits, _ = photos(6, 700)
    least = generalised_entropy(logits, "softmax")[:, np.newaxis]
    judge = RejectionRule.fit(0.0, least, head=record.head, score_kind="softmax")
    assert traffic_of(logits, record, judge).count() == (700, 0)


def test_few_photos_and_a_k_without_a_threshold_are_refused(record: CalibrationRecord) -> None:
    few, enough = (traffic_of(photos(9, rows)[0], record) for rows in (499, FEWEST_REQUESTS))
    with pytest.raises(ValueError, match=r"499 photos are too few .* 500"):
        few.thresholds()
    assert enough.thresholds().rows == 500
    with pytest.raises(NotCalibrated):
        enough.thresholds(ks=[2.12345])


def test_the_lines_to_approve_say_what_changes(record: CalibrationRecord) -> None:
    lines = traffic_of(photos(8, 800)[0], record).thresholds(ks=[5, 3]).lines()
    assert lines[0] == "800 photos of traffic, 0 more left out as unfamiliar"
    assert lines[1].startswith("K = 3: lambda 0.0")
    assert lines[1].endswith("-> 3.00")
    assert lines[2].startswith("K = 5: ")
    assert lines[2].endswith("-> 5.00")
    assert lines[-1].startswith("nothing was changed")

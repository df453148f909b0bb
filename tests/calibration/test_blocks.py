"""Whatever length the blocks have in which a split is read, a calibration has the same bits."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import florilege.calibration.calibrate.photo_outputs
import florilege.calibration.marginals
import florilege.calibration.sets
import florilege.calibration.threshold
from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.reference import Reference
from florilege.calibration.rejection import UnseenThreshold
from florilege.calibration.settings import CalibrationPlan
from florilege.models.session import FEATURES
from tests.calibration.estimates import UNMET

HEADS = ("multi_label", "sccp")


def split(rows: int, classes: int, dimensions: int) -> SplitOutputs:
    """Photos of two heads with features, some scores equal; two photos of each plant."""
    random = np.random.default_rng(rows + classes)
    labels = random.integers(0, classes, rows)
    columns = dict.fromkeys(HEADS, classes) | {FEATURES: dimensions}
    outputs = {
        name: random.normal(size=(rows, width)).round(1).astype(np.float32)
        for name, width in columns.items()
    }
    for head in HEADS:
        outputs[head][np.arange(rows), labels] += 2
    plants = [str(row // 2) for row in range(rows)]
    result = SplitOutputs(columns, labels, split="val", observations=plants)
    result.append(outputs)
    return result


def fitted(scoring: SplitOutputs, reference: Reference, classes: int) -> CalibrationRecord:
    ks = tuple(k for k in (1.0, 2.0) if k <= classes)
    settings = CalibrationPlan(classes=classes, ks=ks, images=(2,))
    counts: NDArray[np.int64] = np.arange(1, classes + 1)
    record = fit_record(scoring, settings, class_counts=counts, overlap=UNMET, reference=reference)
    return replace(record, created="")


@pytest.mark.parametrize(
    ("rows", "classes", "dimensions"), [(130, 3, 40), (130, 40, 3), (130, 300, 7), (130, 2, 300)]
)
def test_blocks_of_any_length_give_the_same_record(
    monkeypatch: pytest.MonkeyPatch, rows: int, classes: int, dimensions: int
) -> None:
    scoring = split(rows, classes, dimensions)
    training_features = np.random.default_rng(9).normal(size=(20, dimensions))
    reference = Reference.of(training_features, np.arange(20) % 2)
    expected = fitted(scoring, reference, classes)
    four = 4 * max(classes, dimensions)  # rows of whichever is wider, and more of the other
    for at_once, numbers, small in ((44, 1 << 30, 100), (512, four, 7), (512, 1, 1000)):
        monkeypatch.setattr(florilege.calibration.calibrate.photo_outputs, "ROWS_AT_ONCE", at_once)
        monkeypatch.setattr(
            florilege.calibration.calibrate.photo_outputs, "NUMBERS_AT_ONCE", numbers
        )
        monkeypatch.setattr(florilege.calibration.sets, "BLOCK", small)
        monkeypatch.setattr(florilege.calibration.threshold, "BLOCK", small)
        monkeypatch.setattr(florilege.calibration.threshold, "AT_ONCE", small)
        monkeypatch.setattr(florilege.calibration.marginals, "ROWS_AT_ONCE", 1 + small % 5)
        result = fitted(scoring, reference, classes)
        assert replace(result, calibration_id="") == replace(expected, calibration_id="")
    scoring.close()


def test_unseen_classes_are_calibrated_on_photos_compared_with_other_classes() -> None:
    scoring = split(253, 40, 12)
    reference = Reference.of(np.random.default_rng(9).normal(size=(80, 12)), np.arange(80) % 40)
    record = fitted(scoring, reference, 40)
    ((features,),) = ([values for (values,), _ in scoring.blocks(FEATURES)],)
    of_others = reference.nearest_of_others(features, scoring.labels)
    nearest = reference.compare(features)[0]
    assert of_others is not None
    assert (of_others < nearest).any()
    assert record.rejection is not None
    expected = UnseenThreshold.fit(of_others, nearest, scoring.labels, record.asked_coverage)
    assert record.rejection.unseen == expected
    assert len(expected) == 2
    scoring.close()

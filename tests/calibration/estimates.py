"""Figures that a test knows to be there."""

from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import OperatingPoint, _Estimate


def hits_of(point: OperatingPoint) -> _Estimate:
    """The measured hit rate."""
    hits = point.estimates["hit_rate"]
    assert hits is not None
    return hits


def to_expect(record: CalibrationRecord) -> tuple[float, tuple[float, float]]:
    """The hit rate to expect of other photos, and its interval."""
    rate, interval = record.selection.honest_hit_rate, record.selection.honest_ci95
    assert rate is not None
    assert interval is not None
    return rate, interval


UNMET = PhotoOverlap(train_photos=0, selection_photos=0, chose_checkpoint=False)
"""That of photos which the network has not met."""

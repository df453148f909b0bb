"""Figures that a test knows to be there."""

from calibration.record.point import Estimate, OperatingPoint


def hits_of(point: OperatingPoint) -> Estimate:
    """The measured hit rate."""
    assert point.hit_rate is not None
    return point.hit_rate

"""Figures of the calibration record in the shape of the interface."""

from calibration.record.point import Estimate
from server.schemas import Measured


def measured(estimate: Estimate | None) -> Measured | None:
    """A measured figure with its interval; None where it was not measured."""
    if estimate is None:
        return None
    return Measured(
        value=estimate.value, ci95=estimate.ci95, split=estimate.split, rows=estimate.rows
    )

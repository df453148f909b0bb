"""The other sets of a rule for the same photo: what a slider steps through."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.record import CalibrationRecord, OperatingPoint
from florilege.server.schemas import Stop

LARGEST_SET: Final = 75
"""Classes of the largest set on a dial, but for the answer's own: nobody compares more.

With names of usual length and pictures, an answer with so many is just under 20 kB on the wire.
"""
BELOW: Final = 4  # classes beyond the largest set, to show what it leaves out


def dial(
    point: OperatingPoint,
    record: CalibrationRecord,
    scores: NDArray[np.float64],
    *,
    accepted: bool,
    calibrated: bool,
) -> list[Stop]:
    """The sets of the photo at every K (or coverage) of the rule, one stop for each set size.

    There is none for ``class_coverage``: its sets are not nested.

    Many settings give the same set: a stop has the one nearest to that of ``point``, whose own
    size it has itself.

    Args:
        point: The threshold of the answer.
        record: The calibration that it is of.
        scores: Those of the photo, ``(classes,)`` or ``(listed,)``.
        accepted: Whether the photo has a set at all.
        calibrated: Whether the figures hold for this request.
    """
    if point.class_thresholds is not None or not accepted:
        return []
    setting, view = point.setting, point.table.view
    values = record.values(setting.rule, setting.guarantee, view)
    points = [record.point(view, setting._replace(value=value)) for value in values]
    stops = []
    sizes = _sizes(point, points, scores)
    # Values ascend and sets are nested: equal sizes stand side by side, as `groupby` needs them.
    for size, group in groupby(zip(sizes, points, strict=True), lambda pair: pair[0]):
        nearest = min(group, key=lambda pair: abs(pair[1].row.value - point.row.value))[1]
        if size <= LARGEST_SET or nearest.row.value == point.row.value:
            nearest = nearest.rejecting() if point.evidence.rejecting else nearest
            stops.append(_stop(nearest, size, calibrated=calibrated))
    return stops


def _sizes(
    point: OperatingPoint, points: Sequence[OperatingPoint], scores: NDArray[np.float64]
) -> list[int]:
    """The size of the set of each of ``points``, which have the weights of ``point``."""
    if point.top_k is not None:
        return [min(point.top_k or 0, scores.size) for point in points]
    # One sort for all thresholds: 190 sets of 10,000 classes would take 10 ms.
    ordered = np.sort(point.compare(scores))
    lambdas = np.array([point.lambda_val for point in points], dtype=np.float64)
    reached = scores.size - np.searchsorted(ordered, lambdas)  # those that equal one, too
    sizes: list[int] = np.clip(reached, point.min_size, point.max_size or scores.size).tolist()
    return sizes


def _stop(point: OperatingPoint, size: int, *, calibrated: bool) -> Stop:
    figures = {
        **point.estimates,
        "hit_rate_at_size": point.hit_rate_at_size(size),
        "least_coverage": point.least_coverage,
    }
    return Stop.of(point, size=size, **(figures if calibrated else dict.fromkeys(figures)))

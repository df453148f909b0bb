"""Thresholds for lists of classes, from the photos and the logits of these classes only.

Leaving other classes out after scoring would lose their share of the scores, and sets of the same
threshold would shrink. So scores are computed among the classes of a list, and a threshold of its
own brings the mean size back to K.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.threshold_tables import Advance, Block, Source, tabulate
from florilege.calibration.record.schema import CalibratedList, Table
from florilege.calibration.rules import class_weights
from florilege.calibration.scores import logits_among, scores
from florilege.models.class_lists import RegionList

PASSES = 4
"""Passes of :func:`list_tables` over all rows: to choose and to measure, plain and balanced."""


def list_tables(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    single: Source,
    region: RegionList,
    *,
    class_counts: NDArray[np.int64],
    advance: Advance,
) -> tuple[CalibratedList, list[Table]]:
    """Tables of every rule without further guarantees, at the requested K and coverages.

    They are for single photos, from the source ``single``; there are none without photos of the
    list. ``class_counts`` are those of all classes, ``(classes,)``, for the balanced rules. Where K
    exceeds the size of the list, sets hold the whole list.
    """
    classes, labels = np.array(region.classes), outputs.labels
    mask = np.isin(labels, classes)
    listed_labels = labels[mask]
    calibrated = CalibratedList(
        name=region.name,
        classes=region.classes,
        rows=len(listed_labels),
        classes_seen=np.unique(listed_labels).size,
    )

    def blocks() -> Iterator[Block]:
        for (logits,), true in outputs.blocks(single.head):
            list_logits, places = listed(classes, logits, true)
            if len(list_logits):
                yield scores(list_logits, single.score_kind, temperature=single.temperature), places
            advance(len(true))

    if not calibrated.rows:
        advance(PASSES * len(labels))
        return calibrated, []
    plants = None if single.plants is None else single.plants[mask]
    source = replace(
        single, blocks=blocks, rows=calibrated.rows, list_name=region.name, plants=plants
    )
    list_plan = plan.model_copy(update={"classes": len(classes)})  # a K may exceed their number
    weights = class_weights(class_counts[classes], plan.macro_weight)
    tables = tabulate(source, list_plan, plan.compared).tables
    return calibrated, tables + tabulate(source, list_plan, plan.compared, weights=weights).tables


def listed(
    classes: NDArray[np.intp], logits: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The logits of some classes for their photos, and the labels as indices among these classes.

    Args:
        classes: Output indices, ascending, shape ``(listed,)``.
        logits: Shape ``(rows, classes)``.
        labels: Shape ``(rows,)``.

    Example:
        >>> listed(np.array([0, 2]), np.array([[7, 8, 9], [4, 5, 6]]), np.array([1, 2]))
        (array([[4, 6]]), array([1]))
    """
    rows = np.isin(labels, classes)
    return logits_among(logits[rows], classes), np.searchsorted(classes, labels[rows])

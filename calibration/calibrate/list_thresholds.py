"""Thresholds for lists of classes: photos of their classes, and logits of these classes alone.

Leaving other classes out after scoring would leave their share of the scores unused, and sets of
the same threshold would shrink; scored among themselves, the classes of a list take it over, and a
threshold of their own brings the mean size back to K.
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
"""How often :func:`list_tables` reads all rows: the plain and the balanced rules are each chosen
and measured."""


def list_tables(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    single: Source,
    region: RegionList,
    *,
    class_counts: NDArray[np.int64],
    advance: Advance,
) -> tuple[CalibratedList, list[Table]]:
    """Tables of every rule without further guarantees, at the K and coverages asked for.

    They are for single photos with what serves, ``single``. Where no photo is of the list there are
    none. ``class_counts`` are those of all classes, ``(classes,)``, for the balanced rules. At a K
    beyond the list its sets hold all of it.
    """
    classes, labels = np.array(region.classes), outputs.labels
    among = np.isin(labels, classes)
    own = labels[among]
    calibrated = CalibratedList(
        name=region.name, classes=region.classes, rows=len(own), classes_seen=np.unique(own).size
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
    plants = None if single.plants is None else single.plants[among]
    source = replace(
        single, blocks=blocks, rows=calibrated.rows, list_name=region.name, plants=plants
    )
    fewer = plan.among(len(classes))
    weights = class_weights(class_counts[classes], plan.micro_weight)
    tables = tabulate(source, fewer, plan.compared).tables
    return calibrated, tables + tabulate(source, fewer, plan.compared, weights=weights).tables


def listed(
    classes: NDArray[np.intp], logits: NDArray[np.float32], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The photos of some classes, with logits of these alone, and their labels among these.

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

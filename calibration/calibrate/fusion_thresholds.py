"""Thresholds for requests with several photos of one plant."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.threshold_tables import (
    Block,
    Source,
    promised_tables,
    row_of,
    table_of,
    tabulate,
    top_k_rules,
)
from florilege.calibration.fusion import fuse
from florilege.calibration.marginals import LARGEST_K
from florilege.calibration.measurement import Measurement
from florilege.calibration.photo_groups import FEWEST_GROUPS, groups_of
from florilege.calibration.record.schema import Table
from florilege.calibration.rules import RULES
from florilege.calibration.scores import scale_logits

MARGINAL_GROUPS = 2000
"""Groups that ``top_k`` is measured on: its marginals are slow, and it needs no threshold."""


def group_tables(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    single: Source,
    *,
    images: int,
    weights: NDArray[np.float64],
) -> list[Table]:
    """Tables of every rule for groups of ``images`` photos, at the requested K and coverages.

    Groups show one plant where the data name plants, else one species; the tables say which. With
    fewer than 100 groups there are no tables. ``single`` is the source of single photos to serve,
    and ``weights`` are those of the balanced rules, ``(classes,)``. Memory does not grow with
    groups times classes.
    """
    groups = groups_of(outputs.labels, size=images, observations=outputs.observations)
    if len(groups) < FEWEST_GROUPS:
        return []
    rows = np.random.default_rng(0).permutation(groups.rows)  # (groups, images)
    marginal_rows = rows[:MARGINAL_GROUPS]
    source = replace(
        single,
        blocks=lambda: _fused(outputs, rows, source),
        rows=len(rows),
        images=images,
        fusion=RULES["average_k"].fusion,
        made_from=groups.made_from,
        plants=None,
    )
    marginals = replace(source, rows=len(marginal_rows), fusion=RULES["top_k"].fusion)
    ks = plan.compared
    tables = tabulate(source, plan, ks, fixed=False).tables
    tables += tabulate(source, plan, ks, weights=weights).tables
    tables += promised_tables(source, plan, weights)
    fixed = top_k_rules([k for k in ks if k <= LARGEST_K], len(marginal_rows), classes=plan.classes)
    top_k_rows = []
    for rule, k in zip(fixed.rules, fixed.values, strict=True):  # marginals depend on k
        measured = Measurement([rule], plan.classes)
        for values, labels in _fused(outputs, marginal_rows, marginals, k=int(k)):
            measured.update(values, labels)
        top_k_rows.append(row_of(measured, 0, k, marginals.score_kind))
    if top_k_rows:
        tables.append(table_of(marginals, plan, fixed, top_k_rows))
    return tables


def _fused(
    outputs: SplitOutputs, rows: NDArray[np.int64], source: Source, *, k: int | None = None
) -> Iterator[Block]:
    """Blocks of fused scores, one row for each group; ``rows`` of photos, ``(groups, images)``."""
    step = max(1, outputs.rows_at_once(source.head) // rows.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        logits = outputs.rows(source.head, part.reshape(-1)).reshape(*part.shape, -1)
        served = scale_logits(logits, source.temperature)
        fused = fuse(served, score_kind=source.score_kind, fusion=source.fusion, k=k)
        yield fused, outputs.labels[part[:, 0]]

"""The record of a calibration from traffic: new thresholds, and no claim about hits.

What it keeps: the rules whose thresholds need no labels (``average_k`` with its guarantees,
``balanced_average_k`` and ``top_k``), mean sizes, histograms of sizes and scores. What it drops:
the coverage rules, every hit rate, the figures by training images, and heads that do not serve.
They come back with the next calibration on labelled photos.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from calibration.distribution import Distribution, DistributionOf
from calibration.live.traffic import FEWEST_ROWS, Recalibration
from calibration.live.traffic_scores import Traffic
from calibration.offline.promise import promised_tables
from calibration.offline.settings import DEFAULT_DELTA, Settings
from calibration.offline.tabulate import Source, tabulate
from calibration.record import CalibrationRecord
from calibration.record.origin import TRAFFIC, Measured
from calibration.record.tables import Columns, Table
from calibration.rules import class_weights
from calibration.scores import adjusted, scores


def record_from_traffic(
    traffic: Mapping[int, Traffic], record: CalibrationRecord, found: Recalibration
) -> CalibrationRecord:
    """The record that goes into the bundle once a person has approved what was found.

    Args:
        traffic: By the number of photos in a request; 1 is there. Other numbers get thresholds
            where 500 requests of them pass the guard.
        record: The calibration in use.
        found: What ``live.traffic.recalibrate`` says about the requests of one photo.
    """
    sure = record.point("average_k", guarantee="probability")
    settings = Settings(
        classes=record.classes,
        ks=record.asked_k,
        coverages=(),
        min_size=record.point("average_k").min_size,
        micro_weight=record.micro_weight,
        delta=sure.delta or DEFAULT_DELTA,
        max_size=sure.max_size,
    )
    tables = list[Table]()
    for images, requests in sorted(traffic.items()):
        rows, _ = requests.count()
        if rows >= FEWEST_ROWS:
            tables += _tables(requests, rows, images, settings, record, found)
    distribution, sha256 = _distribution(traffic[1], found)
    return replace(
        record,
        created=datetime.now(UTC).isoformat(),
        asked_coverage=(),
        measured=Measured(
            split=TRAFFIC,
            rows=found.rows,
            classes_seen=None,
            data_sha256=sha256,
            model_sha256=record.measured.model_sha256,
            chose_checkpoint=False,
            chose_head=False,
        ),
        distribution=distribution,
        log_ratios=found.log_ratios,
        shots=(),
        tables=tuple(tables),
    ).named()


def _tables(
    traffic: Traffic,
    rows: int,
    images: int,
    settings: Settings,
    record: CalibrationRecord,
    found: Recalibration,
) -> list[Table]:
    """Tables of the rules that need no labels, without hits."""

    def blocks() -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
        for values in traffic.scores(found.log_ratios):
            yield values, np.zeros(len(values), dtype=np.int64)  # hits are cleared below

    source = Source(
        blocks=blocks,
        rows=rows,
        head=record.head,
        score_kind=record.score_kind,
        temperature=record.temperature,
        images=images,
        made_from=None if images == 1 else "observations",
    )
    ks = settings.grid if images == 1 else settings.compared
    weights = class_weights(record.class_counts, record.micro_weight)
    plain = tabulate(source, settings, ks, fixed=images == 1).tables
    balanced = tabulate(source, settings, ks, weights=weights).tables
    promised = promised_tables(source, settings)
    return [_without_hits(table) for table in plain + balanced + promised]


def _without_hits(table: Table) -> Table:
    rows = (table.columns.row(index) for index in range(len(table.columns.value)))
    unknown = [
        replace(row, hit_rate=None, hit_low=None, hit_high=None, macro_hit_rate=None)
        for row in rows
    ]
    return replace(table, columns=Columns.of(unknown))


def _distribution(traffic: Traffic, found: Recalibration) -> tuple[Distribution, str]:
    """How the scores of single photos are distributed, and the hash of their logits."""
    gathered, digest = DistributionOf(), hashlib.sha256()
    for requests in traffic.logits():
        logits = requests[:, 0]
        served = adjusted(logits, temperature=traffic.temperature, log_ratios=found.log_ratios)
        gathered.update(logits, scores(served, traffic.score_kind))
        digest.update(np.ascontiguousarray(logits).tobytes())
    return gathered.result(), digest.hexdigest()

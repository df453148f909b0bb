"""The record of a calibration from traffic: new thresholds, and no claim about hits.

What it keeps: the rules whose thresholds need no labels (``average_k`` with its guarantees,
``balanced_average_k`` and ``top_k``), mean sizes, histograms of sizes and scores. What it drops:
the coverage rules, every hit rate, the figures by training images, the thresholds of lists, and
heads that do not serve; all of this comes back with the next calibration on labelled photos.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from florilege.calibration.calibrate.calibration_settings import DEFAULT_DELTA, CalibrationPlan
from florilege.calibration.calibrate.threshold_tables import (
    Block,
    Source,
    promised_tables,
    tabulate,
)
from florilege.calibration.distribution import Distribution, DistributionOf
from florilege.calibration.monitoring.traffic import Traffic
from florilege.calibration.monitoring.traffic_thresholds import FEWEST_REQUESTS, TrafficThresholds
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.origin import TRAFFIC, Origin
from florilege.calibration.record.schema import Table
from florilege.calibration.rules import class_weights


def record_from_traffic(
    traffic: Mapping[int, Traffic], thresholds: TrafficThresholds
) -> CalibrationRecord:
    """The record that goes into the bundle once a person has approved the thresholds.

    Args:
        traffic: By the number of photos in a request, 1 included. Other numbers get thresholds if
            at least 500 of their requests are not left out.
        thresholds: What the requests with one photo say.
    """
    record = traffic[1].record
    sure = record.point("average_k", guarantee="probability")
    settings = CalibrationPlan(
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
        if rows >= FEWEST_REQUESTS:
            tables += _tables(requests, rows, images, settings)
    distribution, sha256 = _distribution(traffic[1])
    return replace(
        record,
        created=datetime.now(UTC).isoformat(),
        asked_coverage=(),
        measured=Origin(
            split=TRAFFIC,
            rows=thresholds.rows,
            classes_seen=None,
            data_sha256=sha256,
            model_sha256=record.measured.model_sha256,
            chose_checkpoint=False,
            chose_head=False,
        ),
        distribution=distribution,
        shots=(),
        lists=tuple(replace(each, rows=0, classes_seen=0) for each in record.lists),
        tables=tuple(tables),
    ).with_id()


def _tables(traffic: Traffic, rows: int, images: int, settings: CalibrationPlan) -> list[Table]:
    """Tables of the rules that need no labels; hits are unknown."""
    record = traffic.record

    def blocks() -> Iterator[Block]:
        return ((values, None) for values in traffic.scores())

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
    return plain + balanced + promised_tables(source, settings)


def _distribution(traffic: Traffic) -> tuple[Distribution, str]:
    """How the scores of single photos are distributed, and the hash of their logits."""
    gathered, digest = DistributionOf(), hashlib.sha256()
    for requests in traffic.logits():
        logits = requests[:, 0]
        gathered.update(logits, traffic.record.scores(logits))
        digest.update(np.ascontiguousarray(logits).tobytes())
    return gathered.result(), digest.hexdigest()

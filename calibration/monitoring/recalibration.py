"""Recalibrate a bundle on the score log of its server, with the approval of a person.

The new record has the rules whose thresholds need no labels (``average_k`` with its guarantees,
``balanced_average_k`` and ``top_k``), mean sizes, and histograms of sizes and scores. The next
calibration on labelled photos restores all else.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from florilege.calibration.calibrate.calibration_settings import DEFAULT_DELTA, CalibrationPlan
from florilege.calibration.calibrate.card_section import read_card_files, updated_files
from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.calibrate.threshold_tables import promised_tables, tabulate
from florilege.calibration.distribution import DistributionOf
from florilege.calibration.monitoring.score_log import ScoreLog, Scorer, open_score_log
from florilege.calibration.monitoring.traffic import FEWEST_REQUESTS, Traffic, TrafficThresholds
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.origin import TRAFFIC, Origin
from florilege.calibration.record.record_file import read_record
from florilege.calibration.record.schema import Table
from florilege.calibration.rules import class_weights
from florilege.errors import DataError
from florilege.models.bundle.bundle import open_bundle, replace_files, reserved

NOT_RESTORED = (
    "hit rates: they are unknown until some of this traffic is labelled (florilege evaluate "
    "--feedback-store)",
    "accuracy lost to blur, another camera or new species: new thresholds only restore the mean "
    "set size",
    "coverage rules and thresholds of lists, which need labels: calibrate on labelled photos to "
    "restore them",
)
"""What a calibration on traffic does not restore, for the person who approves it."""


@dataclass(frozen=True, kw_only=True)
class _Recalibration:
    """The thresholds from traffic, and the new record if it was approved."""

    thresholds: TrafficThresholds
    torn: int  # lines of the log that could not be used
    record: CalibrationRecord | None  # the new record, now in the bundle; None if not approved
    notes: tuple[str, ...]  # notes about the log, one sentence each

    def lines(self) -> list[str]:
        """The result as lines of text."""
        outcome = "approved: the bundle now holds the new thresholds"
        if self.record is None:
            outcome = "nothing was changed: add --approve to store the new thresholds in the bundle"
        not_restored = (f"not restored: {what}" for what in NOT_RESTORED)
        return [*self.thresholds.lines(), *self.notes, *not_restored, outcome]

    def to_plain(self) -> dict[str, Any]:
        """The result as plain data for JSON."""
        return {
            "calibration_id": self.thresholds.calibration_id,
            "approved": self.record is not None,
            "new_calibration_id": None if self.record is None else self.record.calibration_id,
            "rows": self.thresholds.rows,
            "left_out": self.thresholds.left_out,
            "torn": self.torn,
            "thresholds": [asdict(each) for each in self.thresholds.thresholds],
            "notes": list(self.notes),
            "not_restored": list(NOT_RESTORED),
        }


def recalibrate_bundle(
    path: str | Path, log: str | Path, *, approve: bool = False
) -> _Recalibration:
    """Choose new thresholds on a score log; with ``approve`` store them in the bundle.

    Raises:
        DataError: No log of this network, or too few photos in it.
        UsageError: ``approve`` is set while another process is changing the bundle.
        BundleError: The bundle is damaged or not calibrated.
    """
    with reserved(path) if approve else nullcontext():
        bundle = open_bundle(path)
        record = read_record(bundle)
        with open_score_log(log, Scorer.of(bundle, record)) as opened:
            traffic = _traffic(opened, record)
            try:
                thresholds = traffic[1].thresholds()
            except ValueError as error:
                raise DataError(f"the score log in {log}: {error}") from error
            new = _record_from(traffic, thresholds) if approve else None
        if new is not None:
            replace_files(path, updated_files(*read_card_files(bundle), new))
    notes = tuple(_notes(opened, record))
    return _Recalibration(thresholds=thresholds, torn=opened.damaged, record=new, notes=notes)


def _notes(log: ScoreLog, record: CalibrationRecord) -> Iterator[str]:
    """Notes about the photos of the log, one sentence each."""
    if record.rejection is None:
        yield "no photo was left out: the bundle has no rejection rule"
    if log.others:
        yield f"left out, of another network or head: {log.others:,} request(s)"
    if log.damaged:
        yield f"left out, damaged or torn by a crash: {log.damaged:,} line(s)"
    if log.repeated:
        yield f"left out, photos sent again, which count once: {log.repeated:,} request(s)"


def _traffic(log: ScoreLog, record: CalibrationRecord) -> dict[int, Traffic]:
    """Traffic by number of photos in a request: 1, and up to the most calibrated, where logged."""
    rejection = record.rejection and record.rejection.from_logits  # the log holds only logits
    served = range(2, max(record.images, default=1) + 1)
    return {
        photos: Traffic(requests=partial(log.blocks, photos=photos), record=record, judge=rejection)
        for photos in (1, *served)
        if photos == 1 or photos in log.requests
    }


def _record_from(
    traffic: Mapping[int, Traffic], thresholds: TrafficThresholds
) -> CalibrationRecord:
    """The new record; a number of several photos, a key of ``traffic``, needs 500 requests."""
    record = traffic[1].record
    guaranteed = record.point("average_k", guarantee="probability")
    settings = CalibrationPlan(
        classes=record.classes,
        ks=record.asked_k,
        coverages=(),
        min_size=record.point("average_k").min_size,
        macro_weight=record.macro_weight,
        delta=guaranteed.table.delta or DEFAULT_DELTA,
        max_size=guaranteed.max_size,
    )
    tables = list[Table]()
    for images, requests in sorted(traffic.items()):
        rows, _ = requests.count()
        if rows >= FEWEST_REQUESTS:
            tables += _tables(requests, rows, images, settings)
    distribution, digest = DistributionOf(), hashlib.sha256()
    for logits in (requests[:, 0] for requests in traffic[1].logits()):
        distribution.update(logits, record.scores(logits))
        digest.update(np.ascontiguousarray(logits).tobytes())
    return replace(
        record,
        created=datetime.now(UTC).isoformat(),
        asked_coverage=(),
        measured=Origin(
            split=TRAFFIC,
            rows=thresholds.rows,
            classes_seen=None,
            data_sha256=digest.hexdigest(),
            model_sha256=record.measured.model_sha256,
            runtime=record.measured.runtime,
            precision=record.measured.precision,
            chose_checkpoint=False,
            chose_head=False,
        ),
        distribution=distribution.result(),
        shots=(),
        lists=tuple(replace(each, rows=0, classes_seen=0) for each in record.lists),
        tables=tuple(tables),
    ).with_id()


def _tables(traffic: Traffic, rows: int, images: int, settings: CalibrationPlan) -> list[Table]:
    """Tables of the rules that need no labels; hits are unknown."""
    record = traffic.record
    source = Source(
        blocks=lambda: ((values, None) for values in traffic.scores()),
        rows=rows,
        classes=record.classes,
        head=record.head,
        score_kind=record.score_kind,
        temperature=record.temperature,
        images=images,
        made_from=None if images == 1 else "observations",
    )
    ks = settings.grid if images == 1 else settings.compared
    weights = class_weights(record.class_counts, record.macro_weight)
    plain = tabulate(source, settings, ks).tables
    balanced = tabulate(source, settings, ks, weights=weights).tables
    return plain + balanced + promised_tables(source, settings, weights)

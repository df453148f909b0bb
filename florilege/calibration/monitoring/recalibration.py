"""Recalibrate a bundle on traffic, the score log of its server, with the approval of a person.

New thresholds on logged live requests need no labels. They restore the mean set size on photos like
the recent ones, but not the hit rate: with blurred photos it stays low, and under label shift it
falls. So a person must approve the :class:`TrafficThresholds`, and earlier hit rates must not be
shown with them.

The new record has the rules whose thresholds need no labels (``average_k`` with its guarantees,
``balanced_average_k`` and ``top_k``), mean sizes, and histograms of sizes and scores. The next
calibration on labelled photos restores all else.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate import Source, tabulate
from florilege.calibration.monitoring.score_log import ScoreLog, Scorer, open_score_log
from florilege.calibration.record import TRAFFIC, CalibrationRecord, Origin, Table
from florilege.calibration.record.record_file import read_card_files, read_record, updated_files
from florilege.calibration.rejection import RejectionRule
from florilege.calibration.rules import ScoreSummary
from florilege.calibration.scores import DistributionOf
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.threshold import threshold_text
from florilege.calibration.view import PLAIN, Scoring, View
from florilege.errors import DataError
from florilege.models.bundle import open_bundle, replace_files, reserved

FEWEST_REQUESTS = 500
Requests = Callable[[], Iterator[NDArray[Any]]]
"""Starts a new pass over the logits of the served head, ``(requests, photos, classes)``."""
_NOT_RESTORED = (
    "hit rates: they are unknown until some of this traffic is labelled (florilege evaluate "
    "--feedback-store)",
    "accuracy lost to blur, another camera or new species: new thresholds only restore the mean "
    "set size",
    "coverage rules and thresholds of lists, which need labels: calibrate on labelled photos to "
    "restore them",
)
"""What a calibration on traffic does not restore, for the person who approves it."""


@dataclass(frozen=True, kw_only=True)
class _NewThreshold:
    k: float  # requested mean size
    old_lambda: float
    old_size: float  # mean set size on the traffic
    new_lambda: float
    new_size: float


@dataclass(frozen=True, kw_only=True)
class TrafficThresholds:
    """New thresholds of ``average_k``, chosen on traffic, and whether the bundle now holds them."""

    calibration_id: str  # the calibration with the old thresholds
    rows: int  # photos used
    left_out: int  # photos that look like none of the classes
    thresholds: tuple[_NewThreshold, ...]
    torn: int = 0  # lines of the log that could not be used
    notes: tuple[str, ...] = ()  # notes about the log, one sentence each
    record: CalibrationRecord | None = None  # the new record in the bundle; None if not approved

    def lines(self) -> list[str]:
        """The changes as lines of text."""
        outcome = "approved: the bundle now holds the new thresholds"
        if self.record is None:
            outcome = "nothing was changed: add --approve to store the new thresholds in the bundle"
        return [
            f"{self.rows:,} photos of traffic, {self.left_out:,} more left out as unfamiliar",
            *(
                f"K = {new.k:g}: lambda {threshold_text(new.old_lambda, 4)} -> "
                f"{threshold_text(new.new_lambda, 4)}, mean size on this traffic "
                f"{new.old_size:.2f} -> {new.new_size:.2f}"
                for new in self.thresholds
            ),
            *self.notes,
            *(f"not restored: {what}" for what in _NOT_RESTORED),
            outcome,
        ]

    def to_plain(self) -> dict[str, Any]:
        """The changes as plain data for JSON."""
        # Without the record, which `asdict` would copy as a whole.
        changes = asdict(replace(self, record=None))
        del changes["record"]
        return {
            **changes,
            "approved": self.record is not None,
            "new_calibration_id": None if self.record is None else self.record.calibration_id,
            "not_restored": _NOT_RESTORED,
        }


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests with the same number of photos, which can be read repeatedly.

    Requests whose photos are all unfamiliar are left out, by the rejection rule ``judge`` of an
    earlier calibration; with None all requests are used.
    """

    requests: Requests  # such as log.blocks of a score log
    record: CalibrationRecord  # the calibration that serves them
    judge: RejectionRule | None
    scoring: Scoring  # how their photos are fused

    def logits(self) -> Iterator[NDArray[Any]]:
        """Logits of the requests that are not left out, ``(requests, photos, classes)``."""
        for logits in self.requests():
            familiar = logits[self._familiar(logits)]
            if len(familiar):
                yield familiar

    def scores(self) -> Iterator[NDArray[np.float64]]:
        """Their scores, fused as they are served, ``(requests, classes)``."""
        for logits in self.logits():
            yield self.scoring.scores(logits, prior=self.record.prior)

    def count(self) -> tuple[int, int]:
        """The number of requests that are not left out, and of those that are."""
        masks = np.concatenate([np.empty(0, np.bool_), *map(self._familiar, self.requests())])
        return int(masks.sum()), int((~masks).sum())

    def thresholds(self, *, ks: Sequence[float] | None = None) -> TrafficThresholds:
        """Choose new thresholds of ``average_k`` on requests with one photo.

        Promise: on the photos used, mean sizes are exactly those requested, up to ties. On new
        photos like these they have a standard error of ``sd(size) / sqrt(rows)``. Photos of
        something else that ``judge`` accepts count in the mean. By default ``ks`` are those last
        requested.

        Raises:
            ValueError: Fewer than 500 photos.
            NotCalibrated: The record has no threshold for one of ``ks``.
        """
        rows, left_out = self.count()
        if rows < FEWEST_REQUESTS:
            raise ValueError(
                f"{rows} photos are too few to choose thresholds ({left_out} left out): at least "
                f"{FEWEST_REQUESTS} are needed"
            )
        record, requested_ks = self.record, sorted(self.record.asked_k if ks is None else ks)
        points = [record.point(PLAIN, record.setting("average_k", k)) for k in requested_ks]
        old_sizes, largest_k = np.zeros(len(points), dtype=np.int64), requested_ks[-1]
        classes, min_size = record.classes, points[0].min_size
        summary = ScoreSummary(
            rows=rows, classes=classes, max_average_k=largest_k, min_size=min_size
        )
        for scores in self.scores():
            old_sizes += [point.sets(scores).sum() for point in points]
            summary.update(scores)
        rules = map(summary.average_k, requested_ks)
        changes = tuple(
            _NewThreshold(
                k=float(k),
                old_lambda=point.lambda_val or 0.0,
                old_size=float(old_size) / rows,
                new_lambda=rule.lambda_val or 0.0,
                new_size=rule.achieved or 0.0,
            )
            for k, point, old_size, rule in zip(requested_ks, points, old_sizes, rules, strict=True)
        )
        return TrafficThresholds(
            calibration_id=record.calibration_id, rows=rows, left_out=left_out, thresholds=changes
        )

    def _familiar(self, logits: NDArray[Any]) -> NDArray[np.bool_]:
        if self.judge is None:
            return np.ones(len(logits), dtype=np.bool_)
        by_photo = self.judge.familiarity(logits.reshape(-1, logits.shape[2]))
        best: NDArray[np.float64] = by_photo.reshape(logits.shape[:2]).max(axis=1)
        return best >= self.judge.threshold


def recalibrate_bundle(
    path: str | Path, log: str | Path, *, approve: bool = False
) -> TrafficThresholds:
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
            new = _record_from(traffic, thresholds.rows) if approve else None
        if new is not None:
            replace_files(path, updated_files(*read_card_files(bundle), new))
    notes = tuple(_notes(opened, record))
    return replace(thresholds, torn=opened.damaged, notes=notes, record=new)


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
    """Traffic by number of photos in a request: 1, and further calibrated numbers in the log."""
    rejection = record.rejection and record.rejection.from_logits  # the log holds only logits
    points = record.points(PLAIN, record.setting("average_k"))
    return {
        photos: Traffic(
            requests=partial(log.blocks, photos=photos),
            record=record,
            judge=rejection,
            scoring=points.get(photos, points[1]).table.scoring,
        )
        for photos in range(1, record.photos[-1] + 1)
        if photos == 1 or photos in log.requests
    }


def _record_from(traffic: Mapping[int, Traffic], rows: int) -> CalibrationRecord:
    """The new record, on ``rows`` single photos; other numbers of photos need 500 requests."""
    record = traffic[1].record
    # The rules with a guarantee alone carry the largest set that was asked for.
    guaranteed = record.point(PLAIN, record.setting("average_k", None, "probability"))
    settings = CalibrationPlan(
        classes=record.classes,
        ks=record.asked_k,
        coverages=(),
        min_size=record.default_point.min_size,
        macro_weight=record.macro_weight,
        delta=guaranteed.table.delta,
        max_size=guaranteed.max_size,
    )
    tables = list[Table]()
    for images, requests in sorted(traffic.items()):
        count, _ = requests.count()
        if count >= FEWEST_REQUESTS:
            tables.append(_table(requests, count, images, settings))
    distribution, digest = DistributionOf(), hashlib.sha256()
    for logits in (requests[:, 0] for requests in traffic[1].logits()):
        distribution.update(logits, record.scores(logits))
        # The photos are gone, so their logits say which they were.
        digest.update(np.ascontiguousarray(logits).tobytes())
    return replace(
        record,
        created=datetime.now(UTC).isoformat(),
        asked_coverage=(),
        measured=Origin(
            split=TRAFFIC,
            rows=rows,
            classes_seen=None,
            data_sha256=digest.hexdigest(),
            model_sha256=record.measured.model_sha256,
            runtime=record.measured.runtime,
            precision=record.measured.precision,
            decoder=record.measured.decoder,
            chose_checkpoint=False,
            chose_head=False,
        ),
        distribution=distribution.result(),
        shots=(),
        lists=tuple(replace(region, rows=0, classes_seen=0) for region in record.lists),
        tables=tuple(tables),
    ).with_id()


def _table(traffic: Traffic, rows: int, images: int, settings: CalibrationPlan) -> Table:
    """The rules that need no labels; hits are unknown."""
    record = traffic.record
    source = Source(
        blocks=lambda: ((values, None) for values in traffic.scores()),
        rows=rows,
        classes=record.classes,
        scoring=traffic.scoring,
        view=View(photos=images),
        made_from=None if images == 1 else "observations",
        counts=record.class_counts,
    )
    return tabulate(source, settings).table

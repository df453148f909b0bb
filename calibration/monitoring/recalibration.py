"""Calibrating a bundle again from the score log of its server, after a person has approved it."""

from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from florilege.calibration.calibrate.card_section import read_papers, updated_files
from florilege.calibration.monitoring.prior_shift import FEWEST_A_CLASS
from florilege.calibration.monitoring.score_log import ScoreLog, Scorer, open_score_log
from florilege.calibration.monitoring.traffic import Traffic
from florilege.calibration.monitoring.traffic_record import record_from_traffic
from florilege.calibration.monitoring.traffic_thresholds import (
    TrafficThresholds,
    check_correctable,
    thresholds_from,
)
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.errors import DataError, UsageError
from florilege.models.bundle.bundle import open_bundle, replace_files, reserved

NOT_RESTORED = (
    "hit rates: they are unknown until some of this traffic is labelled (florilege evaluate "
    "--feedback-store)",
    "accuracy lost to blur, another camera or new species: sets of the same size hold the truth as "
    "rarely as before",
    "the coverage rules and thresholds of lists, which need labels: calibrate on labelled photos "
    "to get them back",
)
"""What a calibration from traffic does not give, for whoever approves it."""
ONLY_FREQUENCIES = (
    "scores are corrected as if nothing but the frequencies had changed, which the logits bear "
    "out: look at some photos all the same"
)
NOT_EVIDENT = "no change of class frequencies is evident: scores are not corrected for one"
NOT_EXPLAINED = (
    "changed class frequencies do not explain its logits, so a correction would do harm: "
    "look for blur, another camera or new species, or leave out --correct-prior"
)


@dataclass(frozen=True, kw_only=True)
class Recalibration:
    """What traffic says, and what was done about it."""

    found: TrafficThresholds
    torn: int  # lines of the log that could not be used
    record: CalibrationRecord | None  # the new one, now in the bundle, if it was approved
    notes: tuple[str, ...]  # what else people should know, one sentence each

    def lines(self) -> list[str]:
        """What was found and done, in words."""
        done = "approved: the bundle now holds the new thresholds"
        if self.record is None:
            done = "nothing was changed: repeat with --approve to put this into the bundle"
        not_restored = [f"not restored: {what}" for what in NOT_RESTORED]
        return [*self.found.lines(), *self.notes, *not_restored, done]

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        found, shift = self.found, self.found.shift
        return {
            "calibration_id": found.calibration_id,
            "approved": self.record is not None,
            "new_calibration_id": None if self.record is None else self.record.calibration_id,
            "rows": found.rows,
            "left_out": found.left_out,
            "torn": self.torn,
            "thresholds": [asdict(threshold) for threshold in found.thresholds],
            "shift": None
            if shift is None
            else {
                "distance": shift.distance,
                "evident": shift.evident,
                "gain": shift.gain,
                "likelihood": found.likelihood,
            },
            "notes": list(self.notes),
            "not_restored": list(NOT_RESTORED),
        }


def recalibrate_bundle(
    path: str | Path, log: str | Path, *, correct_prior: bool = False, approve: bool = False
) -> Recalibration:
    """Choose thresholds again from a score log; with ``approve`` put them into the bundle.

    Args:
        path: The bundle's folder.
        log: Folder of the score log.
        correct_prior: Correct the scores for changed class frequencies, if the change is
            evident and explains the logits.
        approve: Whether to replace the calibration inside the bundle.

    Raises:
        DataError: No log of this network, too few photos in it, or a correction for something
            other than a change of frequencies.
        UsageError: A correction that this calibration does not allow, or another process is
            changing the bundle that is to be changed.
        BundleError: The bundle is damaged or not calibrated.
    """
    with reserved(path) if approve else nullcontext():
        bundle = open_bundle(path)
        record = read_record(bundle)
        if correct_prior:
            _check(record)
        with closing(open_score_log(log, Scorer.of(bundle, record))) as opened:
            traffic = _traffic(opened, record)
            try:
                found, notes = _found(traffic[1], correct_prior=correct_prior)
            except ValueError as error:
                raise DataError(f"the score log in {log}: {error}") from error
            new = record_from_traffic(traffic, found) if approve else None
        if new is not None:
            replace_files(path, updated_files(read_papers(bundle), new))
    notes = (*_about(opened, record), *notes)
    return Recalibration(found=found, torn=opened.damaged, record=new, notes=notes)


def _about(log: ScoreLog, record: CalibrationRecord) -> Iterator[str]:
    """What people should know about the photos of the log, one sentence each."""
    if record.rejection is None:
        yield "no photo was left out: the bundle judges none"
    if log.others:
        yield f"left out as of another network or head: {log.others:,} request(s)"
    if log.damaged:
        yield f"left out as torn or damaged, as a crash leaves them: {log.damaged:,} line(s)"
    if log.repeated:
        yield f"left out as photos sent again, which count once: {log.repeated:,} request(s)"


def _check(record: CalibrationRecord) -> None:
    try:
        check_correctable(record)
    except ValueError as error:
        raise UsageError(f"--correct-prior: {error}") from error
    rows, classes = record.measured.rows, record.classes
    if rows < FEWEST_A_CLASS * classes:
        raise UsageError(
            f"--correct-prior: {rows} calibration photos of {classes} classes say too little about "
            f"frequencies: {FEWEST_A_CLASS} per class are needed"
        )


def _traffic(log: ScoreLog, record: CalibrationRecord) -> dict[int, Traffic]:
    """By the number of photos in a request: 1, and the calibrated numbers that the log holds."""
    judge = record.rejection and record.rejection.from_logits  # the log holds only logits
    served = range(2, max(record.images, default=1) + 1)
    return {
        photos: Traffic(requests=partial(log.blocks, photos=photos), record=record, judge=judge)
        for photos in (1, *served)
        if photos == 1 or photos in log.requests
    }


def _found(traffic: Traffic, *, correct_prior: bool) -> tuple[TrafficThresholds, tuple[str, ...]]:
    """The thresholds, and what to say about a correction."""
    found = thresholds_from(traffic, correct_prior=correct_prior)
    if found.shift is None:
        return found, ()
    if not found.shift.evident:
        return thresholds_from(traffic), (NOT_EVIDENT,)
    if not found.explained:
        raise ValueError(NOT_EXPLAINED)
    return found, (ONLY_FREQUENCIES,)

"""Calibrating a bundle again from the score log of its server, after a person has approved it."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibration.live.new_record import record_from_traffic
from calibration.live.score_log_reader import ScoreLog, open_score_log
from calibration.live.shift_check import FEWEST_A_CLASS
from calibration.live.traffic import Recalibration, check_correctable, recalibrate
from calibration.live.traffic_scores import Guard, Traffic
from calibration.offline.card import read_papers, updated_files
from calibration.record import CalibrationRecord
from calibration.record.reading import read_record
from models.bundle.bundle import MODEL, open_bundle, replace_files, reserved
from models.errors import DataError, UsageError

NOT_RESTORED = (
    "hit rates: they are unknown until some of this traffic is labelled (florilege evaluate "
    "--audit)",
    "accuracy lost to blur, another camera or new species: sets of the same size hold the truth as "
    "rarely as before",
    "the coverage rules, which need labels: calibrate on labelled photos to have them back",
)
"""What a calibration from traffic does not give, for whoever approves it."""
ONLY_FREQUENCIES = (
    "scores are corrected as if nothing but the frequencies had changed, which the logits bear "
    "out: look at some photos all the same"
)
NOT_EXPLAINED = (
    "changed class frequencies do not explain its logits, so that a correction would do harm: "
    "look for blur, another camera or new species, or leave out --correct-prior"
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What traffic says, and what was done about it.

    Attributes:
        found: The difference to the calibration in use.
        photos: Requests in the log by their number of photos.
        torn: Photos of the log that could not be used.
        record: The new record, now in the bundle; None where nothing was approved.
        notes: What else a person should know, one sentence each.
    """

    found: Recalibration
    photos: dict[int, int]
    torn: int
    record: CalibrationRecord | None
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The difference in words."""
        done = "approved: the bundle now holds the new thresholds"
        if self.record is None:
            done = "nothing was changed: repeat with --approve to put this into the bundle"
        not_restored = [f"not restored: {what}" for what in NOT_RESTORED]
        return [*self.found.lines()[:-1], *self.notes, *not_restored, done]

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        shift = self.found.shift
        return {
            "calibration_id": self.found.calibration_id,
            "approved": self.record is not None,
            "new_calibration_id": None if self.record is None else self.record.calibration_id,
            "rows": self.found.rows,
            "left_out": self.found.left_out,
            "torn": self.torn,
            "thresholds": [asdict(threshold) for threshold in self.found.thresholds],
            "shift": None
            if shift is None
            else {
                "distance": shift.distance,
                "evident": shift.evident,
                "gain": shift.gain,
                "likelihood": self.found.likelihood,
            },
            "notes": list(self.notes),
            "not_restored": list(NOT_RESTORED),
        }


def recalibrate_bundle(
    path: str | Path, log: str | Path, *, correct_prior: bool = False, approve: bool = False
) -> Outcome:
    """Choose thresholds anew from a score log; with ``approve`` put them into the bundle.

    Args:
        path: The bundle's folder.
        log: Folder of the score log.
        correct_prior: Correct the scores for changed class frequencies, where the change is
            evident and explains the logits.
        approve: Whether to replace the calibration inside the bundle.

    Raises:
        DataError: No log of this network, too few photos in it, or a correction for what is no
            change of frequencies.
        UsageError: A correction that this calibration does not allow, or another process changes
            the bundle that is to be changed.
        BundleError: The bundle is damaged or not calibrated.
    """
    with reserved(path) if approve else nullcontext():
        bundle = open_bundle(path)
        record = read_record(bundle)
        if correct_prior:
            _check(record)
        opened = open_score_log(log, model_sha256=bundle.manifest.files[MODEL])
        if (opened.header.head, opened.header.classes) != (record.head, record.classes):
            raise DataError(
                f"the score log holds head {opened.header.head!r}, the bundle serves "
                f"{record.head!r}: collect traffic with this calibration first"
            )
        traffic = _traffic(opened, record)
        notes = [] if record.rejection else ["no photo was left out: the bundle judges none"]
        try:
            found, told = _found(traffic[1], record, correct_prior=correct_prior)
        except ValueError as error:
            raise DataError(f"the score log in {log}: {error}") from error
        new = None
        if approve:
            new = record_from_traffic(traffic, record, found)
            replace_files(path, updated_files(read_papers(bundle), new))
    return Outcome(
        found=found, photos=opened.requests, torn=opened.torn, record=new, notes=(*notes, *told)
    )


def _check(record: CalibrationRecord) -> None:
    try:
        check_correctable(record)
    except ValueError as error:
        raise UsageError(f"--correct-prior: {error}") from error
    rows, classes = record.measured.rows, record.classes
    if rows < FEWEST_A_CLASS * classes:
        raise UsageError(
            f"--correct-prior: {rows} calibration photos of {classes} classes say too little about "
            f"frequencies: {FEWEST_A_CLASS} a class are needed"
        )


def _found(
    traffic: Traffic, record: CalibrationRecord, *, correct_prior: bool
) -> tuple[Recalibration, list[str]]:
    found = recalibrate(
        traffic.requests,
        record,
        guard=traffic.guard,
        correct_prior=correct_prior,
    )
    if found.shift is None:
        return found, []
    if found.shift.evident and not found.explained:
        raise ValueError(NOT_EXPLAINED)
    if found.shift.evident:
        return found, [ONLY_FREQUENCIES]
    plain = recalibrate(traffic.requests, record, guard=traffic.guard)
    return plain, ["no change of class frequencies is evident: scores are not corrected for one"]


def _traffic(log: ScoreLog, record: CalibrationRecord) -> dict[int, Traffic]:
    judge = record.rejection and record.rejection.from_logits  # the log holds nothing else
    guard = None if judge is None else Guard(method=judge.method, threshold=judge.threshold)
    return {
        photos: Traffic(
            requests=lambda photos=photos: log.blocks(photos=photos),  # type: ignore[misc]  # the default binds
            score_kind=record.score_kind,
            temperature=record.temperature,
            guard=guard,
        )
        for photos in sorted({1, *log.requests})
        if photos <= max(record.images, default=1) or photos == 1
    }

"""The opt-in score log: the logits of answered photos, for calibrating again from traffic."""

import logging
from pathlib import Path

from calibration.live.score_log import LogHeader, ScoreLogWriter
from calibration.record import CalibrationRecord
from server.afterwards.afterwards import Seen
from server.metrics import Metrics

log = logging.getLogger("florilege.server")


class ScoreLog:
    """Writes what it hears with a `ScoreLogWriter`; a full disk costs rows, never an answer."""

    name = "score_log"

    def __init__(self, writer: ScoreLogWriter, metrics: Metrics) -> None:
        self.writer = writer
        self._photos = metrics.score_log_photos
        self._failing = False

    @classmethod
    def open(
        cls,
        folder: Path,
        record: CalibrationRecord,
        metrics: Metrics,
        *,
        max_bytes: int,
        max_files: int,
    ) -> "ScoreLog":
        """A log in ``folder`` of the network that a record belongs to."""
        header = LogHeader(
            classes=record.classes,
            head=record.head,
            score_kind=record.score_kind,
            model_sha256=record.measured.model_sha256,
        )
        writer = ScoreLogWriter(folder, header, max_bytes=max_bytes, max_files=max_files)
        return cls(writer, metrics)

    def hear(self, seen: Seen) -> None:
        """Append the photos of one request."""
        written = self.writer.append(seen.logits)
        self._photos.labels("written" if written else "failed").inc(len(seen.logits))
        if not written and not self._failing:
            log.warning("the score log cannot be written: %s", self.writer.problem)
        self._failing = not written

    def rest(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Close the file."""
        self.writer.close()

"""The opt-in score log: the logits of answered photos, for recalibration from traffic."""

import logging

from florilege.calibration.monitoring.score_log import ScoreLogWriter
from florilege.server.background.publisher import AnsweredRequest
from florilege.server.prometheus import Metrics

log = logging.getLogger("florilege.server")


class ScoreLogListener:
    """Passes logits to a `ScoreLogWriter`; a full disk loses rows, never an answer."""

    name = "score_log"

    def __init__(self, writer: ScoreLogWriter, metrics: Metrics) -> None:
        self._writer = writer
        self._photos = metrics.score_log_photos
        self._failing = False

    def on_answer(self, answered: AnsweredRequest) -> None:
        """Append the photos of one request."""
        try:
            self._writer.append(answered.logits)
        except OSError as error:
            if not self._failing:
                log.warning("the score log cannot be written: %s", error)
            self._failing = True
        else:
            self._failing = False
        self._photos.labels("failed" if self._failing else "written").inc(len(answered.logits))

    def on_idle(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

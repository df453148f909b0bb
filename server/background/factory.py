"""Open the feedback store and the listeners that the settings ask for, with their folders."""

import logging
import os
import sqlite3
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.monitoring.score_log import ScoreLogWriter, Scorer
from florilege.errors import UsageError
from florilege.feedback_store import FILE, FeedbackStore
from florilege.server.answers.pipeline import Pipeline
from florilege.server.background.drift_watch import DriftWatch
from florilege.server.background.feedback import Feedback
from florilege.server.background.publisher import Listener
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings

log = logging.getLogger("florilege.server")


def open_feedback_service(settings: Settings, metrics: Metrics) -> Feedback | None:
    """Open the feedback store; None without one."""
    if settings.feedback_store is None:
        return None
    folder = _writable(settings.feedback_store, "--feedback-store")
    try:
        store = FeedbackStore(folder, max_bytes=settings.feedback_max_bytes)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"--feedback-store: {folder / FILE} cannot be opened: {error}") from error
    return Feedback(store, settings, metrics)


def open_listeners(settings: Settings, pipeline: Pipeline, metrics: Metrics) -> list[Listener]:
    """Open all listeners for the answers of a bundle."""
    listeners: list[Listener] = []
    if settings.score_log is not None:
        folder = _writable(settings.score_log, "--score-log")
        scorer = Scorer.of(pipeline.bundle, pipeline.record)
        writer = ScoreLogWriter(folder, scorer, max_bytes=settings.score_log_max_bytes)
        listeners.append(_ScoreLogListener(writer, metrics))
    if settings.watch:
        if settings.watch_state is not None:
            _writable(settings.watch_state.parent, "--watch-state")
            if settings.watch_state.is_dir():
                raise UsageError(f"--watch-state {settings.watch_state} is a folder; name a file")
        listeners.append(DriftWatch(pipeline.record, metrics, settings.watch_state))
    return listeners


class _ScoreLogListener:
    """Passes logits to a `ScoreLogWriter`; a full disk loses rows, never an answer."""

    name = "score_log"

    def __init__(self, writer: ScoreLogWriter, metrics: Metrics) -> None:
        self._writer = writer
        self._photos = metrics.score_log_photos
        self._failing = False

    def on_answer(self, logits: NDArray[np.float32], *, restricted: bool) -> None:
        failed = False
        try:
            self._writer.append(logits)
        except OSError as error:
            failed = True
            if not self._failing:
                log.warning("the score log cannot be written: %s", error)
        self._failing = failed
        self._photos.labels("failed" if failed else "written").inc(len(logits))

    def close(self) -> None:
        self._writer.close()


def _writable(folder: Path, flag: str) -> Path:
    """The folder that ``flag`` names; if missing, it is created for its owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag}: {folder} cannot be created: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{flag}: {folder} cannot be written by this user")
    return folder

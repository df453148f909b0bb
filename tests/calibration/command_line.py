"""The commands of calibration, run in this process, and the log that one of them reads."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from florilege.calibration.cli import app
from florilege.calibration.monitoring.score_log import ScoreLogWriter, Scorer
from florilege.errors import UsageError


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def usage_error(*words: object) -> str:
    """The message of a command that refuses its arguments."""
    error = run(*words).exception
    assert isinstance(error, UsageError)
    assert error.exit_code == 2
    return str(error)


def write_log(
    folder: Path,
    scorer: Scorer,
    requests: Iterable[NDArray[np.float32]],
    *,
    max_bytes: int = 2**30,
) -> Path:
    """Log requests, each ``(photos, classes)``, as a server does between its start and its end."""
    writer = ScoreLogWriter(folder, scorer, max_bytes=max_bytes)
    for request in requests:
        writer.append(request)
    writer.close()
    return folder

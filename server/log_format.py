"""Log lines on stderr, as text for people or as JSON for programs.

Lines about a request contain its id, route, method, status and time, but no address, file name,
query or key.
"""

import json
import logging
import sys
from datetime import UTC, datetime

from florilege.server.settings import LogFormat, LogLevel


class _LineFormatter(logging.Formatter):
    """``TIME LEVEL message name=value ...``, or one JSON object; the names are ``fields``."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; as text, a traceback adds lines."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname, record.getMessage()
        fields: dict[str, object] = getattr(record, "fields", {})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._form == "json":
            entry = {"time": time, "level": level.lower(), "message": message, **fields}
            return json.dumps(entry | ({"exception": trace} if trace else {}), ensure_ascii=False)
        words = [time, level, message, *(f"{name}={value}" for name, value in fields.items())]
        return " ".join(words) + (f"\n{trace}" if trace else "")


def log_to_stderr(form: LogFormat, level: LogLevel) -> None:
    """Log this level and above to stderr; of uvicorn, only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

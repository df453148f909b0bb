"""Log lines on stderr, as text for people or as JSON for programs.

Lines about a request contain its id, route, method, status and time, but no address, file name,
query or key.
"""

import json
import logging
import sys
from datetime import UTC, datetime

from florilege.server.settings import LogFormat, LogLevel


class _TextFormatter(logging.Formatter):
    """``TIME LEVEL message name=value ...``; the names and values are the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        text = f"{_time(record)} {record.levelname} {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonFormatter(logging.Formatter):
    """One JSON object a line, with ``time``, ``level``, ``message`` and the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {"time": _time(record), "level": record.levelname.lower()}
        entry |= {"message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def log_to_stderr(form: LogFormat, level: LogLevel) -> None:
    """Log this level and above to stderr; of uvicorn, only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

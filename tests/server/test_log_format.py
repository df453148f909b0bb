"""What the server logs to stderr."""

import json
import logging
import sys
from pathlib import Path

import pytest

from florilege.server.process import _LineFormatter
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.server_process import ServeProcess
from tests.server.test_serve import ask


def record(exc: bool = False) -> logging.LogRecord:
    try:
        raise ValueError("two\nlines") if exc else RuntimeError
    except (ValueError, RuntimeError):
        info = sys.exc_info() if exc else None
    result = logging.LogRecord("florilege.server", logging.WARNING, "", 0, "sets of %d", (3,), info)
    result.created, result.fields = 1.5, {"status": 503, "code": None}
    return result


def test_a_line_for_people_has_time_level_message_and_fields() -> None:
    assert _LineFormatter("text").format(record()) == (
        "1970-01-01T00:00:01.500+00:00 WARNING sets of 3 status=503 code=None"
    )
    assert "Traceback" in _LineFormatter("text").format(record(exc=True))


def test_the_lines_of_one_of_several_workers_name_it() -> None:
    assert _LineFormatter("text", 3).format(record()).endswith(" worker=3 status=503 code=None")
    assert json.loads(_LineFormatter("json", 3).format(record()))["worker"] == 3


def test_a_line_for_machines_is_one_object_and_one_line() -> None:
    text = _LineFormatter("json").format(record(exc=True))
    assert "\n" not in text
    content = json.loads(text)
    assert "Traceback" in content.pop("exception")
    assert content == {
        **{"time": "1970-01-01T00:00:01.500+00:00", "level": "warning", "message": "sets of 3"},
        **{"status": 503, "code": None},
    }


@pytest.mark.parametrize("access_log", [False, True])
def test_failures_leave_a_line_and_other_requests_only_where_wanted(
    bundle: Path, caplog: pytest.LogCaptureFixture, access_log: bool
) -> None:
    caplog.set_level(logging.INFO)
    with open_client(bundle, access_log=access_log) as client:
        client.post(
            "/v1/identify?k=2&lang=fr", files={"images": ("my-garden.png", garden.photo(0))}
        )
        client.get("/v1/classes/1001?lang=fr")
        client.app.state.engine.drain()  # type: ignore[attr-defined]  # a FastAPI
        client.get("/readyz", headers={"X-Request-Id": "probe-1", "User-Agent": "someone"})
    lines = [fields for each in caplog.records if (fields := getattr(each, "fields", None))]
    assert [(one["route"], one["status"], one["code"]) for one in lines] == [
        *([("/v1/identify", 200, None), ("/v1/classes/{class_id:path}", 200, None)] * access_log),
        ("/readyz", 503, "draining"),
    ]
    assert lines[-1]["request_id"] == "probe-1"
    for word in ("my-garden", "lang", "1001", "someone", "testclient", "127.0.0.1"):
        assert word not in str(lines)


def test_the_flags_choose_form_and_level(bundle: Path) -> None:
    with ServeProcess(bundle, "--log-format", "json", "--access-log") as served:
        ask(served.port)
        served.process.terminate()
        served.process.wait(20)
    opening, *result = [json.loads(line) for line in served.lines]
    assert opening["message"] == f"opening {bundle}"
    assert [one["message"] for one in result][1:] == [
        *("request", "stopping: not ready, the port closes soon", "stopped")
    ]
    assert set(result[1]) == {
        *("time", "level", "message"),
        *("id", "request_id", "method", "route", "status", "code", "ms"),
    }

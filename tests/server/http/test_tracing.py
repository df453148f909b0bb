"""Traces: the spans of a request with a collector, and nothing without one."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from florilege.server.http.middleware import ENDPOINTS, _RequestTracer, open_traces
from tests.server import garden
from tests.server.http.test_api_keys import bearer, line
from tests.server.http_client import open_client
from tests.server.server_process import ServeProcess

STAGES = ["queue", "decode", "forward", "decide"]
TRACE = "0af7651916cd43dd8448eb211c80319c"

Asked = Callable[[TestClient], Any]


@pytest.fixture
def spans(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Asked], list[Any]]:
    """The spans of a client's requests."""

    def found(ask: Asked, **settings: Any) -> list[Any]:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr("florilege.server.app.open_traces", lambda: _RequestTracer(provider))
        with open_client(bundle, **settings) as client:
            ask(client)
            return list(exporter.get_finished_spans())

    return found


def test_an_answer_is_a_span_with_its_stages_below_in_order(spans: Any) -> None:
    result = {"X-Request-Id": "mine", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    *stages, whole = spans(
        lambda client: client.post(
            "/v1/identify?only=1001,1002", content=garden.photo(2), headers=result
        )
    )
    assert (whole.name, whole.kind.name) == ("POST /v1/identify", "SERVER")
    assert dict(whole.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/identify",
        "http.response.status_code": 200,
        "florilege.request_id": "mine",
    }
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert [span.name for span in stages] == STAGES
    assert all(span.parent.span_id == whole.context.span_id for span in stages)
    for before, after in pairwise(stages):
        assert before.end_time == after.start_time
    assert whole.start_time <= stages[0].start_time
    assert stages[-1].end_time == pytest.approx(whole.end_time, abs=10)
    assert not any(span.attributes for span in stages)


def test_a_refused_request_is_traced_by_its_code_without_personal_data(
    spans: Any, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(line("garden-app", "k1"))
    result = spans(
        lambda client: [
            client.get("/v1/model?x=secret", headers={"User-Agent": "secret"}),
            client.get("/v1/classes/secret", headers=bearer("k1")),
            client.get("/nowhere/secret"),
        ],
        keys_file=tmp_path / "keys",
    )
    lines = [(span.name, span.attributes.get("florilege.code")) for span in result]
    assert lines == [
        ("GET /v1/model", "key_missing"),
        ("GET /v1/classes/{class_id:path}", "class_not_found"),
        ("GET unknown", "not_found"),
    ]
    for word in ("secret", "k1", "garden-app", "testclient"):
        assert word not in " ".join(span.to_json() for span in result)


def test_only_a_failure_of_the_server_is_an_error(spans: Any) -> None:
    def ask(client: Any) -> None:
        client.post("/v1/identify", content=b"<html>")
        client.app.state.engine.drain()
        client.post("/v1/identify", content=garden.photo(2))

    whole = [span for span in spans(ask) if span.parent is None]
    assert [span.attributes["http.response.status_code"] for span in whole] == [415, 503]
    assert [span.status.status_code.name for span in whole] == ["UNSET", "ERROR"]


def test_probes_and_metrics_leave_no_span(spans: Any) -> None:
    paths = ("/livez", "/readyz", "/metrics")
    assert spans(lambda client: [client.get(path) for path in paths]) == []


@pytest.mark.parametrize("name", ENDPOINTS)
def test_the_standard_variables_turn_it_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9/v1/traces")
    opened = open_traces()
    assert opened is not None
    opened.close()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert open_traces() is None


def test_without_a_collector_nothing_is_imported_and_without_the_extra_nothing_breaks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    code = (
        "import sys, florilege.server.app as a; a.open_traces(); "
        "sys.exit('opentelemetry.sdk' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert open_traces() is None
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert open_traces() is None
    assert "pip install '.[otel]'" in caplog.text


def test_no_key_reaches_a_trace_whoever_makes_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI also creates spans if told to, and records the query of a request."""
    collected: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collected.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    (tmp_path / "keys").write_text(line("app", "secret-1"))
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        monkeypatch.setenv(ENDPOINTS[0], f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
        flags = ("--plantnet", "--keys-file", str(tmp_path / "keys"), "--drain-notice-s", "0")
        with ServeProcess(bundle, *flags) as served:
            connection = HTTPConnection("127.0.0.1", served.port, timeout=20)
            for path in ("/v2/identify/all?api-key=secret-1", "/v2/identify/all?api-key=secret-2"):
                connection.request("POST", path, b"", {"X-API-Key": "secret-3"})
                connection.getresponse().read()
            connection.close()
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(30) == 0
        collector.shutdown()
        thread.join()
    payload = b"".join(collected)
    assert payload.count(b"POST /v2/identify/{project}") == 2
    assert b"secret" not in payload
    assert b"fastapi" not in payload

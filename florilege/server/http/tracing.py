"""OpenTelemetry traces, if the environment names a collector and ``otel`` is installed.

Spans are created after the answer, from what is measured anyway. They contain its id, method,
route, status and the time of each stage, but no address, query, header or key.
"""

import logging
import os
from collections.abc import Mapping
from time import time_ns
from typing import Any

from florilege.errors import install_hint

log = logging.getLogger("florilege.server")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED = frozenset({"/livez", "/readyz", "/metrics"})


class RequestTracer:
    """Creates a span of a ``TracerProvider`` for each request, with a child for each stage."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self.close = provider.get_tracer("florilege"), provider.shutdown
        self._extract, self._within = TraceContextTextMapPropagator().extract, set_span_in_context
        self._server, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)

    def add(
        self,
        fields: Mapping[str, Any],
        seconds: float,
        stages: Mapping[str, float],
        headers: Mapping[str, str],
    ) -> None:
        """Add a request that ends now; ``stages`` are the seconds of its last stages, in order."""
        method, route, status = fields["method"], fields["route"], fields["status"]
        if route in _UNTRACED:
            return
        end = time_ns()
        attributes = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "florilege.request_id": fields["request_id"],
            "florilege.code": fields["code"],
        }
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._extract(headers),  # the caller's span, from `traceparent`
            kind=self._server,
            attributes={name: value for name, value in attributes.items() if value is not None},
            start_time=end - round(1e9 * seconds),
        )
        if status is not None and status >= 500:
            span.set_status(self._failed)
        start, context = end - round(1e9 * sum(stages.values())), self._within(span)
        for stage, stage_s in stages.items():
            child = self._tracer.start_span(stage, context=context, start_time=start)
            start += round(1e9 * stage_s)
            child.end(start)
        span.end(end)


def open_traces() -> RequestTracer | None:
    """Traces for the collector that the standard variables name; None if they name none."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:  # clusters set these variables for all programs
        log.warning("no traces are sent: they need the extra otel: %s", install_hint("otel"))
        return None
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "florilege"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return RequestTracer(provider)

"""Metrics for Prometheus. Each application has its own registry; nothing is global.

No label ever contains a species, a file name or a key.
"""

import prometheus_client as prometheus

from florilege.server.schemas import Model

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES = tuple(float(4**power) for power in range(5, 14))  # 1 KiB to 64 MiB
SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
SHARES = tuple(tenth / 10 for tenth in range(1, 11))


class Metrics:
    """All metrics of one server.

    `set_size` gets one observation for each answered request over all classes: its rolling mean
    detects drift without labels (compare it with `set_size_target`).
    """

    def __init__(self) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)
        prometheus.PlatformCollector(registry=registry)
        prometheus.GCCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"florilege_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(f"florilege_{name}", text, labels, registry=registry)

        def histogram(
            name: str, text: str, buckets: tuple[float, ...], *labels: str
        ) -> prometheus.Histogram:
            return prometheus.Histogram(
                f"florilege_{name}", text, labels, buckets=buckets, registry=registry
            )

        self.http_requests = counter(
            "http_requests_total", "Answers by route, method and status.", "route", "method", "code"
        )
        self.http_seconds = histogram(
            "http_request_duration_seconds", "Time to answer, upload included.", SECONDS, "route"
        )
        self.http_bytes = histogram("http_request_size_bytes", "Bytes of each request body.", BYTES)
        self.in_progress = gauge("requests_in_progress", "Requests not answered yet.")
        self.queue_depth = gauge("queue_depth", "Photos waiting or in progress.")
        self.stage_seconds = histogram(
            "stage_duration_seconds", "Time by stage of one request.", SECONDS, "stage"
        )
        self.rejected = counter(
            "rejected_total", "Requests refused and photos rejected, by reason.", "reason"
        )
        self.set_size = histogram("set_size", "Classes in a set, one observation a request.", SIZES)
        self.restricted_set_size = histogram(
            "restricted_set_size", "The same for requests with a list or single classes.", SIZES
        )
        self.set_size_target = gauge("set_size_target", "Expected set size at the default K.")
        self.top_score = histogram("top_score", "Score of the best class.", SHARES)
        self.empty_sets = counter("empty_sets_total", "Answers with an empty set.")
        self.verdicts = counter(
            "rejection_verdicts_total", "Answers by rejection verdict.", "verdict"
        )
        self.drift_alarm = gauge(
            "drift_alarm", "1 while a statistic differs from the validation photos.", "watched"
        )
        self.drift_photos = gauge("drift_photos", "Photos watched for drift so far.")
        self.score_log_photos = counter(
            "score_log_photos_total", "Photos for the score log, by outcome.", "outcome"
        )
        self.listener_dropped = counter(
            "afterwards_dropped_total", "Requests that a listener missed.", "listener"
        )
        self.feedback = counter("feedback_total", "Feedback by outcome.", "outcome")
        self.feedback_photos = counter(
            "feedback_photos_total", "Answers whose photos may be kept, by outcome.", "outcome"
        )
        self.cache_lookups = counter(
            "cache_lookups_total", "Photos looked up in the cache: hit, miss.", "outcome"
        )
        self.decoding_pixels = gauge("decoding_pixels", "Pixels being decoded now.")
        self.model_info = gauge(
            "model_info", "Always 1; the labels identify the served model.", *Model.model_fields
        )
        self.reloads = counter("reloads_total", "Reloads of the bundle, by outcome.", "outcome")
        self.model_loaded = gauge("model_loaded_timestamp_seconds", "When the model was loaded.")

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return prometheus.generate_latest(self.registry)

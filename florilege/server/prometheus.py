"""Metrics for Prometheus. Each application has its own registry; nothing is global.

Several workers write their numbers to files of their private folder, as prometheus_client does it
for several processes, and the one that is asked adds them up.

No label ever contains a species, a file name or a key.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import prometheus_client as prometheus
from prometheus_client import values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from florilege.processes import METRICS, WorkerGroup
from florilege.server.schemas import Model

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES = tuple(float(4**power) for power in range(5, 14))  # 1 KiB to 64 MiB
SIZES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
SHARES = tuple(tenth / 10 for tenth in range(1, 11))


class Metrics:
    """All metrics of one server.

    `set_size` gets one observation for each answered request over all classes: its rolling mean
    detects drift without labels (compare it with `set_size_target`). ``group`` are the workers of a
    server with several; their process has called `count_together`.
    """

    def __init__(self, group: WorkerGroup | None = None) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        self._all = registry if group is None else _registry_of_all(group)
        if group is None:
            prometheus.ProcessCollector(registry=registry)
            prometheus.PlatformCollector(registry=registry)
            prometheus.GCCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"florilege_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, mode: _Mode, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(
                f"florilege_{name}", text, labels, registry=registry, multiprocess_mode=mode
            )

        def computed(name: str, text: str, *labels: str) -> _ComputedGauge:
            gauge = _ComputedGauge(f"florilege_{name}", text, labels)
            # A set: without workers both are the same, and a registry takes a metric only once.
            for target in {registry, self._all}:
                target.register(gauge)
            return gauge

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
            "http_request_duration_seconds", "Time to answer, upload included.", _SECONDS, "route"
        )
        self.http_bytes = histogram("http_request_size_bytes", "Bytes of each request body.", BYTES)
        self.in_progress = gauge("requests_in_progress", "Requests not answered yet.", "livesum")
        self.queue_depth = computed("queue_depth", "Photos waiting or in progress.")
        self.stage_seconds = histogram(
            "stage_duration_seconds", "Time by stage of one request.", _SECONDS, "stage"
        )
        self.rejected = counter(
            "rejected_total", "Requests refused and photos rejected, by reason.", "reason"
        )
        self.set_size = histogram("set_size", "Classes in a set, one observation a request.", SIZES)
        self.restricted_set_size = histogram(
            "restricted_set_size", "The same for requests with a list or single classes.", SIZES
        )
        self.set_size_target = gauge(
            "set_size_target", "Expected set size at the default K.", "mostrecent"
        )
        self.top_score = histogram("top_score", "Score of the best class.", SHARES)
        self.empty_sets = counter("empty_sets_total", "Answers with an empty set.")
        self.verdicts = counter(
            "rejection_verdicts_total", "Answers by rejection verdict.", "verdict"
        )
        self.drift_alarm = gauge(
            "drift_alarm",
            "1 while a statistic differs from the validation photos.",
            "mostrecent",
            "watched",
        )
        self.drift_photos = gauge("drift_photos", "Photos watched for drift so far.", "mostrecent")
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
        self.decoding_pixels = computed("decoding_pixels", "Pixels being decoded now.")
        self.model_info = computed(
            "model_info", "Always 1; the labels identify the served model.", *Model.model_fields
        )
        self.reloads = counter("reloads_total", "Reloads of the bundle, by outcome.", "outcome")
        self.model_loaded = gauge(
            "model_loaded_timestamp_seconds", "When the model was loaded.", "mostrecent"
        )

    def text(self) -> bytes:
        """All metrics in the Prometheus text format, of all workers."""
        return prometheus.generate_latest(self._all)


_Mode = Literal["livesum", "mostrecent"]  # how the values of several workers become one
_Samples = Iterable[tuple[Sequence[str], float]]  # values of labels, and the value


class _ComputedGauge(Collector):
    """A gauge that is computed when it is read; whichever worker is asked knows it."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._about, self._labels = (name, text), labels
        self._compute: Callable[[], _Samples] = lambda: ()

    def set_function(self, compute: Callable[[], _Samples]) -> None:
        """Call ``compute`` for its samples whenever the metrics are read."""
        self._compute = compute

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(*self._about, labels=self._labels)
        for labels, value in self._compute():
            family.add_metric(labels, value)
        return [family]


class _ProcessesCollector(Collector):
    """``process_*`` of the supervisor and all its workers together, also of those that died."""

    # Of these a sum says nothing: the first start, and the limit that every process has.
    ONE_VALUE: Final = {"process_start_time_seconds": min, "process_max_fds": min}

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group

    def collect(self) -> Iterable[Metric]:
        families, amounts = dict[str, Metric](), defaultdict[str, list[float]](list)
        for process in (self._group.parent, *self._group.column("process")):
            for family in _process_metrics(process) if process else ():
                families[family.name] = family
                amounts[family.name].append(family.samples[0].value)
        amounts["process_cpu_seconds"].append(self._group.get("dead_cpu_ms") / 1000)
        for name, family in families.items():
            value = self.ONE_VALUE.get(name, sum)(amounts[name])
            family.samples[:] = [family.samples[0]._replace(value=value)]
        return families.values()


def _process_metrics(process: int) -> Iterable[Metric]:
    return prometheus.ProcessCollector(pid=lambda: process, registry=None).collect()


def _registry_of_all(group: WorkerGroup) -> prometheus.CollectorRegistry:
    """What all workers have counted, whichever of them is asked."""
    registry = prometheus.CollectorRegistry()
    path = str(group.folder / METRICS)
    MultiProcessCollector(registry, path)  # type: ignore[no-untyped-call]  # it has no types
    prometheus.PlatformCollector(registry=registry)
    registry.register(_ProcessesCollector(group))
    return registry


def count_alone() -> None:
    """Let all metrics that this process creates from now on count in its memory.

    A folder that ``PROMETHEUS_MULTIPROC_DIR`` names may be that of other servers, or of an earlier
    one with the same process id, as containers have it: they would count in each other's files.
    """
    values.ValueClass = values.MutexValue


def count_together(group: WorkerGroup) -> None:
    """Let all metrics that this process creates from now on count for its group.

    Files are named after the number of a worker, not its process: one that replaces another counts
    on in its files, so that totals never fall and files do not become more.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(group.folder / METRICS)
    make: Any = values.MultiProcessValue  # it has no types
    values.ValueClass = make(lambda: group.number)

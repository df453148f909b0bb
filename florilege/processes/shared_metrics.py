"""Metrics of several workers, as prometheus_client counts those of several processes: in files."""

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import prometheus_client as prometheus
from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from florilege.processes.worker_group import METRICS, WorkerGroup


class _ProcessesCollector(Collector):
    """``process_*`` of the supervisor and all its workers together, also of those that died."""

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


def registry_of_all(group: WorkerGroup) -> prometheus.CollectorRegistry:
    """What all workers have counted, whichever of them is asked."""
    registry = prometheus.CollectorRegistry()
    path = str(group.folder / METRICS)
    MultiProcessCollector(registry, path)  # type: ignore[no-untyped-call]  # it has no types
    prometheus.PlatformCollector(registry=registry)
    registry.register(_ProcessesCollector(group))
    return registry


def count_together(group: WorkerGroup) -> None:
    """Let all metrics that this process creates from now on count for its group.

    Files are named after the number of a worker, not its process: one that replaces another counts
    on in its files, so that totals never fall and files do not become more.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(group.folder / METRICS)
    make: Any = values.MultiProcessValue  # it has no types
    values.ValueClass = make(lambda: group.number)

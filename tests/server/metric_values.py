"""Read a metric as Prometheus would."""

from florilege.server.prometheus import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """The value of ``florilege_<name>``; 0 if it never counted."""
    return metrics.registry.get_sample_value(f"florilege_{name}", labels) or 0.0

"""Turn scores into prediction sets with guarantees; the subpackages calibrate bundles.

    >>> from florilege.calibration import AverageK
    >>> scores = [[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]]
    >>> AverageK(1.5).fit(scores).predict_set(scores).sum(axis=1)
    array([1, 2])

The names in ``__all__`` are imported on first use. Only ``calibrate_bundle`` needs more than NumPy:
ONNX Runtime (the extra ``cpu`` or ``gpu``).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from florilege.calibration import metrics, rules, scores
    from florilege.calibration.calibrate.calibrate import calibrate_bundle
    from florilege.calibration.drift import Monitor
    from florilege.calibration.marginals import top_k_marginals
    from florilege.calibration.record import CalibrationRecord
    from florilege.calibration.rules.estimators import (
        AverageK,
        BalancedAverageK,
        BalancedCoverage,
        ClassCoverage,
        Coverage,
        TopK,
    )
    from florilege.calibration.selection import TopScores
    from florilege.calibration.sets import SetRule
    from florilege.calibration.threshold import Threshold, average_k_threshold

__all__ = [
    "AverageK",
    "BalancedAverageK",
    "BalancedCoverage",
    "CalibrationRecord",
    "ClassCoverage",
    "Coverage",
    "Monitor",
    "SetRule",
    "Threshold",
    "TopK",
    "TopScores",
    "average_k_threshold",
    "calibrate_bundle",
    "metrics",
    "rules",
    "scores",
    "top_k_marginals",
]

_MODULES = {
    "AverageK": "rules.estimators",
    "BalancedAverageK": "rules.estimators",
    "BalancedCoverage": "rules.estimators",
    "CalibrationRecord": "record",
    "ClassCoverage": "rules.estimators",
    "Coverage": "rules.estimators",
    "Monitor": "drift",
    "SetRule": "sets",
    "Threshold": "threshold",
    "TopK": "rules.estimators",
    "TopScores": "selection",
    "average_k_threshold": "threshold",
    "calibrate_bundle": "calibrate.calibrate",
    "top_k_marginals": "marginals",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}")
    value = getattr(module, name) if name in _MODULES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

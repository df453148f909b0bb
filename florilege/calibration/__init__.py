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
    from florilege.calibration import metrics as metrics
    from florilege.calibration import rules as rules
    from florilege.calibration import scores as scores
    from florilege.calibration.calibrate import calibrate_bundle as calibrate_bundle
    from florilege.calibration.drift import Monitor as Monitor
    from florilege.calibration.marginals import top_k_marginals as top_k_marginals
    from florilege.calibration.record import CalibrationRecord as CalibrationRecord
    from florilege.calibration.rules.estimators import AverageK as AverageK
    from florilege.calibration.rules.estimators import BalancedAverageK as BalancedAverageK
    from florilege.calibration.rules.estimators import BalancedCoverage as BalancedCoverage
    from florilege.calibration.rules.estimators import ClassCoverage as ClassCoverage
    from florilege.calibration.rules.estimators import Coverage as Coverage
    from florilege.calibration.rules.estimators import TopK as TopK
    from florilege.calibration.selection import TopScores as TopScores
    from florilege.calibration.sets import SetRule as SetRule
    from florilege.calibration.threshold import Threshold as Threshold
    from florilege.calibration.threshold import average_k_threshold as average_k_threshold

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
    "calibrate_bundle": "calibrate",
    "metrics": None,  # a module of its own
    "rules": None,
    "scores": None,
    "top_k_marginals": "marginals",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name] or name}")
    value = module if _MODULES[name] is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Prediction sets for photos: train networks, calibrate their thresholds, serve the sets.

    import florilege

    model = florilege.load("bundles/first")
    answer = model.predict("photo.jpg", k=3)
    print([result.taxon.scientific_name for result in answer.results])

The packages below are imported on first use: ``florilege.losses`` needs torch (the extra
``train``), ``florilege.load`` an ONNX runtime (the extra ``cpu`` or ``gpu``).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from florilege import calibration
    from florilege.server.predictor import Predictor, load
    from florilege.training import losses

__all__ = ["Predictor", "calibration", "load", "losses"]

_MODULES = {
    "Predictor": "florilege.server.predictor",
    "calibration": "florilege.calibration",
    "load": "florilege.server.predictor",
    "losses": "florilege.training.losses",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'florilege' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    globals()[name] = getattr(module, name, module)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

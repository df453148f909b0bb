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

_LAZY = {
    "Predictor": ("florilege.server.predictor", "Predictor"),
    "calibration": ("florilege.calibration", None),
    "load": ("florilege.server.predictor", "load"),
    "losses": ("florilege.training.losses", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'florilege' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    imported = importlib.import_module(module)
    value = imported if attribute is None else getattr(imported, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

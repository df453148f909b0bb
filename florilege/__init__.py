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
    __version__: str
    from florilege import calibration, errors
    from florilege.run_bundle import load
    from florilege.server.predict.predictor import Predictor
    from florilege.training import losses

__all__ = ["Predictor", "calibration", "errors", "load", "losses"]

_MODULES = {
    "Predictor": "florilege.server.predict.predictor",
    "calibration": "florilege.calibration",
    "errors": "florilege.errors",
    "load": "florilege.run_bundle",
    "losses": "florilege.training.losses",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from florilege.errors import own_version

        return own_version()
    if name not in _MODULES:
        raise AttributeError(f"module 'florilege' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    # Kept, so that Python asks once: a name of the module, as `load`, or the module, as `errors`.
    globals()[name] = getattr(module, name, module)
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"]

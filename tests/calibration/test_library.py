"""What an array in, sets out needs: NumPy alone."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = (
    *("comparison", "conformal", "fusion", "guarantees", "intervals", "marginals", "measurement"),
    *(
        "metrics",
        "nested_cross_validation",
        "photo_groups",
        "record",
        "rules",
        "scores",
        "selection",
        "threshold",
    ),
)
FOREIGN = ("torch", "onnxruntime", "PIL", "rich", "typer", "matplotlib", "pydantic")


def test_the_library_part_loads_numpy_and_nothing_else() -> None:
    imports = ", ".join(f"florilege.calibration.{name}" for name in LIBRARY)
    code = f"import sys, {imports}; print([n for n in {FOREIGN!r} if n in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"

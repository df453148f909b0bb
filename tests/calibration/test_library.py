"""What an array in, sets out needs: NumPy alone."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = (
    "comparison conformal intervals marginals metrics "
    "photo_groups record rules scores selection sets threshold"
)
FOREIGN = ("torch", "onnxruntime", "PIL", "rich", "typer", "matplotlib", "pydantic")


def test_the_library_part_loads_numpy_and_nothing_else() -> None:
    imports = ", ".join(f"florilege.calibration.{name}" for name in LIBRARY.split())
    code = f"import sys, {imports}; print([n for n in {FOREIGN!r} if n in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


def test_the_names_that_people_use_are_handed_on() -> None:
    code = (
        "import florilege, sys; print([n for n in sys.modules if n.endswith('.threshold')])\n"
        "from florilege import calibration\n"
        "values = [getattr(calibration, name) for name in calibration.__all__]\n"
        "print(calibration.scores.__name__, calibration.rules.calibrate.__name__)\n"
        "print(set(calibration.__all__) - set(dir(calibration)))"
    )
    lines = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines == ["[]", "florilege.calibration.scores calibrate", "set()"]

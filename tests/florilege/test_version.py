"""The version is known without an installation."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from florilege import errors
from tests.shipped import VERSION

ROOT = Path(__file__).parents[2]


def test_a_checkout_that_is_not_installed_knows_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert errors.own_version() == VERSION
    assert errors.installed("numpy") is None
    other = tmp_path / "pyproject.toml"
    monkeypatch.setattr(errors, "_CHECKOUT", other)
    assert errors.own_version() == "unknown"
    other.write_text('[project]\nname = "theirs"\nversion = "7"\n')
    assert errors.own_version() == "unknown"


def test_only_one_module_asks_for_our_metadata() -> None:
    """Any other would fail in a checkout on ``PYTHONPATH``."""
    asking = [
        path.name
        for path in (ROOT / "florilege").rglob("*.py")
        if "importlib.metadata" in path.read_text("utf-8")
    ]
    assert sorted(asking) == ["errors.py", "hooks.py"]  # hooks asks for that of others


def test_the_package_shows_what_it_offers() -> None:
    program = (
        "import florilege\n"
        "names = [name for name in dir(florilege) if not name.startswith('_')]\n"
        "assert names == ['Predictor', 'calibration', 'errors', 'load', 'losses'], names\n"
        "assert issubclass(florilege.errors.UsageError, florilege.errors.FlorilegeError)\n"
        f"assert florilege.__version__ == {VERSION!r}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)

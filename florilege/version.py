"""Versions of packages, and of Florilege itself where it is not installed."""

import tomllib
from pathlib import Path
from typing import Final

_CHECKOUT: Final = Path(__file__).parents[1] / "pyproject.toml"


def own_version() -> str:
    """The version of Florilege; ``unknown`` for a copy of the package without its project."""
    return installed("florilege") or "unknown"


def installed(name: str) -> str | None:
    """The version of a distribution; None if it is not installed.

    A checkout of Florilege on ``PYTHONPATH`` has no metadata: its ``pyproject.toml`` says the same.
    """
    from importlib.metadata import PackageNotFoundError, version  # --help needs none of it

    try:
        return version(name)
    except PackageNotFoundError:
        return _checkout_version(_CHECKOUT) if name == "florilege" else None


def _checkout_version(file: Path) -> str | None:
    try:
        project = tomllib.loads(file.read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    return str(project.get("version")) if project.get("name") == "florilege" else None

"""Verbs called in this process, with words of any type."""

from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from florilege.errors import FlorilegeError


def call(app: typer.Typer, *words: object) -> Result:
    """The result of a verb."""
    return CliRunner().invoke(app, [str(word) for word in words])


def error_of(app: typer.Typer, *words: object) -> FlorilegeError:
    """The error that a verb ends with."""
    error = call(app, *words).exception
    assert isinstance(error, FlorilegeError)
    return error


def quick_run(photos: Path, out: Path) -> list[object]:
    """Flags of an epoch of the ``tiny`` network, or of a sweep of such runs."""
    network = ("--backbone", "tiny", "--image-size", 16, "--batch-size", 8, "--device", "cpu")
    return ["--data", photos, "--out", out, *network, "--epochs", 1, "--set", "workers=0"]

"""The squares of calibration's tests."""

from tests.calibration.conftest import data

__all__ = ["data"]

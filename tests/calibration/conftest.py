"""Fixtures of several folders; they import on use, so that tests of arrays alone start at once."""

from pathlib import Path

import pytest

from florilege.calibration.record import CalibrationRecord


@pytest.fixture(scope="session")
def record() -> CalibrationRecord:
    from tests.calibration.record.test_record import make_record

    return make_record()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve squares of each class in each split; no test changes them."""
    from tests.calibration.small_bundle import make_data

    folder = tmp_path_factory.mktemp("squares") / "d"
    return str(make_data(folder, rows=12, splits=("val", "test", "train")))


@pytest.fixture(scope="session")
def more_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty squares, enough for groups of photos; no test changes them."""
    from tests.calibration.small_bundle import make_data

    folder = tmp_path_factory.mktemp("more_squares") / "d"
    return make_data(folder, rows=20, splits=("train", "val", "test"))

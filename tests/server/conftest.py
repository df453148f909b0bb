"""Shared by the server's tests: one calibrated bundle, one application, one running server."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.models.bundle import open_bundle
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.server_thread import Running


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated bundle; not to be changed."""
    return garden.grow(tmp_path_factory.mktemp("garden"))


@pytest.fixture
def served(bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle to change."""
    return Path(shutil.copytree(bundle, tmp_path / "served"))


@pytest.fixture(scope="session")
def record(bundle: Path) -> CalibrationRecord:
    return read_record(open_bundle(bundle))


@pytest.fixture(scope="session")
def client(bundle: Path) -> Iterator[TestClient]:
    """A client of an application with default limits except for a small body."""
    with open_client(bundle, max_body_bytes=2_000_000, max_pixels=2_000_000) as client:
        yield client


@pytest.fixture(scope="session")
def running(bundle: Path) -> Iterator[Running]:
    """A running server."""
    patient = 60.0  # seconds, for busy machines
    with Running(bundle, max_body_bytes=2_000_000, queue_timeout_s=patient) as running:
        yield running

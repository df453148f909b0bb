"""Shared by the server's tests: one calibrated bundle, one application, one running server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from florilege.server.app import create_app
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.server_thread import Running


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated bundle; not to be changed."""
    return garden.grow(tmp_path_factory.mktemp("garden"))


@pytest.fixture(scope="session")
def client(bundle: Path) -> Iterator[TestClient]:
    """A client of an application with default limits except for a small body."""
    app = create_app(Settings(bundle=bundle, max_body_bytes=2_000_000, max_pixels=2_000_000))
    with TestClient(app, raise_server_exceptions=True) as client:
        yield client


@pytest.fixture(scope="session")
def running(bundle: Path) -> Iterator[Running]:
    """A running server."""
    patient = 60.0  # seconds, for busy machines
    settings = Settings(bundle=bundle, max_body_bytes=2_000_000, queue_timeout_s=patient)
    with Running(settings) as running:
        yield running

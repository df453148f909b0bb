"""Fixtures of all tests of training."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.training.small import leave_out_drawings, write_photos

FORKED = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"  # of workers, Python 3.12 on
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let training fork its workers."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(FORKED)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 training and 5 validation photos of each class; not to be changed."""
    torch.set_num_threads(1)
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module", autouse=True)
def reports_without_drawings() -> Iterator[None]:
    """Drawing the report of a small run takes three times as long as the run itself."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_drawings(patch)
        yield

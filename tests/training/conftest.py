"""Fixtures of all tests of training."""

from collections.abc import Iterator

import pytest

from tests.training.small import leave_out_drawings


@pytest.fixture(scope="module", autouse=True)
def reports_without_drawings() -> Iterator[None]:
    """Drawing the report of a small run takes three times as long as the run itself."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_drawings(patch)
        yield

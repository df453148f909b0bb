"""Float32 to its last bit, and the settings of the process as they were."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from florilege.models.heads import exact_float32


@pytest.fixture
def bfloat16_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


BACKENDS: Any = torch.backends  # torch's stubs lack these settings


def _settings() -> list[object]:
    backends = BACKENDS
    return [
        torch.get_float32_matmul_precision(),
        backends.cudnn.allow_tf32,  # of the older interface, which refuses to mix the two
        backends.cuda.matmul.allow_tf32,
        backends.cudnn.conv.fp32_precision,
        backends.mkldnn.matmul.fp32_precision,
    ]


def _check() -> None:
    before = _settings()
    with exact_float32():
        assert BACKENDS.cudnn.conv.fp32_precision == "ieee"
        assert BACKENDS.cuda.matmul.fp32_precision == "ieee"
        assert BACKENDS.mkldnn.matmul.fp32_precision == "ieee"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.is_autocast_enabled("cpu")):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert _settings() == before
    with pytest.raises(RuntimeError, match="on purpose"), exact_float32():
        raise RuntimeError("on purpose")
    assert _settings() == before


def test_tf32_is_off_for_a_while() -> None:
    assert BACKENDS.cudnn.allow_tf32  # torch's default
    _check()


@pytest.mark.usefixtures("bfloat16_products")
def test_products_of_few_bits_are_off_for_a_while() -> None:
    _check()


def test_autocast_is_off_for_a_while() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _check()
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16

"""Real pretrained weights for tests, where the machine has them.

They are looked for in the folder that ``FLORILEGE_PRETRAINED`` names, else in
``../shared/data/pretrained`` beside the checkout: ``tf_efficientnet_lite0.safetensors``, the
ImageNet weights of timm's network of that name.
"""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).parents[2] / "shared" / "data" / "pretrained"


def efficientnet_lite0() -> Path:
    """The file of timm's ``tf_efficientnet_lite0``; the test is skipped without it."""
    folder = Path(os.environ.get("FLORILEGE_PRETRAINED", _BESIDE))
    file = folder / "tf_efficientnet_lite0.safetensors"
    if not file.is_file():
        pytest.skip(f"no {file.name} at hand: FLORILEGE_PRETRAINED names the folder that holds it")
    return file

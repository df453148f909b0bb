"""What processes that train one network together must have been given alike."""

import hashlib
from importlib.metadata import version
from typing import Final

import torch

from florilege.data.dataset import Dataset, Split
from florilege.training.config import TrainConfig
from florilege.training.run_folder import RunFolder

OF_A_MACHINE: Final = ("workers", "cache_mb", "picture_cache", "features")
"""Settings that may differ from machine to machine."""


def facts(config: TrainConfig, dataset: Dataset, resumed: RunFolder | None) -> dict[str, object]:
    """Settings, data, versions and what is seen of a resumed run, by what a message calls them."""
    plain = config.to_plain()
    settings = {name: value for name, value in plain.items() if name not in OF_A_MACHINE}
    pictures = {f"{name} data": _digest(split) for name, split in dataset.splits.items()}
    versions = {"florilege": version("florilege"), "torch": torch.__version__}
    return {**settings, **pictures, **versions, "run folder": _state(resumed)}


def _digest(split: Split) -> str:
    """Number, and names and labels in short, of the pictures of a split."""
    digest = hashlib.sha256(split.labels.tobytes())
    for name in split.names:
        digest.update(f"{name}\n".encode())
    return f"{len(split)} pictures {digest.hexdigest()[:8]}"


def _state(run: RunFolder | None) -> str:
    if run is None:
        return "new"
    return f"of {run.last.stat().st_size} bytes" if run.last.is_file() else "without checkpoint"

"""What must be the same in all processes that train one network together."""

import hashlib
from importlib.metadata import version
from typing import Final

import torch

from florilege.data.dataset import Dataset, Split
from florilege.training.config import TrainConfig
from florilege.training.run_folder import RunFolder

MACHINE_SETTINGS: Final = ("workers", "cache_mb", "picture_cache", "features")
"""Settings that may differ from machine to machine."""


def facts(config: TrainConfig, dataset: Dataset, resumed: RunFolder | None) -> dict[str, object]:
    """Settings, data, versions and the state of a resumed run, by their names in a message."""
    plain = config.to_plain()
    settings = {name: value for name, value in plain.items() if name not in MACHINE_SETTINGS}
    pictures = {f"{name} data": _digest(split) for name, split in dataset.splits.items()}
    versions = {"florilege": version("florilege"), "torch": torch.__version__}
    return {**settings, **pictures, **versions, "run folder": _state(resumed)}


def _digest(split: Split) -> str:
    """The number of pictures of a split, and a hash of their names and labels."""
    digest = hashlib.sha256(split.labels.tobytes())
    for name in split.names:
        digest.update(f"{name}\n".encode())
    return f"{len(split)} pictures {digest.hexdigest()[:8]}"


def _state(run: RunFolder | None) -> str:
    if run is None:
        return "new"
    return f"of {run.last.stat().st_size} bytes" if run.last.is_file() else "without checkpoint"

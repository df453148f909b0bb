"""``last.pt``: everything a resumed run needs to end with exactly the same weights."""

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn
from torch.amp import GradScaler

from florilege.errors import BundleError
from florilege.models.backbones import load_into
from florilege.training.batches.run_photos import RunPhotos
from florilege.training.config import TrainConfig
from florilege.training.device import Compute
from florilege.training.distributed import ALONE, Ranks
from florilege.training.optimisation import WeightAverage, make_optimiser, restore
from florilege.training.run_folder import write

FORMAT: Final = 1


@dataclass(kw_only=True)
class Position:
    """Where a run is, in plain numbers that the loop updates."""

    epoch: int = 0  # epochs done
    batch: int = 0  # batches of the current epoch done
    step: int = 0  # optimiser steps done in all
    seconds: float = 0.0  # in the loop, before and after resuming
    loss_sum: float = 0.0  # over the examples of the current epoch so far, in this process
    examples: int = 0  # of the current epoch so far, in all processes
    classes_taught: float = 0.0  # sum over them, labels included; 0 if the loss does not say
    best_score: float | None = None  # on validation, so far
    best_epoch: int | None = None  # that reached it, counted from 1
    processes: int = 1  # that train together
    history: list[dict[str, float | str]] = field(default_factory=list)  # rows of metrics.csv


@dataclass(frozen=True)
class TrainingState:
    """The objects whose state is saved and restored."""

    network: nn.Module
    optimiser: torch.optim.Optimizer
    loss_fn: nn.Module
    average: WeightAverage | None = None  # of the network, over the steps
    scaler: GradScaler = field(default_factory=partial(GradScaler, "cpu", enabled=False))
    photos: RunPhotos = field(default_factory=partial(RunPhotos, recorded=True))

    @classmethod
    def before_training(
        cls,
        network: nn.Module,
        loss_fn: nn.Module,
        config: TrainConfig,
        compute: Compute,
        **others: Any,
    ) -> Self:
        """The state before the first step; ``network`` and ``loss_fn`` are on the device."""
        decay = config.average.decay
        average = None if decay is None else WeightAverage(network, decay)
        optimiser = make_optimiser(network, config.optimiser)
        return cls(network, optimiser, loss_fn, average=average, scaler=compute.scaler(), **others)

    @property
    def measured(self) -> nn.Module:
        """The network that is validated, saved and exported: the averaged one, if there is one."""
        return self.network if self.average is None else self.average.module


def save(
    path: Path, trained: TrainingState, position: Position, sums: Sequence[tuple[float, float]] = ()
) -> None:
    """Write a checkpoint; a crash leaves either the old one or the new one, whole.

    ``position`` is that of the first process; ``sums`` holds ``loss_sum`` and ``classes_taught`` of
    each process, by rank.
    """
    content = {
        "format": FORMAT,
        "network": trained.network.state_dict(),
        "optimiser": trained.optimiser.state_dict(),
        "loss": trained.loss_fn.state_dict(),
        "average": {} if trained.average is None else trained.average.state_dict(),
        "scaler": trained.scaler.state_dict(),
        "photos": trained.photos.state_dict(),
        "position": dict(vars(position)),
        "sums": [list(pair) for pair in sums],
        "random": torch.get_rng_state(),
        "random_cuda": [torch.cuda.get_rng_state()] if _uses_gpu() else [],
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write(path, buffer.getbuffer())


def _uses_gpu() -> bool:
    """Whether this process has a context on a GPU; to ask for its state would make one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


def load(path: Path, trained: TrainingState, ranks: Ranks = ALONE) -> Position:
    """Restore what :func:`save` wrote, torch's random state included, in one of ``ranks``.

    Raises:
        BundleError: The file is damaged, newer than this version, or of another run.
    """
    content = _read(path)
    if content.get("format") != FORMAT:
        raise BundleError(
            f"{path} has format {content.get('format')!r}, this version reads {FORMAT}; resume "
            "with the version that wrote it"
        )
    try:
        load_into(trained.network, content["network"], origin=str(path))
        restore(trained.optimiser, content["optimiser"])
        trained.loss_fn.load_state_dict(content["loss"])
        if trained.average is not None:
            load_into(trained.average, content["average"], origin=str(path))
        trained.scaler.load_state_dict(content["scaler"])
        trained.photos.load_state_dict(content.get("photos", {}))  # older versions had none
        position, sums = Position(**content["position"]), content["sums"]
        if len(sums) == ranks.count:
            position.loss_sum, position.classes_taught = sums[ranks.rank]
        elif sums:  # the number of processes has changed: each takes the mean
            means = torch.tensor(sums, dtype=torch.float64).mean(0)
            position.loss_sum, position.classes_taught = means.tolist()
        torch.set_rng_state(content["random"])
        if content["random_cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(content["random_cuda"][0])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise BundleError(f"{path} does not fit this run: {reason}") from error
    return position


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise BundleError(  # torch's own message advises loading it unsafely
            f"{path} is damaged or not a checkpoint: delete it to start this run again"
        ) from error
    if not isinstance(content, dict):
        raise BundleError(f"{path} is not a checkpoint of a run")
    return content


def save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write the state of a network as safetensors."""
    weights = {key: value.detach().cpu().contiguous() for key, value in state.items()}
    write(path, save_safetensors(weights))

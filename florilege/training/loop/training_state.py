"""What training changes, and ``last.pt``, from which a resumed run ends with the same weights.

The optimiser (SGD or AdamW), the learning rate of each parameter and step, the average of the
weights.
"""

import copy
import io
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from florilege.errors import BundleError, os_error_as
from florilege.models.backbones import Network, load_into
from florilege.training.batches.run_photos import RunPhotos
from florilege.training.config import OptimiserConfig, ScheduleConfig, TrainConfig
from florilege.training.configuration import write
from florilege.training.frozen import HeadOnFeatures
from florilege.training.machines import ALONE, Compute, Ranks

FORMAT: Final = 1


def rate_share(schedule: ScheduleConfig, *, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The factor on the peak learning rate, in [0, 1], during step ``step``, counted from 0.

    ``cosine`` falls along half a cosine from the end of the warm-up to the last step, ``step``
    is multiplied by ``factor`` at each milestone, ``constant`` stays at 1. The warm-up rises
    linearly and reaches 1 at its last step.

    Example:
        >>> halving = ScheduleConfig(name="step", milestones=(1.0, 2.0), factor=0.5)
        >>> [rate_share(halving, step=s, steps_per_epoch=2, epochs=3) for s in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    warmup = round(schedule.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return (step + 1) / warmup
    match schedule.name:
        case "step":
            passed = sum(step >= round(at * steps_per_epoch) for at in schedule.milestones)
            return float(schedule.factor**passed)
        case "cosine":
            falling_steps = max(1, epochs * steps_per_epoch - warmup)
            progress = min(1.0, (step - warmup) / falling_steps)
            return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * progress)) / 2
        case _:
            return 1.0


def _make_optimiser(network: nn.Module, config: OptimiserConfig) -> torch.optim.Optimizer:
    """The optimiser over the trainable parameters of the network; no loss has any.

    Every group carries ``multiplier``, its share of the learning rate. Biases and normalisation
    weights (all tensors of one dimension), class tokens, position embeddings and bias tables are
    not decayed unless ``decay_all``. ``layer_decay`` is the ratio of the rate of the last block of
    the backbone to that of the head, and of each block to the one above it. On a GPU a step is one
    kernel. That of ``lbfgs`` holds no state: a head is solved for anew for each weight decay.
    """
    if config.name == "lbfgs":
        return torch.optim.LBFGS(network.parameters())
    groups, rate = _parameter_groups(network, config), config.peak_rate
    on_gpu = all(
        parameter.device.type == "cuda" for group in groups for parameter in group["params"]
    )
    # None, not False, is torch's default code on a CPU.
    fused = True if on_gpu else None
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, fused=fused)
    return torch.optim.SGD(
        groups,
        lr=rate,
        momentum=config.momentum or 0.0,
        nesterov=bool(config.nesterov),
        fused=fused,
    )


def _parameter_groups(network: nn.Module, config: OptimiserConfig) -> list[dict[str, Any]]:
    """Trainable parameters by weight decay and share of the learning rate."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    depth_of, exempt = dict[str, int](), set[str]()
    if isinstance(network, Network):
        depth_of, exempt = network.depths(), network.not_decayed()
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = config.l2 * (config.decay_all or (parameter.ndim > 1 and name not in exempt))
        multiplier = config.multi_label_rate if name.startswith("head.multi_label.") else 1.0
        multiplier *= config.layer_decay ** depth_of.get(name, 0)
        groups.setdefault((decay, multiplier), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "multiplier": multiplier}
        for (decay, multiplier), parameters in groups.items()
    ]


def _restore(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the ``state_dict`` of an optimiser that may have been on another kind of device."""
    for group, ours in zip(state["param_groups"], optimiser.param_groups, strict=True):
        if "fused" in ours:
            # The flag decides on which device the moments are loaded.
            group["fused"] = ours["fused"]
    optimiser.load_state_dict(state)


class _WeightAverage(nn.Module):
    """A copy of a network that holds the exponential moving average of its weights.

    The statistics of batch norm are averaged too: they belong to the weights. Counters are copied.
    ``torch.optim.swa_utils.AveragedModel`` computes the same, but sends the number of steps to the
    device and waits for it, at every step; here that number stays on the host.

    ``decay`` is the share of the average that a late step keeps, in (0, 1).
    """

    n_averaged: Tensor

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        self.module, self.decay = copy.deepcopy(network), decay
        self.register_buffer("n_averaged", torch.tensor(0))

    @torch.no_grad()
    def update_parameters(self, network: nn.Module) -> None:
        """Add the weights of ``network`` after a step.

        The first time they are copied; the step after ``t`` others keeps the share
        ``min(decay, (1 + t) / (10 + t))`` of the average, so that a short run forgets its initial
        weights.
        """
        steps = int(self.n_averaged)
        ours, theirs = list[Tensor](), list[Tensor]()
        for average, current in zip(_tensors(self.module), _tensors(network), strict=True):
            if steps and average.is_floating_point():
                ours.append(average)
                theirs.append(current)
            else:
                average.copy_(current)
        share = min(self.decay, (1 + steps) / (10 + steps))
        if ours:
            torch._foreach_lerp_(ours, theirs, 1 - share)
        self.n_averaged += 1


def _tensors(network: nn.Module) -> chain[Tensor]:
    """Parameters and buffers."""
    return chain(network.parameters(), network.buffers())


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


class TrainingState:
    """The objects whose state is saved and restored; network and loss are on the device."""

    def __init__(
        self,
        network: nn.Module,
        loss_fn: nn.Module,
        config: TrainConfig,
        compute: Compute,
        photos: RunPhotos | None = None,
    ) -> None:
        self.network, self.loss_fn, decay = network, loss_fn, config.average.decay
        # of the network, over the steps
        self.average = None if decay is None else _WeightAverage(network, decay)
        self.optimiser = _make_optimiser(network, config.optimiser)
        self.scaler, self.photos = compute.scaler(), photos or RunPhotos(recorded=True)

    def set_rate(self, rate: float) -> None:
        """Give every group of the optimiser its share of the learning rate ``rate``."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["multiplier"]

    @property
    def measured(self) -> nn.Module:
        """The network that is validated, saved and exported: the averaged one, if there is one."""
        return self.network if self.average is None else self.average.module

    def save_weights(self, path: Path, network: Network) -> None:
        """Write the weights of the whole ``network``, of which a head may be trained alone."""
        measured = self.measured
        if isinstance(measured, HeadOnFeatures):
            _save_weights(path, measured.joined(network))
        else:
            _save_weights(path, measured.state_dict())

    def save(
        self, path: Path, position: Position, sums: Sequence[tuple[float, float]] = ()
    ) -> None:
        """Write a checkpoint; a crash leaves either the old one or the new one, whole.

        ``position`` is that of the first process; ``sums`` holds ``loss_sum`` and
        ``classes_taught`` of each process, by rank.
        """
        content = {
            "format": FORMAT,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "loss": self.loss_fn.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "scaler": self.scaler.state_dict(),
            "photos": self.photos.state_dict(),
            "position": dict(vars(position)),
            "sums": [list(pair) for pair in sums],
            "random": torch.get_rng_state(),
            "random_cuda": [torch.cuda.get_rng_state()] if _uses_gpu() else [],
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write(path, buffer.getbuffer())

    def load(self, path: Path, ranks: Ranks = ALONE) -> Position:
        """Restore what :meth:`save` wrote, torch's random state included, in one of ``ranks``.

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
            load_into(self.network, content["network"], origin=str(path))
            _restore(self.optimiser, content["optimiser"])
            self.loss_fn.load_state_dict(content["loss"])
            if self.average is not None:
                load_into(self.average, content["average"], origin=str(path))
            self.scaler.load_state_dict(content["scaler"])
            self.photos.load_state_dict(content["photos"])
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


def _uses_gpu() -> bool:
    """Whether this process has a context on a GPU; to ask for its state would make one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


def _read(path: Path) -> dict[str, Any]:
    try:
        with os_error_as(BundleError, f"cannot read {path}"):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        # Without torch's message, which advises to load the file unsafely.
        raise BundleError(
            f"{path} is damaged or not a checkpoint: delete it to start this run again"
        ) from error
    if not isinstance(content, dict):
        raise BundleError(f"{path} is not a checkpoint of a run")
    return content


def _save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write the state of a network as safetensors."""
    # copies: the file has no form for layers that share their weights
    copy_of = partial(torch.clone, memory_format=torch.contiguous_format)
    weights = {key: copy_of(value.detach().cpu()) for key, value in state.items()}
    write(path, save_safetensors(weights))

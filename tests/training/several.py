"""Runs of several processes, forked from one that has imported torch already.

``python -m tests.training.several FOLDER`` trains the runs that ``test_distributed`` checks.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # optimisers import it: once here instead of once per process
import typer

import florilege.training.network
from florilege.errors import FlorilegeError
from florilege.models.backbones import Network
from florilege.training.batches import Batch, run_photos
from florilege.training.config import TrainConfig
from florilege.training.loop import Run, Say
from florilege.training.network import build_network
from florilege.training.train import train_run
from tests.training.losses import ranks
from tests.training.small import (
    leave_out_drawings,
    plain_network,
    small_config,
    write_photos,
)

Work = Callable[[int, Say], object]  # takes a rank and a function that prints a line

LOSSES: dict[str, dict[str, Any]] = {
    "cross_entropy": {"class_weight_power": 1.0, "accumulate": 2, "optimiser": {"clip_norm": 0.5}},
    "two_head_average_k": {"average": {"decay": 0.9}, "accumulate": 2},
    "expected_positive": {"class_weight_power": 0.5},
    "role": {},
}
"""By name, with settings whose results depend on all processes."""


def even(photos: Path, name: str) -> TrainConfig:
    """Batches of 10, 10 and 8 pictures, of which each of four processes has 3 or 2."""
    loss = {"name": name} | ({} if name == "cross_entropy" else {"average_k": 2})
    return small_config(photos, loss=loss, batch_size=10, validation={"k": 2}, **LOSSES[name])


def random(photos: Path) -> TrainConfig:
    """Batch norms, augmentation, mixup, noise in the loss, averaged weights, momentum."""
    return small_config(
        photos,
        loss={"name": "noised_top_k", "k": 1},
        batch_size=7,
        mixup=0.4,
        average={"decay": 0.9},
        optimiser={"learning_rate": 0.001},
        checkpoint={"every_steps": 3},
        cache_mb=0,
        workers=0,
    )


LOADING: dict[str, dict[str, Any]] = {
    "in memory": {"workers": 0, "cache_mb": 1024},
    "by workers": {"workers": 2, "cache_mb": 0},
}
"""Where the pictures of a run of one process come from."""


def single(photos: Path, name: str) -> TrainConfig:
    """Of one process, with a checkpoint after every third step."""
    changes = {"epochs": 3, "checkpoint": {"every_steps": 3}, **LOADING[name]}
    return small_config(photos, **changes)


def start(folder: Path, name: str, ranks: int, work: Work) -> None:
    """Run ``work`` in ``ranks`` processes; writes their output, exit codes and seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun, children = time.monotonic(), list[int]()
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
            continue
        os.environ.update(
            {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        with (folder / f"{name}.{rank}.txt").open("w", buffering=1) as answer:
            os._exit(_exit_code(partial(work, rank), partial(print, file=answer)))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (folder / f"{name}.codes").write_text(" ".join(map(str, codes)))
    (folder / f"{name}.seconds").write_text(str(time.monotonic() - begun))


def _exit_code(work: Callable[[Say], object], say: Say) -> int:
    """Work as on the command line, which prints errors."""
    try:
        work(say)
    except FlorilegeError as error:
        say(f"error: {error}")
        return error.exit_code
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        say(f"unforeseen: {error!r}")
        return 1
    return 0


def plainly(config: TrainConfig, run: Path) -> Work:
    """Train a network without batch norms."""

    def work(_rank: int, say: Say) -> None:
        setattr(florilege.training.network, "build_network", plain_network)  # noqa: B010  # for mypy
        train_run(config, run, say=say)

    return work


def turned_network(config: TrainConfig, head: str, classes: int) -> Network:
    """A network with its parameters not in the order of use, so that messages are reordered."""
    network = build_network(config, head, classes)
    for name, part in reversed(list(network.named_children())):
        del network._modules[name]
        network.add_module(name, part)
    return network


def deadly(config: TrainConfig, run: Path, victim: int) -> Work:
    """A rank kills itself in the middle of epoch 2."""
    step = Run.train_step

    def shorter(self: Run, group: Sequence[Batch], steps: int) -> torch.Tensor:
        if self.position.step == 7 and self.ranks.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, group, steps)

    def work(_rank: int, say: Say) -> None:
        Run.train_step = shorter  # type: ignore[method-assign]  # in this process alone
        train_run(config, run, say=say)

    return work


def differing(photos: Path, run: Path) -> Work:
    """Rank 1 starts with another number of epochs."""
    return lambda rank, say: train_run(
        random(photos) if rank else even(photos, "role"), run, say=say
    )


def main(folder: Path) -> None:
    """Train all runs, one after the other."""
    torch.set_num_threads(1)
    leave_out_drawings(pytest.MonkeyPatch())
    # photos are identified while they train: nobody reads one again, in any of the processes
    setattr(run_photos, "_hash_photos", lambda *_, **__: pytest.fail("read again"))  # noqa: B010  # for mypy
    start(folder, "ranks", ranks.RANKS, partial(ranks.work, folder))
    photos = write_photos(folder / "photos")
    for number in range(4, 12):  # classes of different size
        (photos / f"train/green/{number}.png").unlink()
    for name in LOSSES:
        start(folder, name, 4, plainly(even(photos, name), folder / name))
    for name in LOADING:
        start(folder, name, 1, deadly(single(photos, name), folder / name, 0))
    config = random(photos)
    florilege.training.network.build_network = turned_network
    start(folder, "whole", 3, lambda _, say: train_run(config, folder / "whole", say=say))
    start(folder, "killed", 3, deadly(config, folder / "cut", 1))
    resume = partial(train_run, config, folder / "cut", resume=True)
    start(folder, "resumed", 3, lambda _, say: resume(say=say))
    start(folder, "differing", 2, differing(photos, folder / "differing"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

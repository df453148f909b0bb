"""Starts recipes as they are on made-up data, and times a few steps of each.

    python -m benchmarks.papers.recipes [NAME ...] [--each recipe|loss|network] [--steps 3]
                                 [--batch-size N] [--device cpu]

The data have the layout, the classes and about the picture sizes of those published, and as many
pictures as the steps take. The network starts from fresh weights, also where a recipe says
`pretrained`. A run goes the way of `florilege train`: a first step that is not timed, then those
that are, validation on a few pictures, checkpoint, report. So it shows that a recipe starts, and
what a step of it costs.

``--each loss`` takes one recipe for each network, size of batch and loss, ``--each network`` one
for each network and size of batch. `s a step` is by the clock and has the loader in it, `processor
s` is what this process and its threads computed; on a CPU pictures are prepared in the same
process. `hours of the row` are those of the whole row at this pace, validation included
(`plugins/papers/published.py`): by the clock on a GPU, processor hours on a CPU.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import florilege.training.train
from benchmarks.papers.synthetic_layouts import CLASSES, COPIES, pool
from florilege.plugins.papers.published import PAPERS, Cost
from florilege.training.batches import Batch, BatchLoader, Sources
from florilege.training.batches.run_photos import PictureDataset
from florilege.training.config import TrainConfig
from florilege.training.configuration import resolve
from florilege.training.loop import Run
from florilege.training.loop.evaluation import events
from florilege.training.recipes import RECIPES, Recipe

PUBLISHED = PAPERS
WIDTH, HEIGHT = 500, 375  # of most photos of ImageNet
VALIDATED = 8  # pictures of val
FEWEST = 3  # pictures of each class to learn from
FIT_IN_MEMORY = ("cifar-100-python",)  # data that a run decodes once and keeps


@dataclass(frozen=True)
class Timing:
    """What a step of a recipe takes."""

    config: TrainConfig
    seconds: float
    processor: float
    peak_bytes: int  # on a GPU, else 0


def main() -> None:
    """Print a line for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--each", choices=("recipe", "loss", "network"), default="recipe")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    print("| recipe | network | batch | loss | s a step | processor s | pictures a second ", end="")
    print("| peak GiB | hours of the row |\n|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = Data(Path(folder), steps=arguments.steps)
        for name in chosen(arguments.names, arguments.each):
            run = Path(folder) / "runs" / name
            config = config_of(name, data.of(RECIPES[name]), arguments.batch_size, arguments.device)
            print(line(name, timed(config, run, arguments.steps)), flush=True)


class Data:
    """Made-up data sets in a folder, each made when it is first asked for."""

    def __init__(
        self, folder: Path, classes: Mapping[str, int] = CLASSES, *, steps: int, photos: int = 64
    ) -> None:
        self.folder, self.classes, self.steps = folder, classes, steps
        self.photos = pool(folder / "pool", count=photos, width=WIDTH, height=HEIGHT)
        self.made: dict[str, Path] = {}

    def of(self, recipe: Recipe) -> Path:
        """What ``--data`` takes for a recipe."""
        name = recipe.data
        if name not in self.made:
            root, classes = self.folder / "data" / name, self.classes[name]
            pictures = (1 + self.steps) * recipe.settings["batch_size"]  # so that none comes again
            each = max(FEWEST, -(-pictures // classes))
            self.made[name] = COPIES[name](root, classes, self.photos, each=each)
        return self.made[name]


def chosen(names: Sequence[str], each: str) -> list[str]:
    """The recipes of these names, or all of the papers; or the first of each kind of them."""
    kinds: dict[object, str] = {}
    for name in names or PUBLISHED:
        recipe = RECIPES[name]
        settings = recipe.settings
        network = (recipe.data, settings["backbone"], settings["batch_size"])
        kind = {"recipe": name, "loss": (*network, settings["loss"]["name"]), "network": network}
        kinds.setdefault(kind[each], name)
    return list(kinds.values())


def config_of(name: str, data: Path, batch_size: int | None, device: str) -> TrainConfig:
    """The settings of a recipe, from fresh weights."""
    flags = {"recipe": name, "data": str(data), "weights": "none", "device": device}
    overrides = ["workers=0"] if device == "cpu" else []
    if RECIPES[name].data not in FIT_IN_MEMORY:
        overrides.append("cache_mb=0")
    return resolve({**flags, "batch_size": batch_size}, overrides=overrides)


def timed(config: TrainConfig, run: Path, steps: int) -> Timing:
    """Train a first step and then ``steps`` more, validate a few pictures and end."""
    clock = Clock(config.device)

    class Few(Run):
        def fit(self, sources: Sources) -> None:
            each_epoch = -(-len(sources.training) // config.batch_size)
            few = replace(sources, validation=first(sources.validation, VALIDATED))
            loader = BatchLoader(few, config, self.ranks, pin=self.compute.on_gpu)
            with suppress(_Enough):
                while True:
                    self.train_epoch(loader, each_epoch, _advance)
                    self.position.batch = 0  # again, as if it were the same epoch
            self.read_sums()
            with events(self.folder.events, 0) as record:
                self.end_epoch(self.validate(loader), each_epoch, record)

        def train_step(self, group: Sequence[Batch], each_epoch: int) -> Tensor:
            if self.position.step in (1, 1 + steps):
                clock.note()
            if self.position.step == 1 + steps:
                raise _Enough
            return super().train_step(group, each_epoch)

    vars(florilege.training.train)["Run"] = Few
    try:
        florilege.training.train.train_run(config, run, say=_silent)
    finally:
        vars(florilege.training.train)["Run"] = Run
    seconds, processor = (after - before for before, after in zip(*clock.noted, strict=True))
    return Timing(config, seconds / steps, processor / steps, clock.peak_bytes())


class _Enough(Exception):  # no error: there have been steps enough
    pass


class Clock:
    """Times by the clock and of the processor, once the device has done its work."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device == "cuda"
        self.noted: list[tuple[float, float]] = []
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()

    def note(self) -> None:
        """Remember the times of now."""
        if self.on_gpu:
            torch.cuda.synchronize()
        self.noted.append((time.perf_counter(), time.process_time()))

    def peak_bytes(self) -> int:
        """The most that was held on the GPU so far; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() if self.on_gpu else 0


def first(pictures: Any, count: int) -> Any:
    """The first of some pictures; features stay as they are."""
    if not isinstance(pictures, PictureDataset):
        return pictures
    split, remaining = pictures.split, pictures.in_memory
    few = replace(split, labels=split.labels[:count], names=split.names[:count], observations=None)
    return replace(pictures, split=few, in_memory=None if remaining is None else remaining[:count])


def _silent(line: str) -> None:
    """In place of what a run says."""


def _advance(steps: int = 1, note: str = "") -> None:
    """In place of its progress bar."""


def line(name: str, timing: Timing) -> str:
    """The row of the table."""
    config, cost = timing.config, Cost.of(RECIPES[name])
    pace = timing.seconds if timing.peak_bytes else timing.processor
    hours = "" if cost is None else f"{cost.passes * pace / config.batch_size / 3600:.4g}"
    cells = (
        f"`{name}`",
        config.backbone,
        str(config.batch_size),
        config.loss_name,
        f"{timing.seconds:.4g}",
        f"{timing.processor:.4g}",
        f"{config.batch_size / timing.seconds:.4g}",
        f"{timing.peak_bytes / 2**30:.1f}" if timing.peak_bytes else "",
        hours,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

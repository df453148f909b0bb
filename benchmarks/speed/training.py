"""Images a second of the training loop, against a plain loop as torchvision's reference has it.

    python -m benchmarks.speed.training DATA [--backbone resnet18] [--image-size 96]
                    [--batch-size 32] [--workers 2] [--rounds 3] [--precision fp32|bf16]
                    [--device cpu|cuda] [--compile] [--only VARIANT ...]

DATA may be ``made-up:N``: N JPEGs of 500 x 375 as `benchmarks/speed/data_loader.py` draws them.
Both train the same network on the train split of DATA for an epoch, with random crops, flips and
SGD, and read each photo when its turn comes (a run keeps decoded photos in memory where there is
room, which would spare it that from the second epoch on). The plain loop is written the way people
write it: Pillow, ``torchvision.transforms.v2``, a ``DataLoader``, ``loss.item()`` at each step.
Each turn is a process of its own, and the two take turns; ``loader`` is the same without a network,
``features`` is what ``--freeze backbone`` computes once, ours less the export of the graph, against
the plain network in evaluation mode, both in fp32; ``network alone`` is the plain network on random
pictures that lie on the device, the most that any loop can reach. With ``--compile`` an epoch goes
before, which is not counted. By the clock, and by processor seconds of all
processes, which suffer less from other work on the machine. Medians; ``ratio`` is ours over the
plain one. At the end, the loader alone at 224 px on photos of two usual sizes
(`benchmarks/speed/data_loader.py`), and what each loss costs in a step
(`benchmarks/speed/training_step.py`). ``--only`` measures some variants, without these two.
"""

import argparse
import io
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import florilege.training.train
from benchmarks.speed import data_loader as training_loader
from benchmarks.speed import training_step
from florilege.data.records import Split
from florilege.data.sources import open_dataset
from florilege.models.backbones import build
from florilege.models.runtime import Runtime
from florilege.terminal import Advance
from florilege.training.batches import BatchLoader, Sources
from florilege.training.config import TrainConfig
from florilege.training.configuration import resolve
from florilege.training.frozen import _FrozenBackbone
from florilege.training.loop import Run
from florilege.training.machines import Compute

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VARIANTS = ("ours", "plain", "our loader", "plain loader", "our features", "plain features")
ALONE = "network alone"


def main() -> None:
    """Measure one variant in this process, or all of them in others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="both networks, `torch.compile`")
    parser.add_argument("--only", nargs="+", choices=(*VARIANTS, ALONE), default=(*VARIANTS, ALONE))
    parser.add_argument("--variant", choices=(*VARIANTS, ALONE), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant is not None:
        print(json.dumps(_measure(arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = made_up(arguments.data, Path(folder))
        words = [data if word == arguments.data else word for word in sys.argv[1:]]
        results = {name: list[dict[str, float]]() for name in arguments.only}
        for _ in range(arguments.rounds):
            for name, turns in results.items():
                command = [sys.executable, "-m", "benchmarks.speed.training", *words]
                process = subprocess.run(
                    [*command, "--variant", name], stdout=subprocess.PIPE, text=True, check=True
                )
                turns.append(json.loads(process.stdout.splitlines()[-1]))
    print("| variant | images a second | a processor second |\n|---|---|---|")
    rates = {}
    for name, turns in results.items():
        rates[name] = [
            statistics.median(turn["images"] / turn[unit] for turn in turns)
            for unit in ("seconds", "cpu")
        ]
        print(f"| {name} | {rates[name][0]:.1f} | {rates[name][1]:.1f} |")
    for ours, plain in zip(VARIANTS[::2], VARIANTS[1::2], strict=True):
        if not {ours, plain} <= rates.keys():
            continue
        ratios = (a / b for a, b in zip(rates[ours], rates[plain], strict=True))
        print(f"| ratio, {ours} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    print(flush=True)
    if len(results) <= len(VARIANTS):
        return
    training_loader.print_table(arguments.rounds)
    print(flush=True)
    clock = time.perf_counter if arguments.device == "cuda" else time.process_time
    training_step.print_table(arguments.backbone, arguments.device, arguments.rounds, clock)


def made_up(data: str, folder: Path) -> str:
    """The data to use: for ``made-up:N`` an image folder of N photos, which is written."""
    kind, _, number = data.partition(":")
    if kind != "made-up":
        return data
    photos = [
        training_loader.made_up_photo(500, 375, seed) for seed in range(min(100, int(number)))
    ]
    for split, count in (("train", int(number)), ("val", 16)):
        for name in ("a", "b"):
            (folder / split / name).mkdir(parents=True)
        for row in range(count):
            photo = photos[row % len(photos)]
            (folder / split / "ab"[row % 2] / f"{row}.jpg").write_bytes(photo)
    return str(folder)


class Clock:
    """Seconds since it was made, by the clock and of the processor, ended children included."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), self._cpu()

    def read(self, images: int) -> dict[str, float]:
        """What ``images`` took."""
        seconds = time.perf_counter() - self._began
        return {"images": images, "seconds": seconds, "cpu": self._cpu() - self._used}

    @staticmethod
    def _cpu() -> float:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        used = [resource.getrusage(kind) for kind in kinds]
        return sum(each.ru_utime + each.ru_stime for each in used)


def _measure(given: argparse.Namespace) -> dict[str, float]:
    if given.variant == ALONE:
        return _alone(given)
    whose, _, what = str(given.variant).partition(" ")
    if whose == "plain":
        return _plain_features(given) if what == "features" else _plain(given, network=not what)
    return {"": _ours, "loader": _our_loader, "features": _our_features}[what](given)


def _config(given: argparse.Namespace) -> TrainConfig:
    return resolve(
        {
            "data": given.data,
            "backbone": given.backbone,
            "image_size": given.image_size,
            "batch_size": given.batch_size,
            "workers": given.workers,
            "device": given.device,
            "precision": given.precision,
            "compile": given.compile,
            "loss": "cross_entropy",
            "cache_mb": 0,
            "epochs": 2 if given.compile else 1,  # the last one is counted
        }
    )


def _ours(given: argparse.Namespace) -> dict[str, float]:
    results: dict[str, float] = {}

    class Timed(Run):
        def train_epoch(self, loader: BatchLoader, steps: int, advance: Advance) -> None:
            clock = Clock()
            super().train_epoch(loader, steps, advance)
            results.update(clock.read(len(loader.sources.training)))

    vars(florilege.training.train)["Run"] = Timed  # the same loop with a clock around an epoch
    with tempfile.TemporaryDirectory() as folder:
        florilege.training.train.train_run(_config(given), Path(folder) / "run", say=lambda _: None)
    return results


def _our_loader(given: argparse.Namespace) -> dict[str, float]:
    config = _config(given)
    sources = Sources.of(open_dataset(given.data, splits=["train", "val"]), config)
    sources = replace(sources, workers=given.workers)
    clock = Clock()
    rows = sum(len(batch.rows) for batch in BatchLoader(sources, config).training(0))
    return clock.read(rows)


def _our_features(given: argparse.Namespace) -> dict[str, float]:
    config, compute = _config(given), Compute.of(given.device, "fp32")
    dataset = open_dataset(given.data, splits=["train", "val"])
    network = build(given.backbone, len(dataset.classes), "linear")
    with tempfile.TemporaryDirectory() as folder:
        backbone = _FrozenBackbone(
            network,
            config.preprocess,
            Path(folder),
            compute,
            given.workers,
            print,
            Runtime.fastest_float32(),
        )
        backbone.features(dataset.split("val"))  # exports the graph
        clock = Clock()
        return clock.read(len(backbone.features(dataset.split("train"))))


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """The photos of a split the way people read them."""

    def __init__(self, split: Split, *views: v2.Transform) -> None:
        self.split = split
        into = (v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True))
        self.change = v2.Compose([*views, *into, v2.Normalize(MEAN, DEVIATION)])

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.split.read(row))).convert("RGB")
        return self.change(image), int(self.split.labels[row])


def _plain(given: argparse.Namespace, *, network: bool) -> dict[str, float]:
    dataset = open_dataset(given.data, splits=["train", "val"])
    crop = v2.RandomResizedCrop(given.image_size, scale=(0.35, 1.0), antialias=True)
    photos = Photos(dataset.split("train"), crop, v2.RandomHorizontalFlip())
    on_gpu = given.device == "cuda"
    loader = DataLoader(
        photos, given.batch_size, shuffle=True, num_workers=given.workers, pin_memory=on_gpu
    )
    model = torchvision.models.get_model(given.backbone, num_classes=len(dataset.classes))
    model = model.to(given.device, memory_format=torch.channels_last).train()
    if given.compile:
        model.compile()
    optimiser = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    criterion = torch.nn.CrossEntropyLoss()
    for _ in range(2 if given.compile and network else 1):  # the last one is counted
        clock, total = Clock(), 0.0
        for images, labels in loader:
            if network:
                images = images.to(given.device, memory_format=torch.channels_last)
                half = given.precision == "bf16"
                with torch.autocast(given.device, dtype=torch.bfloat16, enabled=half):
                    loss = criterion(model(images), labels.to(given.device))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.item()
    return clock.read(len(photos))


def _alone(given: argparse.Namespace) -> dict[str, float]:
    """Steps of the plain network on one random batch, five of them before the clock starts."""
    model = torchvision.models.get_model(given.backbone)
    model = model.to(given.device, memory_format=torch.channels_last).train()
    if given.compile:
        model.compile()
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    shape = (given.batch_size, 3, given.image_size, given.image_size)
    images = torch.randn(shape, device=given.device).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (given.batch_size,), device=given.device)
    warm, steps, half = 5, 30, given.precision == "bf16"
    for step in range(warm + steps):
        if step == warm:
            _wait(given.device)
            clock = Clock()
        with torch.autocast(given.device, dtype=torch.bfloat16, enabled=half):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    _wait(given.device)
    return clock.read(steps * given.batch_size)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def _plain_features(given: argparse.Namespace) -> dict[str, float]:
    split = open_dataset(given.data, splits=["train", "val"]).split("train")
    photos = Photos(split, v2.Resize(given.image_size), v2.CenterCrop(given.image_size))
    loader = DataLoader(photos, 64, num_workers=given.workers, pin_memory=given.device == "cuda")
    model = torchvision.models.get_model(given.backbone)
    model = model.to(given.device, memory_format=torch.channels_last).eval()
    clock = Clock()
    for images, _ in loader:
        model(images.to(given.device, memory_format=torch.channels_last)).cpu()
    return clock.read(len(photos))


if __name__ == "__main__":
    main()

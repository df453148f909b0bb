"""What fine-tuning the last blocks adds to a head, by loss, clean and noisy labels, several seeds.

    python -m benchmarks.fine_tuning DATA --weights FILE --heads FOLDER --out FOLDER
                                     [--backbone NAME] [--image-size N] [--last N] [--epochs N]
                                     [--losses NAME,NAME] [--noise 0,0.5] [--seeds N]

``--unfreeze LAST`` trains the head and the last blocks and leaves the others as they are. So what
those make of a photo is computed once and kept, as ``--freeze backbone`` keeps features, and a row
takes seconds instead of minutes; but photos are not changed by chance, as a run would change them.

For each loss, rate of noise and seed: a head is trained with the settings that `benchmarks.heads`
chose at the same size of pictures (``--heads`` is its ``--out``), then head and last blocks go on
from it with layer decay 0.8, their batch norms keeping their statistics. A fifth of train, its
labels clean, has chosen the rate, the head and the score kind. Both are measured on the clean test
photos as `benchmarks.heads` does it. The folder keeps what is done, so a second call continues;
seeds come one after the other, so that an early stop leaves whole seeds.

The backbone must be a chain from its first block to its pooling, as timm's EfficientNets are.
"""

import argparse
import copy
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.head_bench import (
    FIRST_SEED,
    MULTI_LABEL_RATE,
    SIZES,
    Bench,
    Rows,
    Setting,
    a_fifth_apart,
    error,
    figures,
    logits_of,
    mean_of,
    noisy_labels,
    train,
)
from calibration.metrics import top_k_accuracy
from data.sources import open_dataset
from models.backbones import Network, build
from models.backbones.blocks import blocks
from models.backbones.weights import open_weights, warm_start
from models.runtime import silence_telemetry
from training.config import OptimiserConfig
from training.device import choose
from training.frozen.features import FrozenBackbone
from training.frozen.store import Features, folder_name
from training.losses import LOSSES
from training.settings import resolve

RATES: Final = (0.0003, 0.001, 0.003)
LAYER_DECAY: Final = 0.8
BATCH: Final = 64
PARTS: Final = ("train", "test")


class Cut(NamedTuple):
    """A backbone in two."""

    front: nn.Module  # pictures to maps, flattened
    tail: nn.Module  # maps to features
    shape: tuple[int, ...]  # of the maps of a picture


@torch.inference_mode()
def cut(backbone: nn.Module, last: int, side: int) -> Cut:
    """Cut a chain before its ``last`` blocks.

    Raises:
        ValueError: It is no chain: the two parts do not give what the whole does.
    """
    if not hasattr(backbone, "global_pool"):
        raise ValueError(f"{type(backbone).__name__} has no global_pool to cut before")
    front, tail = copy.deepcopy(backbone).eval(), copy.deepcopy(backbone).eval()
    found = blocks(backbone)
    for part, names in ((tail, found[:-last]), (front, [*found[-last:], ["global_pool"]])):
        for name in itertools.chain.from_iterable(names):
            part.set_submodule(name, nn.Identity())
    pictures = torch.randn(2, 3, side, side)
    maps = front(pictures)
    if not torch.allclose(tail(maps), backbone.eval()(pictures), rtol=1e-4, atol=1e-5):
        raise ValueError(f"{type(backbone).__name__} is no chain that can be cut")
    front.set_submodule("global_pool", nn.Flatten())
    return Cut(front, tail, tuple(maps.shape[1:]))


class Tail(Network):
    """The last blocks with a head for features brought to mean 0 and deviation 1, as trained."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, backbone: nn.Module, head: Network, spread: tuple[Tensor, Tensor]) -> None:
        layer = copy.deepcopy(head.head)
        super().__init__(copy.deepcopy(backbone), layer, head_name=head.head_name)
        self.register_buffer("mean", spread[0])
        self.register_buffer("deviation", spread[1])
        self.keep_statistics()

    def forward(self, maps: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """What the head makes of ``maps``, ``(batch, channels, height, width)``."""
        outputs: Tensor | tuple[Tensor, Tensor] = self.head(
            (self.backbone(maps) - self.mean) / self.deviation
        )
        return outputs


class Head(NamedTuple):
    """What `benchmarks.heads` chose for a loss."""

    loss: str
    setting: Setting
    served: tuple[str, str]  # head and score kind


class Tuning(NamedTuple):
    """What is chosen for training on from there."""

    rate: float
    served: tuple[str, str]


class Photos(NamedTuple):
    """The same photos as a head sees them and as the last blocks do."""

    features: Rows  # brought to mean 0 and deviation 1
    maps: Rows  # (rows, channels, height, width)

    def only(self, rows: NDArray[np.int64]) -> "Photos":
        """Some of them."""
        return Photos(self.features.only(rows), self.maps.only(rows))

    def labelled(self, labels: NDArray[np.int64]) -> "Photos":
        """With other labels."""
        return Photos(*(each._replace(labels=labels) for each in self))


@dataclass(frozen=True)
class Tails:
    """A data set, the blocks to train on it, and the budget of every fit."""

    heads: Bench
    train: Photos  # with clean labels
    test: Photos
    blocks: nn.Module  # maps to features
    spread: tuple[Tensor, Tensor]  # mean and deviation of the features of train
    epochs: int

    def choose(self, head: Head, noise: float) -> Tuning:
        """The best on a fifth of train by average-K accuracy: mean at K = 2, 3 and 5, then at 1."""
        kept, chosen_on = a_fifth_apart(len(self.train.maps.labels))
        photos = self.train.labelled(self.heads.noisy[noise, 0]).only(kept)
        judged, start = self.train.only(chosen_on).maps, self.start(head, photos, seed=0)
        found = list[tuple[float, float, Tuning]]()
        for rate in RATES:
            network = self.trained(head, start, rate, photos, seed=0)
            by = figures(logits_of(network, judged.features), judged.labels)
            found += [(mean_of(k), k[1], Tuning(rate, served)) for served, k in by.items()]
        return max(found, key=lambda each: each[:2])[2]

    def measure(self, head: Head, tuning: Tuning, noise: float, seed: int) -> dict[str, Any]:
        """Average-K and top-K accuracy on test, percent by `SIZES`, of the head and after it."""
        photos = self.train.labelled(self.heads.noisy[noise, seed])
        start = self.start(head, photos, seed=seed)
        network = self.trained(head, start, tuning.rate, photos, seed=seed)
        found = dict[str, Any]()
        for name, by_head, (served, kind) in (
            ("head", logits_of(start, self.test.features.features), head.served),
            ("tuned", logits_of(network, self.test.maps.features), tuning.served),
        ):
            logits, labels = by_head[served], self.test.maps.labels
            by_k = figures({served: logits}, labels)[served, kind]
            found[name] = [100 * by_k[k] for k in SIZES]
            found[f"{name}_top_k"] = [100 * top_k_accuracy(logits, labels, k) for k in SIZES]
        return found

    def start(self, head: Head, photos: Photos, *, seed: int) -> Network:
        """The head alone."""
        return self.heads.trained_head(head.loss, head.setting, photos.features, seed=seed)

    def trained(
        self, head: Head, start: Network, rate: float, photos: Photos, *, seed: int
    ) -> Tail:
        """The last blocks and a copy of ``start``, trained on."""
        torch.manual_seed(seed)
        network = Tail(self.blocks, start, self.spread)
        objective = self.heads.objective(head.loss, head.setting, photos.maps)
        config = OptimiserConfig(
            learning_rate=rate, layer_decay=LAYER_DECAY, multi_label_rate=MULTI_LABEL_RATE
        )
        train(network, objective, photos.maps, config, batch_size=BATCH, epochs=self.epochs)
        return network


def main() -> None:
    """Measure what is missing and print the table."""
    silence_telemetry()
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    noises = [float(rate) for rate in given.noise.split(",")]
    lines = (given.heads / "results.jsonl").read_text().splitlines()
    heads = {(row["loss"], row["noise"]): _head(row) for row in map(json.loads, lines)}
    tails = _tails(given, noises)
    done = given.out / "results.jsonl"
    rows = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    known = {(row["loss"], row["noise"], row["seed"]) for row in rows}
    tunings = {
        (row["loss"], row["noise"]): Tuning(row["rate"], tuple(row["served"])) for row in rows
    }
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    for seed, noise, loss in itertools.product(seeds, noises, given.losses.split(",")):
        if (loss, noise, seed) in known:
            continue
        began, head = time.process_time(), heads[loss, noise]
        if (loss, noise) not in tunings:
            tunings[loss, noise] = tails.choose(head, noise)
        found = tails.measure(head, tunings[loss, noise], noise, seed)
        rows.append({"loss": loss, "noise": noise, "seed": seed, **found})
        rows[-1] |= {**tunings[loss, noise]._asdict(), "seconds": time.process_time() - began}
        with done.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(f"{loss}, noise {noise:g}, seed {seed}: {rows[-1]['seconds']:.0f} s", flush=True)
    print(tables(rows))


def _head(row: dict[str, Any]) -> Head:
    setting = Setting(row["weight_decay"], row["rate"], row["parameters"])
    return Head(row["loss"], setting, (row["head"], row["score_kind"]))


def _tails(given: argparse.Namespace, noises: Sequence[float]) -> Tails:
    dataset = open_dataset(given.data, splits=["train", "test"])
    names = ("data", "backbone", "weights", "image_size")
    size = resolve({name: getattr(given, name) for name in names}).preprocess
    network = build(given.backbone, len(dataset.classes), "linear", image_size=size.image_size)
    warm_start(network, open_weights(given.weights, given.backbone))
    front, tail, shape = cut(network.backbone, given.last, size.image_size)
    to_maps = Network(front, nn.Linear(int(np.prod(shape)), 1), head_name="linear")
    folder = given.out / "maps" / folder_name(given.backbone, front, size)
    frozen = FrozenBackbone(to_maps, size, folder, choose("cpu", "fp32"), 0, print)
    train, test = (_photos(frozen.features(dataset.split(name)), tail, shape) for name in PARTS)
    spread = train.features.as_features().spread()
    train, test = (_standardised(each, spread) for each in (train, test))
    noisy = noisy_labels(given.data, noises, given.seeds)
    heads = Bench(train.features, test.features, noisy, len(dataset.classes), given.head_epochs)
    return Tails(heads, train, test, tail, spread, given.epochs)


def _photos(kept: Features, tail: nn.Module, shape: tuple[int, ...]) -> Photos:
    maps = torch.from_numpy(kept.values[kept.rows]).reshape(-1, *shape)
    maps = maps.contiguous(memory_format=torch.channels_last)
    features = logits_of(Network(tail, nn.Identity(), head_name="linear"), maps)["linear"]
    labels = kept.split.labels
    return Photos(Rows(torch.from_numpy(features), labels), Rows(maps, labels))


def _standardised(photos: Photos, spread: tuple[Tensor, Tensor]) -> Photos:
    values = (photos.features.features - spread[0]) / spread[1]
    return photos._replace(features=photos.features._replace(features=values))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--heads", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--last", type=int, default=2)
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--noise", default="0,0.5")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--head-epochs", type=int, default=20)
    return parser.parse_args()


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy and gain by loss for each rate of noise, best first, then top-K and what was chosen.

    Means over seeds; standard errors are over seeds too.
    """
    text = list[str]()
    for title, cells in (
        ("loss | head | and last blocks (standard error at 3) | gain at 2 / 3 / 5", _average_k),
        ("loss | top-K of the head | and last blocks | rate, head, score kind", _top_k),
    ):
        for noise in sorted({row["noise"] for row in rows}):
            of = dict[str, list[Mapping[str, Any]]]()
            for row in rows:
                if row["noise"] == noise:
                    of.setdefault(row["loss"], []).append(row)
            text += [f"\nNoise {noise:g}\n", f"| {title} |", "|---" * len(title.split("|")) + "|"]
            best_first = sorted(of, key=lambda loss: -_by_seed(of[loss], "tuned")[:, 2].mean())
            text += [f"| `{loss}` | {cells(of[loss])} |" for loss in best_first]
    return "\n".join(text)


def _average_k(rows: list[Mapping[str, Any]]) -> str:
    head, tuned = (_by_seed(rows, name) for name in ("head", "tuned"))
    gains = " / ".join(f"{gain.mean():+.1f} ± {error(gain):.1f}" for gain in (tuned - head).T[1:])
    return f"{_means(head)} | {_means(tuned)} ({error(tuned[:, 2]):.1f}) | {gains}"


def _top_k(rows: list[Mapping[str, Any]]) -> str:
    head, tuned = (_by_seed(rows, f"{name}_top_k") for name in ("head", "tuned"))
    return f"{_means(head)} | {_means(tuned)} | {rows[0]['rate']:g}, {', '.join(rows[0]['served'])}"


def _by_seed(rows: list[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([row[name] for row in rows])  # (seeds, sizes)


def _means(values: NDArray[np.float64]) -> str:
    return " / ".join(f"{value:.1f}" for value in values.mean(0))


if __name__ == "__main__":
    main()

"""Heads on frozen features as the product trains them, and what each method serves of them.

Whatever is chosen is chosen in the same way for every method: of its heads, kinds of score and
values of the sharpness, what has the best average-K accuracy on val, mean over ``SIZES``. Test is
read for that one alone.
"""

import csv
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from florilege.calibration.rules import average_k
from florilege.calibration.scores import SCORE_KINDS, ScoreKind, scores
from florilege.data.records import Dataset
from florilege.data.sources import open_dataset
from florilege.models.backbones import Network, open_weights, warm_start
from florilege.models.heads import build_head, by_head
from florilege.training.batches import Features
from florilege.training.config import TrainConfig
from florilege.training.configuration import resolve
from florilege.training.frozen import HeadOnFeatures, _FrozenBackbone, frozen_backbone
from florilege.training.frozen.head_solver import DECAYS as DECAYS
from florilege.training.frozen.head_solver import _choose as choose_decay
from florilege.training.frozen.head_solver import _solutions
from florilege.training.machines import Compute
from florilege.training.network import Objective, head_of, seeded, start

SIZES: Final = (1, 2, 3, 5)
PARTS: Final = ("train", "val", "test")
PARAMETERS: Final = {"generalised_cross_entropy": "loss.q=0.5"}  # where they are no defaults
DECAY: Final = 0.1  # where only one is measured
FIRST_SEED: Final = 100
SHARPNESS: Final = (1.0, 1.5, 2.0, 3.0)  # factors on logits, one over temperatures
Row = dict[str, Any]


def backbone_of(config: TrainConfig, dataset: Dataset, folder: Path) -> _FrozenBackbone:
    """The backbone with its weights, to compute features or look them up."""
    assert config.weights is not None
    _, network = seeded(config, dataset)
    warm_start(network, open_weights(config.weights, config.backbone))
    return frozen_backbone(config, network, folder, Compute.of("cpu", "fp32"), print)


class Fit(NamedTuple):
    """A head on features."""

    network: Network
    weight_decay: float
    seconds: float  # of a processor, to train it


@dataclass(frozen=True)
class Bench:
    """A data set as features, and the folder that keeps the heads trained on it."""

    flags: Mapping[str, Any]  # settings of every run
    folder: Path
    dataset: Dataset  # with clean labels
    features: Mapping[str, Features]  # by split

    @classmethod
    def open(cls, flags: Mapping[str, Any], folder: Path) -> Self:
        """Compute the features, or take those that ``train --features`` has kept."""
        flags = {"freeze": "backbone", "device": "cpu", **flags}
        config = resolve(flags)
        dataset = open_dataset(config.data, splits=PARTS)
        frozen = backbone_of(config, dataset, folder)
        return cls(flags, folder, dataset, {p: frozen.features(dataset.split(p)) for p in PARTS})

    def with_flags(self, flags: Mapping[str, Any], folder: str) -> Self:
        """The same features with other settings, whose heads are in a folder of their own."""
        return replace(self, flags={**self.flags, **flags}, folder=self.folder / folder)

    def noisy(self, noise: float, seed: int) -> Dataset:
        """The data set with wrong labels in train."""
        if not noise:
            return self.dataset
        source = self.dataset.source
        joint = "," if ":" in source else ":"
        return open_dataset(f"{source}{joint}noise={noise},noise_seed={seed}", splits=["train"])

    def train(self, noise: float, seed: int) -> Features:
        """Features of train, with wrong labels."""
        return replace(self.features["train"], split=self.noisy(noise, seed).split("train"))

    def config(self, loss: str, weight_decay: float | None, seed: int) -> TrainConfig:
        """The settings of a run: those of the recipe; a weight decay of None leaves it its grid."""
        decay = f"optimiser.weight_decay={'null' if weight_decay is None else weight_decay}"
        of_loss = [PARAMETERS[loss]] if loss in PARAMETERS else []
        return resolve({**self.flags, "loss": loss, "seed": seed}, overrides=[decay, *of_loss])

    def fit(self, loss: str, weight_decay: float, noise: float, seed: int) -> Fit:
        """The head that ``florilege train`` keeps; trained once."""
        config = self.config(loss, weight_decay, seed)

        def state() -> Mapping[str, Tensor]:
            dataset = self.noisy(noise, seed)
            objective, network = seeded(config, dataset)
            start(network, config, objective, dataset, None)
            train = replace(self.features["train"], split=dataset.split("train"))
            return train_head(config, network, objective, train, self.features["val"])

        path = self.place(noise, seed) / f"{loss}-{weight_decay:g}.safetensors"
        return self.kept(path, head_of(loss, config.head), weight_decay, state)

    def place(self, noise: float, seed: int) -> Path:
        """The folder of heads trained on the same labels from the same seed."""
        return self.folder / f"noise-{noise:g}" / f"seed-{seed}"

    def kept(
        self, path: Path, head: str, weight_decay: float, state: Callable[[], Mapping[str, Tensor]]
    ) -> Fit:
        """A head from its file, which is made where there is none."""
        if not path.exists():
            began, result = time.process_time(), state()
            seconds = {"seconds": str(time.process_time() - began)}
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(
                {key: result[key] for key in result if key.startswith("head.")}, path, seconds
            )
        network = self.network(head).eval()
        with safe_open(path, "pt") as file:
            network.load_state_dict({key: file.get_tensor(key) for key in network.state_dict()})
            return Fit(network, weight_decay, float(file.metadata()["seconds"]))

    def network(self, head: str) -> Network:
        """A head without a backbone."""
        dimensions = self.features["train"].values.shape[1]
        layer = build_head(head, dimensions, len(self.dataset.classes))
        return Network(nn.Identity(), layer, head_name=head)

    def fits(self, method: str, decays: Sequence[float], noise: float, seed: int) -> list[Fit]:
        """The heads that a method, a loss, chooses among."""
        return [self.fit(method, decay, noise, seed) for decay in decays]

    def best(self, loss: str, decays: Sequence[float], noise: float, seed: int) -> Fit:
        """The one that does most on val as it is."""
        fits = [self.fit(loss, decay, noise, seed) for decay in decays]
        choice = self.choose(fits, SHARPNESS[:1])[0].fit if len(fits) > 1 else fits[0]
        return choice._replace(seconds=sum(fit.seconds for fit in fits))

    def choose(self, fits: Sequence[Fit], sharpness: Sequence[float]) -> tuple["Choice", float]:
        """What does most on val, the first of several, and its mean average-K accuracy there."""
        results, labels = list[tuple[Choice, float]](), self.features["val"].split.labels
        for fit in fits:
            for head, logits in self.logits(fit, "val").items():
                for kind, factor in itertools.product(SCORE_KINDS, sharpness):
                    if kind == "softmax" or factor == 1:  # it changes no set of sigmoid
                        by_k = average_k_accuracies(scores(factor * logits, kind), labels)
                        results.append((Choice(fit, head, kind, factor), float(np.mean(by_k))))
        return max(results, key=lambda each: each[1])

    @torch.inference_mode()
    def logits(self, fit: Fit, part: str) -> dict[str, NDArray[np.float32]]:
        """Logits of a split by head."""
        features, network = self.features[part], fit.network
        outputs = network(torch.from_numpy(features.values[features.rows]))
        return {head: x.numpy() for head, x in by_head(network.head_name, outputs).items()}


def train_head(
    config: TrainConfig, network: Network, objective: Objective, train: Features, val: Features
) -> Mapping[str, Tensor]:
    """The weights that ``train --freeze backbone`` saves; ``network`` holds the initial head."""
    head = HeadOnFeatures(network, train)
    candidates = list(_solutions(config, head, objective, train, val))
    head.load_state_dict(candidates[choose_decay(candidates, val)[0]].state)
    return head.joined(network)


def append(path: Path, row: Row) -> None:
    """Add a row to a table, with its heading where it is the first."""
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)


def joined(values: Iterable[float]) -> str:
    """Figures of several K in one cell."""
    return " / ".join(f"{value:.1f}" for value in values)


def error(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard error of their mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


class Choice(NamedTuple):
    """What would serve."""

    fit: Fit
    head: str
    score_kind: ScoreKind
    sharpness: float  # factor on the logits, one over a temperature


def average_k_hits(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the set of each photo holds the truth by ``SIZES``, ``(sizes, photos)``.

    The threshold is that of these scores themselves. No set hits where ties at it make sets more
    than 5 % larger than K.
    """
    rows, result = np.arange(len(labels)), []
    for k in SIZES:
        inside = average_k(values, average_k=k).sets(values)
        of_size = inside.sum() <= 1.05 * k * len(rows)
        result.append(inside[rows, labels] & of_size)
    return np.array(result)


def average_k_accuracies(values: NDArray[np.float64], labels: NDArray[np.int64]) -> list[float]:
    """Average-K accuracy by ``SIZES``, percent, the threshold from these scores themselves."""
    return [100 * float(hits.mean()) for hits in average_k_hits(values, labels)]

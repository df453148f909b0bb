"""Searching, training and judging heads on frozen features, for `benchmarks.heads`."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.learning import fitting
from calibration.metrics import top_k_accuracy
from calibration.rules.rules import average_k
from calibration.scores import SCORE_KINDS, scores
from data.dataset import Split
from data.sources import open_dataset
from models.backbones import Network
from models.heads import CosineHead, TwoHead, build_head, by_head
from training.config import OptimiserConfig, ScheduleConfig
from training.frozen.blend import PARTNERS, SHARPNESS, Candidate, candidates
from training.frozen.lda import Discriminant, Linear
from training.frozen.store import Features
from training.objective import Objective, make_objective
from training.optimisation.optimiser import make_optimiser, rate_share, set_rate

SIZES: Final = (1, 2, 3, 5)
CHOOSING: Final = (2, 3, 5)
DECAYS: Final = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
RATES: Final = (0.1, 0.03, 0.3)
BATCH: Final = 128
MULTI_LABEL_RATE: Final = 3.0
ROWS_AT_ONCE: Final = 256
FIRST_SEED: Final = 100  # settings are searched with seed 0
SHRINKAGES: Final = (0.1, 0.4)
ADDED: Final = (0.01, 0.03, 0.1, 0.3)
WITH_LDA: Final = ("cross_entropy+lda", "generalised_cross_entropy+lda")
BLEND: Final = "blend"
MEMBERS: Final = ("generalised_cross_entropy", "assume_negative")
OURS: Final = (*WITH_LDA, BLEND)
LogitsBySeed = Callable[[int], NDArray[np.float32]]
BASELINES: Final = (
    *("cross_entropy", "generalised_cross_entropy"),
    *("two_head_average_k", "assume_negative"),
)
SEARCHED: Final[Mapping[str, Mapping[str, tuple[float, ...]]]] = {
    "cross_entropy": {"label_smoothing": (0.0, 0.1)},
    "generalised_cross_entropy": {"q": (0.5, 0.3, 0.7)},
    "focal": {"gamma": (1.0, 2.0)},
    "ldam": {"scale": (10.0, 30.0)},
    "smooth_top_k": {"tau": (0.1, 1.0)},
    "noised_top_k": {"epsilon": (0.2, 1.0)},
    "imbalanced_noised_top_k": {"scale": (10.0, 30.0), "epsilon": (0.1, 0.01)},
    "two_head_average_k": {"alpha": (0.1, 1.0)},
    "expected_positive": {"beta": (0.01, 0.1)},
}
"""Parameters that are chosen after the weight decay, one after the other; then the rate."""


class Rows(NamedTuple):
    """Features and labels of some photos."""

    features: torch.Tensor  # float32, standardised by train, (rows, dimensions)
    labels: NDArray[np.int64]

    def only(self, rows: NDArray[np.int64]) -> "Rows":
        """Some of them."""
        return Rows(self.features[torch.from_numpy(rows)], self.labels[rows])

    def as_features(self) -> Features:
        """As a discriminant takes them."""
        rows = np.arange(len(self.labels))
        none = [""] * len(self.labels)
        split = Split(name="", labels=self.labels, names=none, observations=None, read=_unread)
        return Features(split, self.features.numpy(), rows)


def _unread(_row: int) -> bytes:
    """Features stand in for the photos; nobody reads them again."""
    return b""


class Setting(NamedTuple):
    """What is chosen for a loss."""

    weight_decay: float
    rate: float
    parameters: Mapping[str, float]


class Chosen(NamedTuple):
    """The best of several settings."""

    accuracy: float
    setting: Setting
    served: tuple[str, str]  # head and score kind


@dataclass(frozen=True)
class Bench:
    """A data set as features, and the budget of every fit."""

    train: Rows  # with clean labels
    test: Rows
    noisy: Mapping[tuple[float, int], NDArray[np.int64]]  # labels of train by rate and seed
    classes: int
    epochs: int

    def measure(self, name: str, noise: float, seeds: int) -> dict[str, Any]:
        """Choose the settings of a loss, of ``LOSS+lda`` or of the blend, train, measure."""
        began = time.monotonic()
        if name == BLEND:
            row, logits_by = self.blend(noise)
        else:
            row, logits_by = self.one(name, noise)
        of = (logits_by(seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds))
        by_seed = [accuracies(logits, self.test.labels, row["score_kind"]) for logits in of]
        return {
            "loss": name,
            "noise": noise,
            **row,
            "seconds": round(time.monotonic() - began, 1),
            "average_k": [each[0] for each in by_seed],
            "top_k": [each[1] for each in by_seed],
        }

    def one(self, name: str, noise: float) -> tuple[dict[str, Any], LogitsBySeed]:
        """What is chosen for a loss, or for ``LOSS+lda``, and its logits on test."""
        loss, _, lda = name.partition("+")
        chosen = self.choose(loss, noise)
        added = self.discriminant(loss, chosen, *self.split(noise)) if lda else None

        def logits_by(seed: int) -> NDArray[np.float32]:
            rows = self.train._replace(labels=self.noisy[noise, seed])
            logits = self.fit(loss, chosen.setting, rows, self.test, seed=seed)[chosen.served[0]]
            if added is not None:
                layer = Discriminant(rows.as_features(), self.classes).layer(added[0])
                logits = logits + added[1] * layer.logits(self.test.features)
            return logits

        served = {"head": chosen.served[0], "score_kind": chosen.served[1]}
        return {**chosen.setting._asdict(), **served, "lda": added}, logits_by

    def blend(self, noise: float) -> tuple[dict[str, Any], LogitsBySeed]:
        """What is chosen for the blend, and its logits on test."""
        shorter = replace(self, epochs=self.epochs // len(MEMBERS))
        settings = {loss: shorter.choose(loss, noise).setting for loss in MEMBERS}

        def blends(rows: Rows, seed: int) -> Iterator[Candidate]:
            own, other = (shorter.linear(loss, settings[loss], rows, seed=seed) for loss in MEMBERS)
            return candidates(own, other, rows.as_features())

        rows, judged = self.split(noise)
        found = list[float]()
        for each in blends(rows, 0):
            logits = each.head.logits(judged.features)
            found.append(mean_of(figures({"it": logits}, judged.labels)["it", "softmax"]))
        best = found.index(max(found))

        def logits_by(seed: int) -> NDArray[np.float32]:
            rows = self.train._replace(labels=self.noisy[noise, seed])
            chosen = next(itertools.islice(blends(rows, seed), best, None))
            return chosen.head.logits(self.test.features)

        partners, sharpness = tuple(itertools.product(PARTNERS, SHARPNESS))[best]
        row: dict[str, Any] = {
            "members": {loss: setting._asdict() for loss, setting in settings.items()}
        }
        row |= {"partners": partners, "sharpness": sharpness}
        row |= {"head": "linear", "score_kind": "softmax"}
        return row, logits_by

    def linear(self, loss: str, setting: Setting, rows: Rows, *, seed: int) -> Linear:
        """A linear head trained on features."""
        layer = self.trained_head(loss, setting, rows, seed=seed).head
        assert isinstance(layer, nn.Linear)
        return Linear(layer.weight.detach(), layer.bias.detach())

    def split(self, noise: float) -> tuple[Rows, Rows]:
        """Train without a fifth, its labels noisy, and that fifth, its labels clean."""
        kept, chosen_on = a_fifth_apart(len(self.train.labels))
        noisy = self.train._replace(labels=self.noisy[noise, 0])
        return noisy.only(kept), self.train.only(chosen_on)

    def choose(self, loss: str, noise: float) -> Chosen:
        """The settings of a loss."""
        rows, judged = self.split(noise)

        def best(tried: Iterable[Setting]) -> Chosen:
            found = []
            for setting in tried:
                logits = self.fit(loss, setting, rows, judged, seed=0)
                for served, by_k in figures(logits, judged.labels).items():
                    found.append(Chosen(mean_of(by_k), setting, served))
            return max(found, key=accuracy_of)

        searched = SEARCHED.get(loss, {})
        first = fitting_size(loss) | {name: values[0] for name, values in searched.items()}
        plain = Setting(DECAYS[0], RATES[0], first)
        chosen = best(plain._replace(weight_decay=decay) for decay in DECAYS)
        for key, values in searched.items():
            now = chosen.setting
            others = (now._replace(parameters={**now.parameters, key: v}) for v in values[1:])
            chosen = max(chosen, best(others), key=accuracy_of)
        others = (chosen.setting._replace(rate=rate) for rate in RATES[1:])
        return max(chosen, best(others), key=accuracy_of)

    def discriminant(
        self, loss: str, chosen: Chosen, rows: Rows, judged: Rows
    ) -> tuple[float, float] | None:
        """Shrinkage and share of the discriminant; None if no share helps."""
        logits = self.fit(loss, chosen.setting, rows, judged, seed=0)[chosen.served[0]]
        discriminant, found = Discriminant(rows.as_features(), self.classes), []
        for shrinkage in SHRINKAGES:
            ours = discriminant.layer(shrinkage).logits(judged.features)
            for share in ADDED:
                by_k = figures({"it": logits + share * ours}, judged.labels)["it", chosen.served[1]]
                found.append((mean_of(by_k), (shrinkage, share)))
        best = max(found)
        return best[1] if best[0] > chosen.accuracy else None

    def fit(
        self, loss: str, setting: Setting, rows: Rows, test: Rows, *, seed: int
    ) -> dict[str, NDArray[np.float32]]:
        """Train a head and give its logits on ``test`` by head."""
        head = self.trained_head(loss, setting, rows, seed=seed)
        return logits_of(head, test.features)

    def trained_head(self, loss: str, setting: Setting, rows: Rows, *, seed: int) -> Network:
        """A head trained on features, as a network without a backbone."""
        torch.manual_seed(seed)
        objective = self.objective(loss, setting, rows)
        layer = build_head(objective.head, rows.features.shape[1], self.classes)
        if isinstance(layer, TwoHead) and objective.loss_fn.average_k:
            layer.start_multi_label_at(objective.loss_fn.average_k)
        if isinstance(layer, CosineHead) and objective.scale is not None:
            layer.scale.fill_(objective.scale)
        network = Network(nn.Identity(), layer, head_name=objective.head)
        config = OptimiserConfig(
            learning_rate=setting.rate,
            weight_decay=setting.weight_decay,
            multi_label_rate=MULTI_LABEL_RATE,
        )
        train(network, objective, rows, config, batch_size=BATCH, epochs=self.epochs)
        return network

    def objective(self, loss: str, setting: Setting, rows: Rows) -> Objective:
        """A loss as it trains on these rows."""
        counts = np.maximum(np.bincount(rows.labels, minlength=self.classes), 1)
        return make_objective(loss, setting.parameters, head="auto", class_counts=counts.tolist())


def train(
    network: Network,
    objective: Objective,
    rows: Rows,
    config: OptimiserConfig,
    *,
    batch_size: int,
    epochs: int,
) -> None:
    """Train what a network makes of rows, in an order of torch's random state, by a cosine."""
    optimiser, labels = make_optimiser(network, config), torch.from_numpy(rows.labels)
    steps, step = -(-len(labels) // batch_size), 0
    network.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels)), batch_size):
            share = rate_share(ScheduleConfig(), step=step, steps_per_epoch=steps, epochs=epochs)
            set_rate(optimiser, config.learning_rate * share)
            value = objective(network(rows.features[batch]), labels[batch], batch)
            optimiser.zero_grad()
            torch.autograd.backward(value)
            optimiser.step()
            step += 1


@torch.inference_mode()
def logits_of(network: Network, inputs: torch.Tensor) -> dict[str, NDArray[np.float32]]:
    """Logits by head."""
    network.eval()
    found = [
        by_head(network.head_name, network(part)) for part in torch.split(inputs, ROWS_AT_ONCE)
    ]
    return {head: torch.cat([part[head] for part in found]).numpy() for head in found[0]}


def a_fifth_apart(rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of train to train on while settings are chosen, and those that choose."""
    held_out = np.random.default_rng(0).permutation(rows) % 5 == 0
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def accuracy_of(chosen: Chosen) -> float:
    """What the best is the largest of."""
    return chosen.accuracy


def mean_of(by_k: Mapping[int, float]) -> float:
    """What settings are chosen by."""
    return sum(by_k[k] for k in CHOOSING) / len(CHOOSING)


def fitting_size(loss: str) -> dict[str, float]:
    """The set size of a loss that has one: 3."""
    pairs = (item.removeprefix("loss.").split("=") for item in fitting(loss))
    return {name: int(k) if name == "k" else float(k) for name, k in pairs}


def accuracies(
    logits: NDArray[np.float32], labels: NDArray[np.int64], kind: str
) -> tuple[list[float], list[float]]:
    """Average-K and top-K accuracy, percent by `SIZES`."""
    by_k = figures({"it": logits}, labels)["it", kind]
    top = [100 * top_k_accuracy(logits, labels, k) for k in SIZES]
    return [100 * by_k[k] for k in SIZES], top


def figures(
    logits: Mapping[str, NDArray[np.float32]], labels: NDArray[np.int64]
) -> dict[tuple[str, str], dict[int, float]]:
    """Average-K accuracy by head and score kind, then by K, at a mean size of exactly K."""
    found = dict[tuple[str, str], dict[int, float]]()
    for head, values in logits.items():
        for kind in SCORE_KINDS:
            given = scores(values, kind)
            hit = {k: average_k(given, average_k=k).sets(given) for k in SIZES}
            rows = np.arange(len(labels))
            found[head, kind] = {k: float(sets[rows, labels].mean()) for k, sets in hit.items()}
    return found


def noisy_labels(
    source: str, rates: Sequence[float], seeds: int
) -> dict[tuple[float, int], NDArray[np.int64]]:
    """Labels of train by rate of noise and seed: 0 for a search, then `FIRST_SEED` on."""
    found = {}
    joint = "," if ":" in source else ":"
    for rate, seed in itertools.product(rates, [0, *range(FIRST_SEED, FIRST_SEED + seeds)]):
        changed = f"{source}{joint}noise={rate},noise_seed={seed}" if rate else source
        found[rate, seed] = open_dataset(changed, splits=["train"]).split("train").labels
    return found


def error(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard error of their mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan

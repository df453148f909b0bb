"""Which loss for a head on frozen features? Every loss, clean and noisy labels, several seeds.

    python -m benchmarks.heads DATA [DATA ...] --weights FILE [--backbone NAME] [--image-size N]
                               [--out FOLDER] [--losses NAME,NAME] [--noise 0,0.2,0.5] [--seeds N]
                               [--epochs N] [--fresh ROWS [--after N]]

DATA is a source as ``florilege train`` takes it. Of several, such as the same photos cut otherwise
(``--redraws`` of `benchmarks.photo_sets`), each is searched and trained for itself, and figures are
over all of them and their seeds. Features are computed once, as by ``--freeze backbone``, and kept
in the folder.

For each loss and noise rate: a fifth of train, its labels clean, chooses the weight decay, the
learning rate, the parameters listed in ``SEARCHED``, the head and the score kind, by mean average-K
accuracy at K = 2, 3 and 5. Then the head is trained on all of train, with noisy labels, from
several seeds of weights, order and noise. Figures are of the clean test photos, in percent:
average-K accuracy with `min_size` 1 and the threshold from the scores of the test photos themselves
(it needs no labels), so that every method has sets of exactly K on average, and top-K accuracy.
``LOSS+lda`` adds the linear discriminant of the features, as much of it as the same fifth of train
says. ``blend`` is the head of `training.frozen.blend`: of ``MEMBERS``, each searched and trained
for half the epochs, so that no method trains for longer; the same fifth chooses the share of the
second and the sharpness. The folder keeps what is done, so a second call continues.

With ``--fresh ROWS``, DATA has a ``fraction`` and both train and test are other photos: of those it
leaves out of train, ROWS are the new test, and as many as it keeps are the new train, or all that
are left. So what was settled with the test photos in view can be judged once more on photos nobody
has looked at; ``--after N`` leaves out the first N, which such a run has used.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
from models.backbones import Network, build
from models.backbones.weights import open_weights, warm_start
from models.heads import CosineHead, TwoHead, build_head, by_head
from models.runtime import silence_telemetry
from training.config import OptimiserConfig, ScheduleConfig
from training.device import choose
from training.frozen.blend import PARTNERS, SHARPNESS, Candidate, candidates
from training.frozen.features import FrozenBackbone
from training.frozen.lda import Discriminant, Linear
from training.frozen.store import Features, folder_name
from training.losses import LOSSES
from training.objective import Objective, make_objective
from training.optimisation.optimiser import make_optimiser, rate_share, set_rate
from training.settings import resolve

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


def main() -> None:
    """Measure what is missing and print the tables."""
    silence_telemetry()
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    rates = [float(rate) for rate in given.noise.split(",")]
    done = given.out / "results.jsonl"
    rows = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    known = {(row["data"], row["loss"], row["noise"]) for row in rows}
    for data in given.data:
        bench = _bench(data, given, rates)
        for rate, loss in itertools.product(rates, given.losses.split(",")):
            if (data, loss, rate) not in known:
                rows.append({"data": data, **bench.measure(loss, rate, given.seeds)})
                with done.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(f"{data}, {loss}, noise {rate:g}: {rows[-1]['seconds']} s", flush=True)
    print(tables(joined(rows)))


def joined(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each loss and rate of noise: the figures of all data, the settings of the first."""
    found = dict[tuple[str, float], dict[str, Any]]()
    for row in rows:
        whole = found.setdefault((row["loss"], row["noise"]), {**row, "average_k": [], "top_k": []})
        for figure in ("average_k", "top_k"):
            whole[figure] += row[figure]
    return list(found.values())


def _bench(data: str, given: argparse.Namespace, rates: list[float]) -> Bench:
    source = data.partition(":")[0] if given.fresh else data
    dataset = open_dataset(source, splits=["train", "test"])
    names = ("backbone", "weights", "image_size")
    size = resolve({"data": data, **{name: getattr(given, name) for name in names}}).preprocess
    network = build(given.backbone, len(dataset.classes), "linear", image_size=size.image_size)
    warm_start(network, open_weights(given.weights, given.backbone))
    folder = given.out / "features" / folder_name(given.backbone, network.backbone, size)
    backbone = FrozenBackbone(network, size, folder, choose("cpu", "fp32"), 0, print)
    train, test = (backbone.features(dataset.split(name)) for name in ("train", "test"))
    rows = np.arange(len(train))  # of train, that train the heads
    labels = test.split.labels
    if given.fresh:
        used = set(open_dataset(data, splits=["train"]).split("train").names)
        left = np.array([row for row, name in enumerate(train.split.names) if name not in used])
        order = np.random.default_rng(0).permutation(left)[given.after :]
        asked, rows = np.split(order, [given.fresh])
        rows, labels = rows[: len(used)], train.split.labels[asked]
        test = replace(train, rows=train.rows[asked])
    train = replace(train, rows=train.rows[rows])
    mean, deviation = train.spread()
    standard = [
        (torch.from_numpy(each.values[each.rows]) - mean) / deviation for each in (train, test)
    ]
    noisy = {
        key: labels_of[rows] for key, labels_of in noisy_labels(source, rates, given.seeds).items()
    }
    return Bench(
        Rows(standard[0], train.split.labels[rows]),
        Rows(standard[1], labels),
        noisy,
        len(dataset.classes),
        given.epochs,
    )


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--losses", default=",".join([*LOSSES, *OURS]))
    parser.add_argument("--noise", default="0,0.2,0.5")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fresh", type=int, default=0)
    parser.add_argument("--after", type=int, default=0)
    return parser.parse_args()


def tables(rows: list[dict[str, Any]]) -> str:
    """Average-K accuracy, top-K accuracy and settings by loss and noise, then paired gains."""
    noises = sorted({row["noise"] for row in rows})
    of = {(row["loss"], row["noise"]): row for row in rows}
    by_last = sorted(rows, key=lambda row: (row["noise"], np.mean(row["average_k"], axis=0)[2]))
    losses = list(dict.fromkeys(row["loss"] for row in reversed(by_last)))
    head = "| loss | " + " | ".join(f"noise {noise:g}" for noise in noises) + " |\n|---"
    text = []
    for title, cell in (
        ("Average-K accuracy at K = 1 / 2 / 3 / 5 (standard error at 3)", _average_k),
        ("Top-K accuracy at K = 1 / 2 / 3 / 5", _top_k),
        ("Settings chosen", _settings),
    ):
        text += [f"\n{title}\n", head + "|---" * len(noises) + "|"]
        for loss in losses:
            found = [of.get((loss, noise)) for noise in noises]
            cells = " | ".join("" if row is None else cell(row) for row in found)
            text.append(f"| `{loss}` | {cells} |")
    text += ["\nGain in average-K accuracy at K = 2 / 3 / 5 over the same seeds\n"]
    text.append(head.replace("loss", "gain of, over", 1) + "|---" * len(noises) + "|")
    for ours, theirs in itertools.product(OURS, BASELINES):
        both = [(of.get((ours, noise)), of.get((theirs, noise))) for noise in noises]
        cells = " | ".join("" if a is None or b is None else _gain(a, b) for a, b in both)
        text.append(f"| `{ours}`, `{theirs}` | {cells} |")
    return "\n".join(text)


def _average_k(row: dict[str, Any]) -> str:
    means, at_three = np.mean(row["average_k"], axis=0), [k[2] for k in row["average_k"]]
    return " / ".join(f"{value:.1f}" for value in means) + f" ({error(at_three):.1f})"


def _top_k(row: dict[str, Any]) -> str:
    return " / ".join(f"{value:.1f}" for value in np.mean(row["top_k"], axis=0))


def _settings(row: dict[str, Any]) -> str:
    if row["loss"] == BLEND:
        members = "; ".join(
            f"{loss} {_chosen(loss, each)}" for loss, each in row["members"].items()
        )
        return f"partner's share {row['partners']:g}, sharpness {row['sharpness']:g}; {members}"
    said = _chosen(row["loss"].split("+")[0], row)
    if row["lda"]:
        said += f", share {row['lda'][1]:g}, shrinkage {row['lda'][0]:g}"
    return f"{said}, {row['head']}, {row['score_kind']}"


def _chosen(loss: str, setting: Mapping[str, Any]) -> str:
    chosen = {key: setting["parameters"][key] for key in SEARCHED.get(loss, {})}
    chosen |= {"weight decay": setting["weight_decay"], "rate": setting["rate"]}
    return ", ".join(f"{key} {value:g}" for key, value in chosen.items())


def _gain(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    apart = np.array(ours["average_k"]) - np.array(theirs["average_k"])  # (seeds, sizes)
    return " / ".join(f"{v.mean():+.1f} ± {error(v):.1f}" for v in apart[:, 1:].T)


def error(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard error of their mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


if __name__ == "__main__":
    main()

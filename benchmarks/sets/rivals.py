"""Losses of other papers beside ours, on frozen features with clean and with wrong labels.

    python -m benchmarks.sets.rivals DATA --name NAME --weights FILE --out FOLDER [--seeds N]
                               [--methods NAME,NAME] [--noise 0,0.5] [--image-size N]
    python -m benchmarks.sets.rivals --out FOLDER

Train has wrong labels; val, with clean ones, chooses weight decay, head, kind of score and
temperature, of the same values for every method. A rival also chooses its own parameter of three, a
freedom that ours have not. ``size_choice`` puts a size on each photo with a layer of its own (arXiv
2407.07140), trained on hits of heads that did not see the photo; sizes between two costs are mixed
at random, so that sets have K classes on average like all others. Test is read once.
"""

import argparse
import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.sets.head_methods import (
    DECAYS,
    FIRST_SEED,
    SIZES,
    Bench,
    Fit,
    Row,
    append,
    average_k_accuracies,
    error,
    train_head,
)
from benchmarks.sets.rival_losses import SIZES as CHOICES
from benchmarks.sets.rival_losses import ClassAdaptive, RankWeighted, chosen_sizes
from florilege.calibration.scores import scores
from florilege.calibration.settings import TEMPERATURES
from florilege.models.runtime import silence_telemetry
from florilege.training.losses import Loss
from florilege.training.network import seeded, start

SHARPNESS = tuple(sorted((1 / t for t in TEMPERATURES), key=lambda value: abs(np.log(value))))
PARAMETERS = {"rank_weighted": (0.25, 0.5, 1.0), "class_adaptive": (0.001, 0.01, 0.1)}
SIZE_CHOICE = "size_choice"
OURS = ("cross_entropy", "generalised_cross_entropy", "ldam", "two_head_average_k")
METHODS = (*OURS, *PARAMETERS, SIZE_CHOICE)
COSTS = tuple(np.geomspace(0.002, 2.0, 16))
FOLDS = 3


def rival(name: str, parameter: float, classes: int) -> Loss:
    """The loss with its parameter."""
    if name == "rank_weighted":
        return RankWeighted(power=parameter)
    return ClassAdaptive(classes=classes, penalty=parameter)


@dataclass(frozen=True)
class RivalBench(Bench):
    """Also trains the losses of the rivals."""

    def fits(self, method: str, decays: Sequence[float], noise: float, seed: int) -> list[Fit]:
        """The heads that a method chooses among."""
        if method not in PARAMETERS:
            return super().fits(method, decays, noise, seed)
        pairs = itertools.product(PARAMETERS[method], decays)
        return [self.rival_fit(method, value, decay, noise, seed) for value, decay in pairs]

    def rival_fit(
        self, name: str, parameter: float, weight_decay: float, noise: float, seed: int
    ) -> Fit:
        """A head trained with a rival's loss; trained once."""
        config = self.config("cross_entropy", weight_decay, seed)

        def state() -> Mapping[str, Tensor]:
            dataset = self.noisy(noise, seed)
            objective, network = seeded(config, dataset)
            start(network, config, objective, dataset, None)
            ours = replace(objective, loss_fn=rival(name, parameter, len(dataset.classes)))
            train = self.train(noise, seed)
            return train_head(config, network, ours, train, self.features["val"])

        path = self.place(noise, seed) / f"{name}-{parameter:g}-{weight_decay:g}.safetensors"
        return self.kept(path, "linear", weight_decay, state)

    def size_choice(self, noise: float, seed: int) -> Row:
        """Accuracy of sets whose size a layer chooses for each photo."""
        fit = self.best("cross_entropy", DECAYS, noise, seed)
        train, mean, deviation = self.train(noise, seed), *self.features["train"].spread()
        inputs = {
            part: (torch.from_numpy(x.values[x.rows]) - mean) / deviation
            for part, x in self.features.items()
        }
        hits = top_hits(*self._cross_fitted(fit, inputs["train"], train.split.labels))
        curves = {part: list[tuple[float, float]]() for part in ("val", "test")}
        for cost in COSTS:
            layer = chosen_sizes(inputs["train"], hits, float(cost), weight_decay=0.1)
            for part, curve in curves.items():
                x = torch.cat([inputs[part], torch.ones(len(inputs[part]), 1)], 1)
                choice = (x @ layer.T).argmax(1).numpy()
                rows = np.arange(len(choice))
                logits = self.logits(fit, part)["linear"]
                hit = top_hits(logits, self.features[part].split.labels)[rows, choice]
                curve.append((float(np.array(CHOICES)[choice].mean()), 100 * float(hit.mean())))
        by_k = at_sizes(curves["test"])
        on_val = float(np.mean(at_sizes(curves["val"])))
        return {
            "method": SIZE_CHOICE,
            "noise": noise,
            "seed": seed,
            "weight_decay": fit.weight_decay,
            "score_kind": "none",
            "sharpness": 1.0,
            "val": round(on_val, 3),
            **{f"average_{k}": round(x, 3) for k, x in zip(SIZES, by_k, strict=True)},
        }

    def _cross_fitted(
        self, fit: Fit, inputs: Tensor, labels: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Logits of each row by a linear head trained on the other folds."""
        fold = np.random.default_rng(0).integers(FOLDS, size=len(labels))
        logits = np.empty((len(labels), len(self.dataset.classes)), np.float32)
        for part in range(FOLDS):
            mask = fold != part
            layer = torch.zeros(logits.shape[1], inputs.shape[1] + 1, requires_grad=True)
            x = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)
            optimizer = torch.optim.AdamW([layer], lr=0.01, weight_decay=fit.weight_decay * 10)
            true = torch.from_numpy(labels[mask])
            for _ in range(60):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(x[mask] @ layer.T, true)
                loss.backward()  # type: ignore[no-untyped-call]  # torch declares none
                optimizer.step()
            logits[~mask] = (x[~mask] @ layer.T).detach().numpy()
        return logits, labels

    def row(self, method: str, noise: float, seed: int) -> Row:
        """Train what is missing, choose on val, read test once."""
        if method == SIZE_CHOICE:
            return self.size_choice(noise, seed)
        choice, on_val = self.choose(self.fits(method, DECAYS, noise, seed), SHARPNESS)
        logits = self.logits(choice.fit, "test")[choice.head]
        values = scores(choice.sharpness * logits, choice.score_kind)
        by_k = average_k_accuracies(values, self.features["test"].split.labels)
        return {
            "method": method,
            "noise": noise,
            "seed": seed,
            "weight_decay": choice.fit.weight_decay,
            "score_kind": choice.score_kind,
            "sharpness": round(choice.sharpness, 3),
            "val": round(on_val, 3),
            **{f"average_{k}": round(x, 3) for k, x in zip(SIZES, by_k, strict=True)},
        }


def top_hits(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the k best classes hold the true one, ``(rows, sizes)``."""
    true = logits[np.arange(len(labels)), labels][:, np.newaxis]
    rank = (logits > true).sum(1)[:, np.newaxis]
    return np.asarray(rank < np.array(CHOICES))


def at_sizes(curve: Sequence[tuple[float, float]]) -> list[float]:
    """Accuracy at each mean size: two costs mixed at random are a straight line between them."""
    points = sorted(curve)
    return np.interp(SIZES, [size for size, _ in points], [hit for _, hit in points]).tolist()


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Average-K accuracy at K = 1 / 2 / 3 / 5, standard error of the mean over seeds at 3."""
    noises = sorted({row["noise"] for row in rows}, key=float)
    lines = ["| data | method | " + " | ".join(f"noise {float(n):g}" for n in noises) + " |"]
    lines.append("|---" * (2 + len(noises)) + "|")
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        cells = []
        for noise in noises:
            key = (data, method, noise)
            of = [row for row in rows if (row["data"], row["method"], row["noise"]) == key]
            figures = np.array([[float(row[f"average_{k}"]) for k in SIZES] for row in of])
            spread = f" ({error(figures[:, 2]):.1f})" if len(of) > 1 else ""
            mean = figures.mean(axis=0) if of else []
            cells.append(" / ".join(f"{value:.1f}" for value in mean) + spread)
        lines.append(f"| {data} | `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, or print the table."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--name", default="photos")
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", type=partial(str.split, sep=","), default=METHODS)
    numbers = lambda text: [float(part) for part in text.split(",")]  # noqa: E731  # a parser
    parser.add_argument("--noise", type=numbers, default=[0.0, 0.5])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    result = arguments.out / "rivals.csv"
    rows = list(csv.DictReader(result.open())) if result.exists() else []
    if arguments.data is None:
        print(table(rows))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    flags = {key: getattr(arguments, key) for key in ("data", "weights", "backbone", "image_size")}
    flags["features"] = str(arguments.out / "features")
    bench = RivalBench.open(flags, arguments.out / arguments.name)
    present = {(row["data"], row["method"], row["noise"], row["seed"]) for row in rows}
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    for seed, noise, method in itertools.product(seeds, arguments.noise, arguments.methods):
        if (arguments.name, method, str(noise), str(seed)) not in present:
            row = {"data": arguments.name, **bench.row(method, noise, seed)}
            append(result, row)
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()

"""Which method notices photos of something else, and is "none of these" in the set as promised?

    python -m benchmarks.strangers.unknown_species DATA --weights FILE --out FOLDER [--name NAME]
                               [--outside NAME=DATA ...] [--backbone NAME] [--features FOLDER]

Heads on a frozen backbone learn four fifths of the classes of DATA, five times. Photos of the other
fifth are one kind of stranger, the test photos of each other DATA another. The first table has the
area under the curve and the share suspected with 1 % of the val photos, by kind and method; the
second what is chosen without each kind in turn, and how it does there. The third simulates "none of
these": 1,000 times a fifth of the classes is held out, and half of the other photos of val and test
choose the threshold; standard errors are over the simulations. ``FOLDER/unknown_species.csv`` holds
the figures of the first table.
"""

import argparse
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.sets.head_methods import PARTS, Bench, append, backbone_of
from benchmarks.strangers.auroc import auroc
from florilege.calibration.calibrate.training_photos import MOST_PHOTOS, balanced_rows
from florilege.calibration.reference import Reference
from florilege.calibration.rejection import (
    parts,
    suspect_threshold,
    unseen_threshold,
)
from florilege.calibration.scores import logsumexp, scores
from florilege.data.sources import open_dataset
from florilege.models.runtime import silence_telemetry
from florilege.training.batches import Features
from florilege.training.configuration import resolve

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
PART_NAMES = ("nearest", "residual", "entropy")
HELD_OUT = "held-out classes"
SEEDS, SPLITS, SHARE, DECAY, STEPS = 5, 1000, 0.2, 3e-4, 25
COVERAGES = (0.9, 0.95)


class Photos(NamedTuple):
    """Features of photos with their classes."""

    features: Floats  # (photos, dimensions)
    labels: Labels  # (photos,)

    def of(self, classes: Labels, *, inside: bool = True) -> "Photos":
        """The photos of some classes, or of all others."""
        rows = np.isin(self.labels, classes, invert=not inside)
        return Photos(self.features[rows], self.labels[rows])


class Head:
    """Logistic regression on standardised features, and the reference of its training photos."""

    def __init__(self, train: Photos) -> None:
        classes, labels = np.unique(train.labels, return_inverse=True)
        self.mean, self.scale = train.features.mean(0), train.features.std(0) + 1e-6
        inputs = torch.from_numpy((train.features - self.mean) / self.scale).float()
        layer = torch.nn.Linear(inputs.shape[1], len(classes))
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        optimiser = torch.optim.LBFGS(
            layer.parameters(), max_iter=STEPS, history_size=5, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimiser.zero_grad()
            value = torch.nn.functional.cross_entropy(layer(inputs), torch.from_numpy(labels))
            total: torch.Tensor = value + DECAY * layer.weight.square().sum()
            total.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            return total

        optimiser.step(loss)  # type: ignore[no-untyped-call]  # torch has no types here
        self.layer = layer
        sample = train.features[balanced_rows(labels, MOST_PHOTOS)]
        self.reference = Reference.of(sample)
        means = [train.features[labels == label].mean(0) for label in range(len(classes))]
        self.sample, self.means = _directions(sample), _directions(np.stack(means))
        self.alpha = self.logits(sample).max(1).mean() / -self.reference.compare(sample)[1].mean()

    def logits(self, features: Floats) -> Floats:
        """Shape ``(photos, classes)``."""
        inputs = torch.from_numpy((features - self.mean) / self.scale).float()
        with torch.no_grad():
            return np.asarray(self.layer(inputs).numpy(), dtype=np.float64)

    def familiarity(self, features: Floats) -> dict[str, Floats]:
        """What each method says of each photo, ``(photos,)``."""
        logits, rows = self.logits(features), _directions(features)
        columns = parts(logits, "softmax", features, self.reference).T
        return {
            **dict(zip(PART_NAMES, columns, strict=True)),
            "max_score": scores(logits, "softmax").max(axis=1),
            "energy": logsumexp(logits),
            "ViM": logsumexp(logits) + self.alpha * columns[1],
            "class means": (rows @ self.means.T).max(axis=1),
            "tenth nearest": np.sort(rows @ self.sample.T, axis=1)[:, -10],
        }


def with_sums(values: Mapping[str, Floats], val: Mapping[str, Floats]) -> dict[str, Floats]:
    """The methods and the sums of two or three parts, each standardised on val."""
    standard = {name: (values[name] - val[name].mean()) / val[name].std() for name in PART_NAMES}
    sums = {
        "combined" if count == len(PART_NAMES) else "+".join(names): sum(
            (standard[name] for name in names), np.zeros(1)
        )
        for count in (2, 3)
        for names in combinations(PART_NAMES, count)
    }
    return {**values, **sums}


def kinds(
    data: Mapping[str, Photos], outside: Mapping[str, Floats]
) -> dict[tuple[str, str], Floats]:
    """Mean area and share noticed, by kind of stranger and method."""
    results = dict[tuple[str, str], list[tuple[float, float]]]()
    classes = np.unique(data["train"].labels)
    for seed in range(SEEDS):
        held = np.random.default_rng(seed).permutation(classes)[: int(SHARE * len(classes))]
        head = Head(data["train"].of(held, inside=False))
        val = head.familiarity(data["val"].of(held, inside=False).features)
        ours = with_sums(head.familiarity(data["test"].of(held, inside=False).features), val)
        chosen = with_sums(val, val)
        for kind, features in {HELD_OUT: data["test"].of(held).features, **outside}.items():
            for method, theirs in with_sums(head.familiarity(features), val).items():
                suspect = theirs < suspect_threshold(chosen[method])
                figures = (auroc(ours[method], theirs), float(suspect.mean()))
                results.setdefault((kind, method), []).append(figures)
    return {key: np.mean(figures, axis=0) for key, figures in results.items()}


def choices(means: Mapping[tuple[str, str], Floats]) -> Iterator[str]:
    """For each kind, the method that the other kinds choose and how it does on this one."""
    names, methods = (list(dict.fromkeys(each)) for each in zip(*means, strict=True))
    yield "| left out | by | chosen | on the one left out | combined there | best there |"
    yield "|---|---|---|---|---|---|"
    for figure, by in enumerate(("area", "noticed")):
        for kind in names:
            others = [name for name in names if name != kind]
            mean = {m: np.mean([means[o, m][figure] for o in others]) for m in methods}
            best = max(methods, key=lambda method: float(mean[method]))
            there = {method: means[kind, method][figure] for method in methods}
            yield (
                f"| {kind} | {by} | {best} | {there[best]:.3f} | {there['combined']:.3f} "
                f"| {max(there.values()):.3f} |"
            )


def unseen_rates(data: Mapping[str, Photos], outside: Mapping[str, Floats]) -> Iterator[str]:
    """The rows of the third table: how often "none of these" is in the set."""
    train, val, test = (data[part] for part in PARTS)
    pooled = Photos(*(np.concatenate(pair) for pair in zip(val, test, strict=True)))
    axes = Reference.of(train.features[balanced_rows(train.labels, MOST_PHOTOS)]).axes
    along = _directions(train.features @ axes.T).T
    cosines = {
        name: _directions(features @ axes.T) @ along
        for name, features in {"": pooled.features, **outside}.items()
    }
    yield f"| coverage | classes alike | photos alike | known | {' | '.join(outside)} |"
    yield "|" + "---|" * (4 + len(outside))
    results = np.array(
        [_simulated(seed, train.labels, pooled.labels, cosines) for seed in range(SPLITS)]
    )  # (splits, coverages, columns)
    for coverage, rows in zip(COVERAGES, results.transpose(1, 0, 2), strict=True):
        errors = rows.std(axis=0) / np.sqrt(SPLITS)
        cells = [f"{m:.4f} ± {e:.4f}" for m, e in zip(rows.mean(axis=0), errors, strict=True)]
        yield f"| {coverage} | {' | '.join(cells)} |"


def _simulated(
    seed: int, trained: Labels, labels: Labels, cosines: Mapping[str, Floats]
) -> list[list[float]]:
    random, classes = np.random.default_rng(seed), np.unique(trained)
    held = random.permutation(classes)[: int(SHARE * len(classes))]
    rows = np.flatnonzero(~np.isin(trained, held))
    rows = rows[balanced_rows(trained[rows], MOST_PHOTOS)]
    unknown = np.isin(labels, held)
    known = random.permutation(np.flatnonzero(~unknown))
    calibrated, fresh = np.array_split(known, 2)
    others = cosines[""][np.ix_(calibrated, rows)]
    others[labels[calibrated][:, np.newaxis] == trained[rows]] = -np.inf
    nearest = {name: values[:, rows].max(axis=1) for name, values in cosines.items()}
    groups = [nearest[""][fresh], *(values for name, values in nearest.items() if name)]
    result = list[list[float]]()
    for coverage in COVERAGES:
        threshold = unseen_threshold(others.max(axis=1), labels[calibrated], coverage)
        hits = nearest[""] <= (np.inf if threshold is None else threshold)
        by_class = [hits[labels == label].mean() for label in np.unique(labels[unknown])]
        rates = [np.mean(by_class), hits[unknown].mean()]
        rates += [
            (group <= (np.inf if threshold is None else threshold)).mean() for group in groups
        ]
        result.append([float(rate) for rate in rates])
    return result


def _directions(features: Floats) -> Floats:
    directions: Floats = features / np.linalg.norm(features, axis=1, keepdims=True)
    return directions


def _values(features: Features) -> Floats:
    return features.values[features.rows].astype(np.float64)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data")
    parser.add_argument("--name", default="photos")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--outside", action="append", default=[], metavar="NAME=DATA")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--features", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    silence_telemetry()
    arguments = _arguments()
    flags = {
        "data": arguments.data,
        "weights": arguments.weights,
        "backbone": arguments.backbone,
        "features": str(arguments.features or arguments.out / "features"),
    }
    bench = Bench.open(flags, arguments.out)
    data = {part: Photos(_values(bench.features[part]), bench.features[part].split.labels)
            for part in PARTS}  # fmt: skip
    frozen = backbone_of(resolve(bench.flags), bench.dataset, arguments.out)
    outside = {
        name: _values(frozen.features(open_dataset(source, splits=["test"]).split("test")))
        for name, _, source in (text.partition("=") for text in arguments.outside)
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    means = kinds(data, outside)
    print("| kind | method | area | noticed |\n|---|---|---|---|")
    for (kind, method), (area, noticed) in means.items():
        print(f"| {kind} | {method} | {area:.3f} | {noticed:.3f} |")
        figures = {"area": f"{area:.4f}", "noticed": f"{noticed:.4f}"}
        row = {"data": arguments.name, "kind": kind, "method": method, **figures}
        append(arguments.out / "unknown_species.csv", row)
    for lines in (choices(means), unseen_rates(data, outside)):
        print("", *lines, sep="\n")


if __name__ == "__main__":
    main()

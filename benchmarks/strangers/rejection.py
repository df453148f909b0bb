"""Which number tells photos of our species from photos of something else?

    python -m benchmarks.strangers.rejection BUNDLE [--data DATA] [--outside FOLDER] [--rows N]

BUNDLE is calibrated, with a rejection by features. Photos of ours are the test split of DATA, by
default of what the network was trained on. The others are the pictures in FOLDER, or pictures drawn
in the manner of the flora with organs it never has. Prints a Markdown table: area under the curve
with 95 % interval, and the share of the others below the threshold that 1 % of ours fall below.
`served` is the very value that the server compares, in bold; the line above the table says how many
of ours the threshold of the bundle suspects, which promises 1 %.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.strangers.auroc import auroc_difference, compare_methods
from benchmarks.strangers.unknown_organs import STRANGERS, stranger
from florilege.calibration.calibrate.training_photos import TRAIN, balanced_rows
from florilege.calibration.intervals import wilson
from florilege.calibration.record.record_file import PROVENANCE, open_reference, read_record
from florilege.calibration.reference import Reference
from florilege.calibration.rejection import (
    LOGITS_METHOD,
    RejectionRule,
    generalised_entropy,
)
from florilege.calibration.scores import logsumexp
from florilege.cores import in_order
from florilege.data.flora import encode_png
from florilege.data.sources import open_dataset
from florilege.models.bundle import Bundle, open_bundle
from florilege.models.images import load
from florilege.models.runtime import silence_telemetry
from florilege.models.session import Session

DRAWN = 300

Floats = NDArray[np.float64]
Familiarity = Mapping[str, Floats]
Read = Callable[[int], bytes]


class Judge:
    """Every method on one bundle.

    Args:
        bundle: Calibrated with a rejection by features.
        data: With the training photos that methods compare with.
    """

    def __init__(self, bundle: Bundle, data: str) -> None:
        self.bundle, self.record = bundle, read_record(bundle)
        self.session = Session(bundle, device="cpu")
        rejection = self.record.rejection
        reference = open_reference(bundle, self.record, self.session.dimensions)
        if rejection is None or reference is None:
            raise SystemExit(f"{bundle.path} does not judge by features: calibrate it again")
        self.rejection: RejectionRule = rejection
        self.reference: Reference = reference
        train = open_dataset(data, splits=[TRAIN], classes=bundle.classes).split(TRAIN)
        rows = balanced_rows(train.labels, len(reference.directions))
        self.logits, self.features = self.seen(lambda row: train.read(int(rows[row])), len(rows))
        labels = train.labels[rows]
        self.means = np.stack(
            [self.features[labels == label].mean(0) for label in np.unique(labels)]
        )
        residual = -reference.compare(self.features)[1].mean()
        self.alpha = float(self.logits.max(axis=1).mean() / residual)  # as ViM has it

    def seen(self, read: Read, rows: int) -> tuple[Floats, Floats]:
        """Logits and features of photos, ``(rows, classes)`` and ``(rows, dimensions)``."""

        def outputs(row: int) -> tuple[Any, Any]:
            picture = load(read(row), self.bundle.preprocess)[np.newaxis]
            result = self.session.outputs(picture, features=True)
            return result.logits[self.record.head][0], result.features

        logits, features = zip(*in_order(outputs, range(rows)), strict=True)
        return np.stack(logits).astype(np.float64), np.concatenate(features).astype(np.float64)

    def familiarity(self, read: Read, rows: int) -> Familiarity:
        """What each method says about each photo, ``(rows,)``."""
        logits, features = self.seen(read, rows)
        reference, kind = self.reference, self.record.score_kind
        nearest, residual = reference.compare(features)
        return {
            "served": self.rejection.familiarity(logits, features, reference),
            "nearest_features": nearest,
            "tenth nearest": nearest_features(features, self.features, neighbour=10),
            "class means": nearest_features(features, self.means, neighbour=1),
            "nearest logits": nearest_features(logits, self.logits, neighbour=1),
            "residual": residual,
            "ViM": logsumexp(logits) + self.alpha * residual,
            LOGITS_METHOD: generalised_entropy(logits, kind),
        }


def nearest_features(features: Floats, reference: Floats, *, neighbour: int) -> Floats:
    """Cosine between each row of features and its ``neighbour``-th nearest among the reference.

    References:
        Sun, Ming, Zhu and Li, "Out-of-distribution detection with deep nearest neighbors",
        ICML 2022.

    Example:
        >>> nearest_features(np.array([[2.0, 0.0]]), np.eye(2), neighbour=1)
        array([1.])
    """
    cosines = _directions(features) @ _directions(reference).T  # (rows, photos)
    place = len(reference) - neighbour
    return np.asarray(np.partition(cosines, place, axis=1)[:, place])


def _directions(features: Floats) -> Floats:
    directions: Floats = features / np.linalg.norm(features, axis=1, keepdims=True)
    return directions


def main() -> None:
    """Measure and print."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", default=None)
    parser.add_argument("--outside", type=Path, default=None)
    parser.add_argument("--rows", type=int, default=2000)
    arguments = parser.parse_args()
    bundle = open_bundle(arguments.bundle)
    data = arguments.data or json.loads(bundle.read(PROVENANCE))["data"]
    judge = Judge(bundle, data)
    test = open_dataset(data, splits=["test"], classes=bundle.classes).split("test")
    inside = judge.familiarity(test.read, min(arguments.rows, len(test)))
    others = (
        {"photos": judge.familiarity(*_folder(arguments.outside))}
        if arguments.outside
        else _drawn(judge)
    )
    print(_title(judge, inside["served"]))
    print("\n| others | method | AUROC | 95 % | caught at 1 % | less than the best by |")
    print("|---|---|---|---|---|---|")
    for name, outside in others.items():
        for line in _lines(name, inside, outside):
            print(line)


def _drawn(judge: Judge) -> dict[str, Familiarity]:
    """Strangers, each kind apart and all together."""
    kinds = {
        kind: judge.familiarity(lambda row, kind=kind: encode_png(stranger(kind, row)), DRAWN)  # type: ignore[misc]  # the default binds
        for kind in STRANGERS
    }
    together = {
        name: np.concatenate([result[name] for result in kinds.values()])
        for name in next(iter(kinds.values()))
    }
    return {"all": together, **kinds}


def _folder(folder: Path) -> tuple[Read, int]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return (lambda row: paths[row].read_bytes()), len(paths)


def _lines(name: str, inside: Familiarity, outside: Familiarity) -> Iterator[str]:
    results = compare_methods(inside, outside)
    best = results[0].method
    for result in results:
        low, high = result.ci95
        behind = ""
        if result.method != best:
            gap, (least, most) = auroc_difference(
                (inside[best], outside[best]), (inside[result.method], outside[result.method])
            )
            behind = f"{gap:.3f} ({least:.3f} to {most:.3f})"
        method = "**served**" if result.method == "served" else result.method
        yield (
            f"| {name}, {result.outside} | {method} | {result.auroc:.3f} "
            f"| {low:.3f} to {high:.3f} | {100 * result.caught:.0f} % | {behind} |"
        )


def _title(judge: Judge, inside: Floats) -> str:
    record, rejection = judge.record, judge.rejection
    alarms = int((inside < rejection.threshold).sum())
    low, high = wilson(alarms, inside.size)
    result = len(judge.reference.directions)
    return (
        f"{rejection.method}, head {record.head}, {record.score_kind} scores, {result:,} training "
        f"photos; the bundle suspects {100 * alarms / inside.size:.1f} % "
        f"({100 * low:.1f} to {100 * high:.1f}) of {inside.size:,} photos of ours"
    )


if __name__ == "__main__":
    main()

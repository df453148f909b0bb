"""Which number tells photos of our species from photos of something else?

    python -m benchmarks.rejection RUN BUNDLE [--outside FOLDER] [--rows N]

Photos of ours are the test split of the data the run was trained on. The others are the pictures
in FOLDER, or pictures drawn in the manner of the flora with organs it never has. Prints a Markdown
table: area under the curve with 95 % interval, and the share of the others below the threshold
that 1 % of ours fall below. Needs the extra `train`: the features of the network are compared too.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.strangers import STRANGERS, stranger
from calibration.auroc import auroc_difference, compare_methods
from calibration.calibrating import read_record
from calibration.record import CalibrationRecord
from calibration.rejection import METHODS, nearest_features
from data.dataset import Split
from data.png import encode_png
from data.sources import open_dataset
from models.bundle import open_bundle
from models.images import Preprocess, load
from models.runtime import silence_telemetry
from models.session import Session
from models.weights import load_into, read_weights
from training.objective import head_of
from training.run_folder import RunFolder
from training.train import build_network

AT_ONCE = 64
REFERENCE = 4000
NEAREST = ("nearest_logits", "nearest_features")

Floats = NDArray[np.float64]
Familiarity = Mapping[str, Floats]
Read = Callable[[int], bytes]


class Judge:
    """Every method for one run and its calibrated bundle.

    Args:
        run: The run folder.
        bundle: The bundle exported from it.
    """

    def __init__(self, run: Path, bundle: Path) -> None:
        opened = open_bundle(bundle)
        self.session, self.record = Session(opened, device="cpu"), read_record(opened)
        self.preprocess, self.classes = opened.preprocess, opened.classes
        self.backbone, self.data = _backbone(run, self.preprocess)
        train = open_dataset(self.data, splits=["train"], classes=self.classes).split("train")
        rows = np.random.default_rng(0).permutation(len(train))[:REFERENCE]
        self.reference = self.seen(train.read, rows)

    def pictures(self, read: Read, rows: Sequence[int] | NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Inputs of the network, uint8, ``(batch, side, side, 3)``."""
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            yield np.stack([load(read(int(row)), self.preprocess) for row in part])

    def seen(self, read: Read, rows: Sequence[int] | NDArray[Any]) -> tuple[Floats, Floats]:
        """Logits and features of photos, ``(rows, classes)`` and ``(rows, dimensions)``."""
        logits, features = [], []
        for pictures in self.pictures(read, rows):
            logits.append(self.session.logits(pictures)[self.record.head].astype(np.float64))
            features.append(self.backbone(pictures))
        return np.concatenate(logits), np.concatenate(features)

    def familiarity(self, read: Read, rows: int) -> Familiarity:
        """What each method says about each photo, ``(rows,)``."""
        logits, features = self.seen(read, range(rows))
        kind = self.record.score_kind
        found = {name: method(logits, kind) for name, method in METHODS.items()}
        for name, values, known in zip(NEAREST, (logits, features), self.reference, strict=True):
            found[name] = nearest_features(values, known, neighbour=1)
        return found


def main() -> None:
    """Measure and print."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--outside", type=Path, default=None)
    parser.add_argument("--rows", type=int, default=2000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    judge = Judge(given.run, given.bundle)
    test = open_dataset(judge.data, splits=["test"], classes=judge.classes).split("test")
    inside = judge.familiarity(test.read, min(given.rows, len(test)))
    others = (
        {"photos": judge.familiarity(*_folder(given.outside))} if given.outside else _drawn(judge)
    )
    print(_title(judge.record, test))
    print("\n| others | method | AUROC | 95 % | caught at 1 % | less than the best by |")
    print("|---|---|---|---|---|---|")
    for name, outside in others.items():
        for line in _lines(name, inside, outside):
            print(line)


def _drawn(judge: Judge) -> dict[str, Familiarity]:
    """Strangers, each kind apart and all together."""
    count = 300
    kinds = {
        kind: judge.familiarity(lambda row, kind=kind: encode_png(stranger(kind, row)), count)  # type: ignore[misc]  # the default binds
        for kind in STRANGERS
    }
    together = {
        name: np.concatenate([found[name] for found in kinds.values()])
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
        yield (
            f"| {name}, {result.outside} | `{result.method}` | {result.auroc:.3f} "
            f"| {low:.3f} to {high:.3f} | {100 * result.caught:.0f} % | {behind} |"
        )


def _title(record: CalibrationRecord, test: Split) -> str:
    return f"head {record.head}, {record.score_kind} scores, {len(test):,} photos of ours at most"


def _backbone(run: Path, preprocess: Preprocess) -> tuple[Callable[[NDArray[Any]], Floats], str]:
    """Features before the last layer, of pictures as they are; and the data of the run."""
    folder = RunFolder(run)
    config, classes = folder.read_config(), folder.read_classes()
    network = build_network(config, head_of(config.loss_name, config.head), len(classes))
    load_into(network, read_weights(folder.best), origin=str(folder.best), head_must_fit=True)
    network.eval()
    mean, std = torch.tensor(preprocess.mean), torch.tensor(preprocess.std)

    def features(pictures: NDArray[Any]) -> Floats:
        values = (torch.from_numpy(pictures).float() / 255 - mean) / std
        with torch.no_grad():
            found = network.backbone(values.permute(0, 3, 1, 2))
        return np.asarray(found.numpy(), dtype=np.float64)

    return features, config.data


if __name__ == "__main__":
    main()

"""What happens to sets when answers are restricted to the species of a place?

    python -m benchmarks.sets.lists BUNDLE --data DATA [--split test] [--k 3]

For each list that BUNDLE was calibrated with, on the photos of its classes: sets of all classes;
these with the other classes taken out afterwards; the classes of the list scored among themselves,
against the threshold of all classes and against their own.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.photo_outputs import bundle_outputs
from florilege.calibration.intervals import mean_interval, wilson
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.schema import CalibratedList
from florilege.calibration.view import PLAIN, View

Sets = NDArray[np.bool_]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--k", type=float, default=3.0)
    words = parser.parse_args()
    print("| list | classes | photos | sets | mean size, 95 % | hit rate, 95 % |")
    print("|---|---|---|---|---|---|")
    with bundle_outputs(words.bundle, words.data, words.split) as result:
        for each in result.record.lists:
            sizes, hits = defaultdict[str, list[int]](list), defaultdict[str, list[bool]](list)
            for (logits,), labels in result.outputs.blocks(result.record.head):
                own = np.isin(labels, each.classes)
                if not own.any():
                    continue
                for name, sets, truth in ways(
                    result.record, each, words.k, logits[own], labels[own]
                ):
                    sizes[name] += sets.sum(axis=1).tolist()
                    hits[name] += sets[np.arange(len(sets)), truth].tolist()
            for name in sizes:
                print(row(each, name, np.array(sizes[name]), np.array(hits[name])))


def ways(
    record: CalibrationRecord,
    each: CalibratedList,
    k: float,
    logits: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> Iterator[tuple[str, Sets, NDArray[np.int64]]]:
    """Each way to make sets for photos of a list: its name, the sets, and labels among these."""
    classes = np.array(each.classes)
    places = np.searchsorted(classes, labels)
    point = record.point(PLAIN, record.setting("average_k", k))
    sets = point.sets(record.scores(logits))
    yield "of all classes", sets, labels
    yield "others taken out afterwards", sets[:, classes], places
    own = record.point(View(list=each.name), record.setting("average_k", k))
    scored = record.scoring.scores(logits[:, np.newaxis], classes=classes)
    for name, used in (("old threshold", point.among(classes)), ("its own threshold", own)):
        yield f"of the list, {name}", used.sets(scored), places


def row(each: CalibratedList, name: str, sizes: NDArray[np.int64], hits: NDArray[np.bool_]) -> str:
    """A line of the table."""
    size, rows = float(sizes.mean()), len(sizes)
    low, high = mean_interval(size, float(sizes.std()), rows)
    least, most = wilson(int(hits.sum()), rows)
    return (
        f"| {each.name} | {len(each.classes)} | {rows:,} | {name} | {size:.2f} ({low:.2f} to "
        f"{high:.2f}) | {hits.mean():.3f} ({least:.3f} to {most:.3f}) |"
    )


if __name__ == "__main__":
    main()

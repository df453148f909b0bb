"""How often a correction for class frequencies is refused: when it should be, when it should not.

    python -m benchmarks.refusals BUNDLE --data DATA [--rows 1000] [--draws 20]

Draws that many test photos without repetition, with their own class frequencies or other ones,
sharp or blurred. Prints as a Markdown table in which share of the draws the logits speak against a
change of nothing but frequencies, and in brackets in which share a change is evident: the command
refuses where both is so.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.shift import Weigh, drawn, even, long_tail, photos_of, recalibrated, tilted
from florilege.calibration.record.record_file import read_record
from florilege.data.sources import open_dataset
from florilege.models.bundle import open_bundle
from florilege.models.runtime import silence_telemetry

BLURS = (0.0, 0.5, 0.7, 1.0, 1.5)
KINDS: dict[str, Weigh | None] = {
    "usual": None,
    "all classes as frequent": even,
    "frequencies times e^N(0,1)": tilted,
    "long tail in random order": long_tail,
}


def main() -> None:
    """Measure and print."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    bundle = open_bundle(given.bundle)
    record = read_record(bundle)
    split = open_dataset(given.data, splits=["test"], classes=bundle.classes).split("test")
    scored = [photos_of(bundle, split, record.head, blur) for blur in BLURS]
    print(f"| refused (evident) | {' | '.join(f'blur {blur:g}' for blur in BLURS)} |")
    print("|---|---|---|---|---|---|")
    for name, weigh in KINDS.items():
        cells = []
        for photos in scored:
            draws = [
                drawn(photos.labels, weigh, np.random.default_rng(draw), given.rows)
                for draw in range(given.draws)
            ]
            found = [recalibrated(photos.at(rows), record, correct=True) for rows in draws]
            evident = np.mean([one.shift is not None and one.shift.evident for one in found])
            refused = np.mean([not one.explained for one in found])
            cells.append(f"{refused:.2f} ({evident:.2f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

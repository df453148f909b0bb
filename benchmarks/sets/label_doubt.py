"""How many wrong labels are among the photos whose labels are doubted most?

    python -m benchmarks.sets.label_doubt MODEL --data photos.csv [--noise 0.4] [--seeds 3]

MODEL is a bundle or a folder of kept features. With the probability ``--noise`` a label of train is
replaced by a class drawn evenly from all classes, whatever groups the data name. The list is that
of `florilege data review --split train --order doubt`, cut into fifths; the last column is the
share of wrong labels that the first half of the list holds.
"""

import argparse
from dataclasses import replace

import numpy as np

from florilege.data.options import TrainingOptions
from florilege.data.records import Listing, assemble
from florilege.data.sources import list_source
from florilege.data.training_split import with_options
from florilege.label_review.photo_order import ReviewedModel, pool_of, rank

PARTS = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=3)
    words = parser.parse_args()
    clean, model = list_source(words.data, splits=["train"]), ReviewedModel.open(words.model)
    fifths = " | ".join(f"fifth {part}" for part in range(1, PARTS + 1))
    print(f"| seed | photos | wrong | {fifths} | in the first half |")
    print("|" + "---|" * (4 + PARTS))
    for seed in range(words.seeds):
        wrong = wrong_in_order(clean, words.noise, seed, model)
        shares = [f"{part.mean():.1%}" for part in np.array_split(wrong, PARTS)]
        half = wrong[: len(wrong) // 2].sum() / wrong.sum()
        cells = [seed, f"{len(wrong):,}", f"{wrong.mean():.1%}", *shares, f"{half:.1%}"]
        print(f"| {' | '.join(map(str, cells))} |")


def wrong_in_order(clean: Listing, noise: float, seed: int, model: ReviewedModel) -> np.ndarray:
    """Whether each label is wrong, the most doubtful one first."""
    one_group = dict.fromkeys(clean.class_table().ids, ("all",))
    noisy = with_options(
        replace(clean, groups=one_group), TrainingOptions(noise=noise, noise_seed=seed)
    )
    pool = pool_of(assemble(noisy, splits=["train"]), ["train"])
    truth = assemble(clean, splits=["train"]).split("train").labels
    rows = list(rank(pool, "doubt", 0, model).rows)
    return np.asarray((pool.labels != truth)[rows])


if __name__ == "__main__":
    main()

"""How many wrong labels are among the photos whose labels are doubted most, and what they cost?

    python -m benchmarks.sets.label_doubt MODEL --data photos.csv [--noise 0.4] [--seeds 3]
                                                [--weights FILE]

MODEL is a bundle or a folder of kept features. With the probability ``--noise`` a label of train is
replaced by a class drawn evenly from all classes, whatever groups the data name. The list is that
of `florilege data review --split train --order doubt`, cut into fifths; the last column is the
share of wrong labels that the first half of the list holds.

With ``--weights``, those of the network whose features MODEL holds, a second table has the
average-K accuracy at K = 2 / 3 / 5 on test of heads with cross-entropy, their weight decay chosen
on a clean val: with the wrong labels; without the photos that ``--skip-doubtful`` leaves out; with
the first fifth of the list corrected; with that fifth, and without what is doubtful of the rest;
and with clean labels. ``--noise 0`` shows what leaving out costs where all labels are right.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sets.decays import Labels, measured, solve
from benchmarks.sets.head_methods import Bench, joined
from florilege.calibration.rules.label_doubt import label_doubt
from florilege.data.options import TrainingOptions, with_options
from florilege.data.records import Listing, assemble
from florilege.data.sources import list_source, pool_of
from florilege.label_review.photo_order import Review, ReviewedModel

PARTS = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
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
    if words.weights is not None:
        flags = {"data": words.data, "weights": words.weights, "backbone": words.backbone}
        flags["features"] = str(Path(words.model).parent)
        heads = "wrong labels | skipped | a fifth corrected | and skipped | clean labels"
        print(f"\n| seed | rate | left out | {heads} |\n" + "|---" * 8 + "|")
        bench = Bench.open(flags, Path(words.model).parent)
        for seed in range(words.seeds):
            estimate, rows = accuracies(bench, words.noise, seed)
            print(f"| {seed} | {estimate} | {' | '.join(map(joined, rows))} |", flush=True)


def accuracies(bench: Bench, noise: float, seed: int) -> tuple[str, list[NDArray[np.float64]]]:
    """The estimated rate and the share left out; and accuracy by K with the labels as they are,
    without doubtful ones, with a fifth corrected, with both, and with clean labels."""
    labels = Labels.draw(bench, noise, seed)._replace(noisy_val=None)
    truth, train = bench.features["train"].split.labels, labels.train
    doubt = label_doubt(train.values[train.rows], train.split.labels)
    fifth = np.argsort(doubt.probabilities, kind="stable")[: len(truth) // PARTS]
    corrected = train.split.labels.copy()
    corrected[fifth] = truth[fifth]
    believed = np.flatnonzero(doubt.believed())
    review = replace(train, split=replace(train.split, labels=corrected))
    again = label_doubt(train.values[train.rows], corrected).believed()
    again[fifth] = True
    clean = replace(train, split=replace(train.split, labels=truth))
    parts = (train, train.of(believed), review, review.of(np.flatnonzero(again)), clean)
    result = []
    for part in parts:
        rows = measured(labels, solve(bench, labels._replace(train=part), "cross_entropy", seed))
        (hits,) = (hits for row, hits in rows if row["chosen"])
        result.append(100 * hits.mean(1)[1:])
    return f"{doubt.wrong_rate:.1%} | {1 - len(believed) / len(train):.1%}", result


def wrong_in_order(clean: Listing, noise: float, seed: int, model: ReviewedModel) -> np.ndarray:
    """Whether each label is wrong, the most doubtful one first."""
    one_group = dict.fromkeys(clean.class_table().ids, ("all",))
    noisy = with_options(
        replace(clean, groups=one_group), TrainingOptions(noise=noise, noise_seed=seed)
    )
    dataset = assemble(noisy, splits=["train"])
    pool = pool_of(dataset, ["train"])
    review = Review(dataset=dataset, pool=pool, sample=0, order="doubt", seed=0, model=model)
    truth = assemble(clean, splits=["train"]).split("train").labels
    return np.asarray((pool.labels != truth)[list(review.ranking.rows)])


if __name__ == "__main__":
    main()

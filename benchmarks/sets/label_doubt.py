"""How many wrong labels are among the photos whose labels are doubted most, and what they cost?

    python -m benchmarks.sets.label_doubt MODEL --data photos.csv [--noise 0.4] [--seeds 5]
                                                [--weights FILE --name NAME --out FILE.csv]

MODEL is a bundle or a folder of kept features. With the probability ``--noise`` a label of train is
replaced by a class drawn evenly from all classes, whatever groups the data name. The list is that
of `florilege data review --split train --order doubt`, cut into fifths; the last column is the
share of wrong labels that the first half of the list holds.

With ``--weights``, those of the network whose features MODEL holds, ``--out`` gets the average-K
accuracy at K = 2 / 3 / 5 on test of heads with cross-entropy, their weight decay chosen on a clean
val: with the wrong labels; without the photos that ``--skip-doubtful`` leaves out; with the first
fifth of the list corrected; with that fifth, and without what is doubtful of the rest; and with
clean labels. ``--noise 0`` shows what leaving out costs where all labels are right.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sets.decays import Labels, measured, solve
from benchmarks.sets.head_methods import Bench, append, joined
from florilege.calibration.intervals import student_half
from florilege.calibration.rules.label_doubt import label_doubt
from florilege.data.options import TrainingOptions, with_options
from florilege.data.records import Listing, assemble
from florilege.data.sources import list_source, pool_of
from florilege.label_review.photo_order import Review, ReviewedModel

PARTS = 5
SIZES = ("average_2", "average_3", "average_5")
LABELS = ("wrong", "skipped", "corrected", "both", "clean")
Row = Mapping[str, str]


def main() -> None:
    """Measure, print the fifths, and add what heads do to the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--name", default="photos")
    parser.add_argument("--out", type=Path, default=Path("label_doubt.csv"))
    words = parser.parse_args()
    if words.weights is not None:
        measure(words)
        return
    clean, model = list_source(words.data, splits=["train"]), ReviewedModel.open(str(words.model))
    fifths = " | ".join(f"fifth {part}" for part in range(1, PARTS + 1))
    print(f"| seed | photos | wrong | {fifths} | in the first half |")
    print("|" + "---|" * (4 + PARTS))
    for seed in range(words.seeds):
        wrong = wrong_in_order(clean, words.noise, seed, model)
        shares = [f"{part.mean():.1%}" for part in np.array_split(wrong, PARTS)]
        half = wrong[: len(wrong) // 2].sum() / wrong.sum()
        cells = [seed, f"{len(wrong):,}", f"{wrong.mean():.1%}", *shares, f"{half:.1%}"]
        print(f"| {' | '.join(map(str, cells))} |")


def measure(words: argparse.Namespace) -> None:
    """Add a row for each draw and kind of labels to the file."""
    flags = {"data": words.data, "weights": words.weights, "backbone": words.backbone}
    bench = Bench.open({**flags, "features": str(words.model.parent)}, words.model.parent)
    clean: Figures | None = None
    for seed in range(words.seeds):
        fifth, figures = accuracies(bench, words.noise, seed, clean)
        clean = figures["clean"]
        for labels, (by_k, left_out) in figures.items():
            facts = {"data": words.name, "noise": f"{words.noise:g}", "seed": seed}
            facts |= {"first_fifth_wrong": f"{fifth:.3f}", "labels": labels}
            shares = {"left_out": f"{left_out:.3f}"}
            accuracy = {size: f"{x:.2f}" for size, x in zip(SIZES, by_k, strict=False)}
            append(words.out, {**facts, **shares, **accuracy})


Figures = tuple[NDArray[np.float64], float]
"""Accuracy by K on test, percent, and the share of photos left out."""


def accuracies(
    bench: Bench, noise: float, seed: int, clean: Figures | None = None
) -> tuple[float, dict[str, Figures]]:
    """The share of wrong labels in the first fifth of the list; and what heads do by `LABELS`.

    Those of ``clean`` labels are the same for every draw.
    """
    labels = Labels.draw(bench, noise, seed)._replace(noisy_val=None)
    truth, train = bench.features["train"].split.labels, labels.train
    values, before = train.values[train.rows], train.split.labels
    doubt = label_doubt(values, before)
    fifth = np.argsort(doubt.probabilities, kind="stable")[: len(truth) // PARTS]
    answers = np.zeros(len(truth), dtype=np.int64)
    answers[fifth] = np.where(before == truth, 1, -1)[fifth]
    corrected = np.where(answers == 0, before, truth)
    again = label_doubt(values, corrected, answers=answers)

    def figures(names: NDArray[np.int64], rows: NDArray[np.bool_]) -> Figures:
        whole = replace(train, split=replace(train.split, labels=names))
        part = labels._replace(train=whole.of(np.flatnonzero(rows)))
        solved = measured(labels, solve(bench, part, "cross_entropy", seed))
        (hits,) = (hits for row, hits in solved if row["chosen"])
        return 100 * hits.mean(1)[1:], 1 - rows.mean()

    every = np.ones(len(truth), dtype=np.bool_)
    result = {
        "wrong": figures(before, every),
        "skipped": figures(before, doubt.believed()),
        "corrected": figures(corrected, every),
        "both": figures(corrected, again.believed()),
        "clean": clean or figures(truth, every),
    }
    return float((before != truth)[fifth].mean()), result


def table(rows: Sequence[Row]) -> str:
    """Means over the draws by data set; and how much of what clean labels gain both together do."""
    head = "| data | wrong in the first fifth | wrong labels | `--skip-doubtful` | a fifth "
    lines = [f"{head}corrected | both | clean labels | both gain of that, % |", "|---" * 8 + "|"]
    for data in dict.fromkeys(row["data"] for row in rows):
        ours = [row for row in rows if row["data"] == data and float(row["noise"])]
        by_labels = {
            labels: np.array(
                [[float(row[k]) for k in SIZES] for row in ours if row["labels"] == labels]
            )  # (draws, sizes)
            for labels in LABELS
        }
        fifths = [float(row["first_fifth_wrong"]) for row in ours]
        cells = [f"{min(fifths):.1%} to {max(fifths):.1%}"]
        cells += [joined(by_labels[labels].mean(0)) for labels in LABELS]
        lines.append(f"| {data} | {' | '.join(cells)} | {_shares(by_labels)} |")
    return "\n".join(lines)


def _shares(by_labels: Mapping[str, NDArray[np.float64]]) -> str:
    """The share of the gain by K, with 95 % intervals that pair the draws."""
    gain, whole = (by_labels[labels] - by_labels["wrong"] for labels in ("both", "clean"))
    share = gain.mean(0) / whole.mean(0)
    # A ratio of means: its error is that of what each draw gains beyond that share.
    rest = 100 * (gain - share * whole) / whole.mean(0)
    halves = [student_half(values.tolist()) or 0.0 for values in rest.T]
    return " / ".join(f"{100 * x:.0f} ± {half:.0f}" for x, half in zip(share, halves, strict=True))


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

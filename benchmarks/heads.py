"""Which loss for a head on frozen features? Every loss, clean and noisy labels, several seeds.

    python -m benchmarks.heads DATA [DATA ...] --weights FILE [--backbone NAME] [--image-size N]
                               [--out FOLDER] [--losses NAME,NAME] [--noise 0,0.2,0.5] [--seeds N]
                               [--epochs N] [--fresh ROWS [--after N]]

DATA is a source as ``florilege train`` takes it. Of several, such as the same photos cut otherwise
(``--redraws`` of `benchmarks.photo_sets`), each is searched and trained for itself, and figures are
over all of them and their seeds. Features are computed once, as by ``--freeze backbone``, and kept
in the folder.

For each loss and noise rate: a fifth of train, its labels clean, chooses the weight decay, the
learning rate, the parameters in ``SEARCHED``, the head and the score kind, by mean average-K
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.head_bench import (
    BASELINES,
    BLEND,
    OURS,
    SEARCHED,
    Bench,
    Rows,
    error,
    noisy_labels,
)
from data.sources import open_dataset
from models.backbones import build
from models.backbones.weights import open_weights, warm_start
from models.runtime import silence_telemetry
from training.device import choose
from training.frozen.features import FrozenBackbone
from training.frozen.store import folder_name
from training.losses import LOSSES
from training.settings import resolve


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
        used = open_dataset(data, splits=["train"]).split("train").names
        rows, asked = fresh_rows(train.split.names, used, given.fresh, given.after)
        labels, test = train.split.labels[asked], replace(train, rows=train.rows[asked])
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


def fresh_rows(
    names: Sequence[str], used: Sequence[str], asked: int, after: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of a new train, as many as are used, and of a new test, ``asked`` of them.

    Of the photos ``names`` those ``used`` are left out, and the first ``after`` of the others,
    always in the same order.
    """
    taken = set(used)
    left = [row for row, name in enumerate(names) if name not in taken]
    test, train = np.split(np.random.default_rng(0).permutation(left)[after:], [asked])
    return train[: len(taken)], test


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


if __name__ == "__main__":
    main()

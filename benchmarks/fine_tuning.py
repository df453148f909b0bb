"""What fine-tuning the whole network adds to a head, by loss, clean and noisy labels, seeds.

    python -m benchmarks.fine_tuning DATA --weights FILE --heads FOLDER --out FOLDER
                                     [--backbone NAME] [--losses NAME,NAME] [--noise 0,0.5]
                                     [--seeds 3] [--epochs 1] [--rate 0.001]

For each loss, rate of noise and seed: ``florilege train --freeze backbone`` with the settings that
`benchmarks.heads` chose for the loss (``--heads`` is its ``--out``), then ``--unfreeze all`` from
that run with ``--rate`` and layer decay 0.8. Both networks are exported, and their sets measured on
the clean test photos as `benchmarks.heads` does it. The folder keeps what is done, so a second call
continues; seeds come one after the other, so that an early stop leaves whole rows.
"""

import argparse
import itertools
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.heads import FIRST_SEED, SIZES, figures
from calibration.offline.outputs import outputs_of, photos_for
from models.runtime import silence_telemetry
from models.session import Session
from training.export import export_run
from training.settings import resolve
from training.train import train_run

LOSSES = "cross_entropy,generalised_cross_entropy,assume_negative,two_head_average_k"


def main() -> None:
    """Measure what is missing and print the table."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--heads", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--losses", default=LOSSES)
    parser.add_argument("--noise", default="0,0.5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.001)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    done = given.out / "results.jsonl"
    rows = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    known = {(row["loss"], row["noise"], row["seed"]) for row in rows}
    rates = [float(rate) for rate in given.noise.split(",")]
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    for seed, noise, loss in itertools.product(seeds, rates, given.losses.split(",")):
        if (loss, noise, seed) not in known:
            found = measure(given, loss, noise, seed)
            rows.append({"loss": loss, "noise": noise, "seed": seed, **found})
            with done.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


def measure(given: argparse.Namespace, loss: str, noise: float, seed: int) -> dict[str, Any]:
    """Average-K accuracy on test, percent by `SIZES`, of the head and of the whole network."""
    lines = (given.heads / "results.jsonl").read_text().splitlines()
    chosen = next(
        row for row in map(json.loads, lines) if (row["loss"], row["noise"]) == (loss, noise)
    )
    joint = "," if ":" in given.data else ":"
    data = f"{given.data}{joint}noise={noise},noise_seed={seed}" if noise else given.data
    common: dict[str, Any] = {
        "data": data,
        "backbone": given.backbone,
        "image_size": given.image_size,
        "seed": seed,
        "loss": loss,
        "device": "cpu",
    }
    head = common | {
        "recipe": "frozen",
        "weights": given.weights,
        "freeze": "backbone",
        "features": str(given.out / "features"),
        "lda": False,
        "optimiser": {"learning_rate": chosen["rate"], "weight_decay": chosen["weight_decay"]},
    }
    whole = common | {
        "weights": str(given.out / "head"),
        "unfreeze": "all",
        "epochs": given.epochs,
        "optimiser": {"learning_rate": given.rate, "layer_decay": 0.8},
        "augment": {"min_area": 0.7},
    }
    parameters = [f"loss.{name}={value}" for name, value in chosen["parameters"].items()]
    found = {}
    for name, settings in (("head", head), ("whole", whole)):
        run, bundle = given.out / name, given.out / f"{name}-bundle"
        for folder in (run, bundle):
            shutil.rmtree(folder, ignore_errors=True)
        train_run(resolve(settings, overrides=parameters), run)
        session = Session(export_run(run, bundle), device="cpu")
        with closing(outputs_of(session, photos_for(session.bundle, given.data, "test"))) as test:
            every = np.arange(len(test.labels))
            by = figures({head: test.rows(head, every) for head in test.heads}, test.labels)
        by_k = by[chosen["head"], chosen["score_kind"]]
        found[name] = [100 * by_k[k] for k in SIZES]
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Means by loss and noise, and the mean gain with its standard error over seeds."""
    text = [
        "| loss | noise | seeds | head | whole network | gain at 3 |\n|---|---|---|---|---|---|"
    ]
    for loss, noise in dict.fromkeys((row["loss"], row["noise"]) for row in rows):
        found = [row for row in rows if (row["loss"], row["noise"]) == (loss, noise)]
        both = {name: np.array([row[name] for row in found]) for name in ("head", "whole")}
        means = (" / ".join(f"{k:.1f}" for k in each.mean(0)) for each in both.values())
        gains = (both["whole"] - both["head"])[:, 2]
        error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
        shown = " | ".join(means)
        text.append(
            f"| `{loss}` | {noise:g} | {len(found)} | {shown} | {gains.mean():+.1f} ± {error:.1f} |"
        )
    return "\n".join(text)


if __name__ == "__main__":
    main()

"""A short run of every loss on the flora: does it learn, and how far from the best possible?

    python -m benchmarks.sets.learning [--out FOLDER] [--losses NAME,NAME] [--seeds N] [--epochs N]
                                  [--data SOURCE]

Each run takes the whole pipeline: trained with the `demo` recipe, exported, calibrated on val and
measured on test. With several seeds the table shows the mean and, in brackets, the distance
between the largest and the smallest. The folder keeps what is done, so a second call continues.
"""

import argparse
import inspect
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.data.flora.posterior import bayes_average_k_accuracy, bayes_top_k_accuracy, prior
from florilege.models.runtime import silence_telemetry
from florilege.training.configuration import resolve
from florilege.training.losses import LOSSES
from florilege.training.run_export import export_run
from florilege.training.train import train_run

K = 3.0
DATA = "flora:train=4000,val=2000,test=2000"
# What differs from the recipe for all losses: on few pictures seen often, every turn helps.
FEW_PICTURES = [
    *["backbone=tiny", "batch_size=128", "schedule.warmup_epochs=1", "average.decay=null"],
    *["augment.flip_vertical=0.5", "augment.transpose=0.5"],
]
# These batches and the recipe's rate suit cross-entropy; hinges want more and smaller steps.
SMALL_STEPS = ["batch_size=32", "optimiser.learning_rate=0.02"]
# The two plain ones also want bounded logits and a slow start, or they settle on a constant set.
SLOW_START = [
    *["head=cosine", "head_scale=10", "batch_size=16", "schedule.warmup_epochs=3"],
    *["optimiser.learning_rate=0.1", "optimiser.momentum=0", "optimiser.nesterov=false"],
]
SETTINGS: dict[str, list[str]] = {
    "top_k_hinge": SLOW_START,
    "convex_top_k_hinge": SMALL_STEPS,
    "smooth_top_k": SMALL_STEPS,
    "calibrated_top_k_hinge": SLOW_START,
    "noised_top_k": [*SMALL_STEPS, "loss.epsilon=1"],
    "imbalanced_noised_top_k": [*SMALL_STEPS, "loss.scale=10", "loss.epsilon=0.1"],
    "expected_positive": ["batch_size=32"],
    "role": ["batch_size=32"],
    "positive_bce": SMALL_STEPS,
    "two_head_average_k": ["loss.alpha=0.1"],
}


def fitting(loss: str) -> list[str]:
    """The set size of the table, where the loss has one."""
    parameters = inspect.signature(LOSSES[loss]).parameters
    if "k" in parameters:
        return [f"loss.k={K:g}"]
    return [f"loss.average_k={K:g}"] if "average_k" in parameters else []


def measure(loss: str, data: str, epochs: int, seed: int, folder: Path) -> dict[str, Any]:
    """Train, export, calibrate and evaluate one loss; what is in ``folder`` is not done again."""
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    if not result.exists():
        flags = {"recipe": "demo", "data": data, "loss": loss, "epochs": epochs, "seed": seed}
        overrides = [f"validation.k={K}", *FEW_PICTURES, *fitting(loss), *SETTINGS.get(loss, [])]
        config = resolve(flags, overrides=overrides)
        train_run(config, folder / "run", resume=(folder / "run").exists())
        export_run(folder / "run", folder / "bundle")
        record = calibrate_bundle(folder / "bundle", data, ks=[K])
        rules = {
            point.rule: row.hit_rate
            for point, row, *_ in evaluate_bundle(folder / "bundle", data).rules
            if point.k == K
        }
        served = {"head": record.head, "score_kind": record.score_kind}
        result.write_text(json.dumps({**rules, **served}))
    content: dict[str, Any] = json.loads(result.read_text())
    return content


def spread(rates: Sequence[float]) -> str:
    """The mean, and behind it the distance of the largest from the smallest."""
    mean = f"{np.mean(rates):.3f}"
    return f"{mean} ({np.ptp(rates):.3f})" if len(rates) > 1 else mean


def main() -> None:
    """Run the losses and print the table."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--losses", default=",".join(LOSSES))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each loss")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--data", default=DATA)
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp())
    k = int(K)
    print(f"data {arguments.data}, {arguments.epochs} epochs, K = {k}, seeds {arguments.seeds}\n")
    print(f"| loss | average-{k} | top-{k} | served scores |\n|---|---|---|---|")
    for loss in arguments.losses.split(","):
        results = [
            measure(loss, arguments.data, arguments.epochs, seed, out / loss / str(seed))
            for seed in range(arguments.seeds)
        ]
        rates = " | ".join(
            spread([each[rule] for each in results]) for rule in ("average_k", "top_k")
        )
        served = "; ".join(sorted({f"{each['head']}, {each['score_kind']}" for each in results}))
        print(f"| `{loss}` | {rates} | {served} |", flush=True)
    constant = float(np.sort(prior())[-k:].sum())
    best = f"{bayes_average_k_accuracy(K):.3f} | {bayes_top_k_accuracy(k):.3f}"
    print(f"| best possible | {best} | |")
    print(f"| the {k} commonest species, always | {constant:.3f} | {constant:.3f} | |")


if __name__ == "__main__":
    main()

"""The time from nothing to within half a point of the best possible on the flora.

    python -m benchmarks.speed.speedrun [--recipe NAME] [--seed N] [--out FOLDER] [--data SOURCE]
                                  [--epochs N]

The whole pipeline of a recipe: pictures drawn, trained, exported, calibrated on val; there the
clock stops. Then the sets of 1, 2, 3 and 5 species on average are compared, on the pictures of
test, with the best sets of the same mean size: both by the exact P(species | picture), so that no
luck of the drawn labels enters. The last line goes into the table in docs/results.md; the exit code
is 1 where a K is more than half a point below.
"""

import argparse
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.photo_outputs import bundle_outputs
from florilege.calibration.view import PLAIN
from florilege.cores import cores
from florilege.data.flora import Flora
from florilege.data.flora.posterior import expected_hit_rate
from florilege.models.runtime import silence_telemetry
from florilege.training.configuration import resolve
from florilege.training.run_export import export_run
from florilege.training.train import train_run

KS = (1.0, 2.0, 3.0, 5.0)
GOAL = 0.5  # points of hit rate below the best possible, at every K


def points_below(sets: NDArray[np.bool_], posterior: NDArray[np.float64]) -> float:
    """How many points of hit rate the best sets of the same mean size are above these.

    Args:
        sets: Which species each set holds, shape ``(pictures, species)``.
        posterior: The exact P(species | picture) of the same pictures.

    Example:
        >>> posterior = np.array([[0.7, 0.3], [0.6, 0.4]])
        >>> round(points_below(np.array([[True, True], [False, False]]), posterior), 6)
        15.0
    """
    best = np.sort(posterior, axis=None)[::-1][: int(sets.sum())].sum() / len(sets)
    return 100 * float(best - expected_hit_rate(sets, posterior))


def measure(bundle: Path, data: str) -> dict[float, float]:
    """Points below the best possible on test, by K."""
    posterior = Flora.parse(data).posterior("test")
    with bundle_outputs(bundle, data, "test") as (_, record, outputs, _):
        scores = np.concatenate(
            [record.scores(logits) for (logits,), _ in outputs.blocks(record.head)]
        )
    points = {k: record.point(PLAIN, record.setting("average_k", k)) for k in KS}
    return {k: points_below(point.sets(scores), posterior) for k, point in points.items()}


def machine() -> str:
    """Cores and the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{cores()} x {(names or [platform.processor() or platform.machine()])[0]}"


def commit() -> str:
    """The commit of the working tree, marked where files were changed since."""
    calls = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    process = subprocess.run(calls, capture_output=True, text=True, check=False)
    return process.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe, print figures and the line for the table; 0 if the goal is reached."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="flora")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="an empty folder")
    parser.add_argument("--data", default=None, help="in place of the recipe's")
    parser.add_argument("--epochs", type=int, default=None, help="in place of the recipe's")
    result = parser.parse_args(arguments)
    flags = {
        "recipe": result.recipe,
        "seed": result.seed,
        "data": result.data,
        "epochs": result.epochs,
    }
    config, out = resolve(flags), result.out or Path(tempfile.mkdtemp())
    wall, processor = time.monotonic(), sum(os.times()[:4])  # with the processes that have ended
    trained = train_run(config, out / "run")
    export_run(out / "run", out / "bundle")
    calibrate_bundle(out / "bundle", config.data, ks=KS, min_size=0)
    wall, processor = time.monotonic() - wall, sum(os.times()[:4]) - processor
    below = measure(out / "bundle", config.data)
    reached = all(points <= GOAL for points in below.values())
    lines = [f"{points:.2f} at K = {k:g}" for k, points in below.items()]
    print(f"points below the best possible: {', '.join(lines)}; {GOAL} {'' if reached else 'NOT '}"
          "reached at every K")  # fmt: skip
    print("| date | commit | machine | recipe, seed | wall s | processor s | training s | "
          f"{' | '.join(f'K = {k:g}' for k in KS)} |")  # fmt: skip
    row = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        commit(),
        machine(),
        f"`{config.recipe}`, {config.seed}",
    ]
    row += [f"{seconds:.0f}" for seconds in (wall, processor, trained.seconds)]
    print(f"| {' | '.join([*row, *(f'{points:.2f}' for points in below.values())])} |")
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""How far the rules of the front are from the code of ``tiffanyding/long-tail-conformal``.

    python -m benchmarks.rules.front_oracle REPOSITORY SCORES

REPOSITORY is a checkout of it, which needs scipy, scikit-learn and matplotlib; SCORES is a file of
``benchmarks.rules.front`` with a few hundred classes at most. Half of its photos calibrate.
"""

import argparse
import contextlib
import importlib.util
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rules.front_rules import Task, figures, interpolated, rarity_thresholds, weighted
from benchmarks.rules.front_scores import Floats, Labels, load
from florilege.calibration.conformal import class_quantiles
from florilege.calibration.rules import calibrate


def differences(
    theirs: Any, task: Task, new: Floats, labels: Labels
) -> Iterator[tuple[str, float]]:
    """What differs by how much, for thresholds on scores and for figures of ``new`` photos."""
    alpha, classes, counts = 1 - task.coverage, task.scores.shape[1], task.problem.counts
    wrong, prior = 1 - task.scores, counts / counts.sum()
    shared = theirs.compute_qhat(wrong, task.labels, alpha)
    own = theirs.compute_class_specific_qhats(wrong, task.labels, classes, alpha)
    mine, all_rows = class_quantiles(task.true, task.labels, classes, task.coverage)
    yield "marginal threshold", abs(1 - shared - all_rows)
    own, mine = np.minimum(own, 1), np.maximum(mine, 0)
    yield "class thresholds, largest", float(np.abs(1 - own - mine).max())
    adjusted = theirs.compute_qhat(1 - task.scores / prior, task.labels, alpha)
    rule = calibrate("balanced_coverage", task.scores, task.labels, coverage=task.coverage,
                     class_counts=counts, macro_weight=1.0, min_size=0)  # fmt: skip
    yield "prevalence-adjusted threshold", abs(1 - adjusted - classes * (rule.lambda_val or 0))
    rows = np.bincount(task.labels, minlength=classes)  # which their code takes by default
    for bandwidth in (1e-3, 1e-1):
        params = {"bandwidth": bandwidth, "jitter": False}
        near, _ = theirs.fuzzy_classwise_CP(
            wrong, task.labels, alpha, projection="rarity", params=params
        )
        fuzzy = rarity_thresholds(
            task._replace(problem=replace(task.problem, counts=rows)), bandwidth
        )
        apart = np.abs(1 - np.minimum(near, 1) - fuzzy) > 1e-9  # they round where weights tie
        yield f"fuzzy, bandwidth {bandwidth:g}: share of thresholds", float(apart.mean())
    for weight in (0.5, 0.9):
        listed = theirs.create_classwise_prediction_sets(
            1 - new, weight * own + (1 - weight) * shared
        )
        covered, sizes = theirs.compute_all_metrics(labels, listed, alpha)
        measured = figures(interpolated(task, weight)(new), labels)
        name = f"Interp-Q at {weight:g}: "
        yield f"{name}mean size", abs(measured["size"] - sizes["mean"])
        yield f"{name}macro coverage", abs(measured["macro"] - covered["macro_cov"])
        yield f"{name}classes below 50 %", abs(measured["below_half"] - covered["cov_below50"])
    equal = task._replace(problem=replace(task.problem, counts=np.ones_like(counts)))
    sets = weighted(equal, 0.5)(new)
    apart = (sets != interpolated(task, 0.5)(new)).mean()
    yield "weighted by equal counts against Interp-Q: share of scores", float(apart)


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("repository", type=Path)
    parser.add_argument("scores", type=Path)
    arguments = parser.parse_args()
    path = arguments.repository / "utils" / "conformal_utils.py"
    spec = importlib.util.spec_from_file_location("conformal_utils", path)
    assert spec is not None
    assert spec.loader is not None
    theirs, problem = importlib.util.module_from_spec(spec), load(arguments.scores)
    spec.loader.exec_module(theirs)
    (scores, labels), half = problem.test, len(problem.test[1]) // 2
    order = np.random.default_rng(0).permutation(len(labels))
    first, second = order[:half], order[half:]
    for coverage in (0.8, 0.9):
        task = Task(scores[first], labels[first], coverage, problem)
        with contextlib.redirect_stdout(io.StringIO()):
            result = list(differences(theirs, task, scores[second], labels[second]))
        for name, apart in result:
            print(f"coverage {coverage:g}, {name}: {apart:.1e}")


if __name__ == "__main__":
    main()

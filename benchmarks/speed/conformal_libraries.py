"""Other libraries' split conformal thresholds, to be timed beside ours and to check ours with.

Each function takes ``(scores, labels)``, calibrates at a coverage of 0.9 and gives back what turns
new scores into sets: ``python -m benchmarks.speed.calibration --against
benchmarks.speed.conformal_libraries:mapie_lac``. The libraries (TorchCP, MAPIE, puncc, crepes) are
no dependency: install those wanted.

``python -m benchmarks.speed.conformal_libraries`` compares sets, not time: many small calibrations,
with and without ties, and how often another library puts other classes into the sets of new photos
than ``coverage`` with ``min_size=0`` does.
"""

import argparse
import itertools
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.rules import calibrate

COVERAGE = 0.9
RAPS_PENALTY, RAPS_FREE = 0.01, 5
NEW = 20

Scores = NDArray[Any]
Labels = NDArray[np.int64]
Sets = Callable[[Scores], NDArray[np.bool_]]


def ours(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """The rule of this package that has no more than the others."""
    return calibrate("coverage", scores, labels, coverage=coverage, min_size=0).sets


def torchcp_lac(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """Threshold on ``1 - score``."""
    return _torchcp("LAC", scores, labels, coverage)


def torchcp_aps(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """Adaptive sets: threshold on the sum of the scores from the best class down."""
    return _torchcp("APS", scores, labels, coverage)


def torchcp_raps(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """The same with a penalty for large sets."""
    return _torchcp("RAPS", scores, labels, coverage, penalty=RAPS_PENALTY, kreg=RAPS_FREE)


def mapie_lac(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """Threshold on ``1 - score``."""
    return _mapie("lac", scores, labels, coverage)


def mapie_aps(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """Adaptive sets."""
    return _mapie("aps", scores, labels, coverage)


def puncc_lac(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """Threshold on ``1 - score``."""
    score = import_module("deel.puncc.api.nonconformity_scores").lac_score
    sets = import_module("deel.puncc.api.prediction_sets").lac_set
    return _puncc(score, sets, scores, labels, coverage)


def puncc_aps(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """Adaptive sets."""
    return _puncc_raps(scores, labels, coverage, lambd=0.0, k_reg=1)


def puncc_raps(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """The same with a penalty for large sets."""
    return _puncc_raps(scores, labels, coverage, lambd=RAPS_PENALTY, k_reg=RAPS_FREE)


def crepes_hinge(scores: Scores, labels: Labels, coverage: float = COVERAGE) -> Sets:
    """P-values of ``1 - score``; the threshold is found anew with every prediction."""
    hinge = import_module("crepes.extras").hinge
    alphas = hinge(scores, np.arange(scores.shape[1]), labels)
    result = import_module("crepes").ConformalClassifier().fit(alphas)
    return lambda new: np.asarray(
        result.predict_set(hinge(new), confidence=coverage, smoothing=False), dtype=np.bool_
    )


THRESHOLDS = {
    "torchcp": torchcp_lac,
    "mapie": mapie_lac,
    "puncc": puncc_lac,
    "crepes": crepes_hinge,
}
"""By distribution, the calibration that promises what ``coverage`` does, of the same scores."""


def main() -> None:
    """Compare sets and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200, help="up to so many calibration photos")
    rows = parser.parse_args().rows
    print("| library | scores | calibrations | other sets | of them larger | smaller |")
    print("|---|---|---|---|---|---|")
    for (name, other), ties in itertools.product(THRESHOLDS.items(), (False, True)):
        try:
            called = f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
        kind = "multiples of 1/32" if ties else "distinct"
        print(f"| {called} | {kind} | {' | '.join(map(str, disagreements(other, rows, ties)))} |")


def disagreements(
    other: Callable[[Scores, Labels, float], Sets], most_rows: int, ties: bool
) -> tuple[int, int, int, int]:
    """Calibrations compared, those with other sets, and those with more and with fewer classes."""
    random = np.random.default_rng(0)
    record, larger, smaller, differing = 0, 0, 0, 0
    for rows, coverage in itertools.product(range(10, most_rows + 1, 3), (0.5, 0.8, 0.9)):
        reference, new = (_scores(random, count, ties) for count in (rows, NEW))
        labels = random.integers(0, reference.shape[1], rows)
        labels[:5] = np.arange(5)  # some refuse classes without a photo
        theirs = other(reference, labels, coverage)(new)
        mine = ours(reference, labels, coverage)(new)
        record += 1
        differing += bool((theirs != mine).any())
        larger += bool(theirs.sum() > mine.sum())
        smaller += bool(theirs.sum() < mine.sum())
    return record, differing, larger, smaller


def _scores(random: np.random.Generator, rows: int, ties: bool) -> Scores:
    """Softmax scores, or multiples of 1/32 with their sum, which ``1 - score`` keeps exactly."""
    if ties:
        return random.multinomial(32, np.full(5, 0.2), rows) / 32
    return random.dirichlet(np.ones(5), rows)


def _torchcp(kind: str, scores: Scores, labels: Labels, coverage: float, **settings: Any) -> Sets:
    torch = import_module("torch")
    score = getattr(import_module("torchcp.classification.score"), kind)
    predictor = import_module("torchcp.classification.predictor")
    function = score(score_type="identity", **settings)
    result = predictor.SplitPredictor(function, alpha=1 - coverage)
    result.calculate_threshold(torch.from_numpy(scores), torch.from_numpy(labels))
    return lambda new: np.asarray(
        result.predict_with_logits(torch.from_numpy(new)).numpy(), dtype=np.bool_
    )


def _mapie(kind: str, scores: Scores, labels: Labels, coverage: float) -> Sets:
    base, mapie = import_module("sklearn.base"), import_module("mapie.classification")

    class Given(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc, name-defined]  # untyped
        """A classifier whose input is its scores."""

        classes_ = np.arange(scores.shape[1])
        is_fitted_ = True

        def fit(self, *_: object) -> "Given":
            return self

        def predict_proba(self, given: Scores) -> Scores:
            return given

        def predict(self, given: Scores) -> Labels:
            return np.asarray(given.argmax(axis=1), dtype=np.int64)

    result = mapie.SplitConformalClassifier(
        Given(), confidence_level=coverage, conformity_score=kind
    )
    result.conformalize(scores, labels)
    return lambda new: np.asarray(result.predict_set(new)[1][:, :, 0], dtype=np.bool_)


def _puncc_raps(scores: Scores, labels: Labels, coverage: float, **settings: Any) -> Sets:
    score = import_module("deel.puncc.api.nonconformity_scores").raps_score_builder(**settings)
    sets = import_module("deel.puncc.api.prediction_sets").raps_set_builder(**settings)
    return _puncc(score, sets, scores, labels, coverage)


def _puncc(score: Any, sets: Any, scores: Scores, labels: Labels, coverage: float) -> Sets:
    api = import_module("deel.puncc.api.calibration")
    calibrator = api.BaseCalibrator(nonconf_score_func=score, pred_set_func=sets)
    calibrator.fit(y_true=labels, y_pred=scores)
    calibrator.compute_quantile(alpha=1 - coverage)

    def predict(new: Scores) -> NDArray[np.bool_]:
        members = np.zeros(new.shape, dtype=np.bool_)
        for row, classes in enumerate(calibrator.calibrate(alpha=1 - coverage, y_pred=new)[0]):
            members[row, np.asarray(classes, dtype=np.int64)] = True
        return members

    return predict


if __name__ == "__main__":
    main()

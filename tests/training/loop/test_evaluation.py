import tracemalloc

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from florilege.calibration.scores import scores
from florilege.calibration.threshold import average_k_threshold
from florilege.training.config import Metric, MetricName
from florilege.training.loop.evaluation import Validation, ValidationMeter, _ScoreChoice


def _logits(rows: int, classes: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, (rows, classes)).astype(np.float32)


def measure(
    logits: dict[str, NDArray[np.float32]],
    labels: NDArray[np.int64],
    *,
    average_k: float,
    metric: MetricName = "average_k",
    batch: int = 1000,
) -> Validation:
    evaluation = ValidationMeter(rows=len(labels), metric=Metric(name=metric, k=average_k))
    for start in range(0, len(labels), batch):
        rows = slice(start, start + batch)
        evaluation.update({head: values[rows] for head, values in logits.items()}, labels[rows])
    return evaluation.result()


def test_the_accuracy_is_that_of_the_calibration_package() -> None:
    labels = np.random.default_rng(1).integers(0, 8, 50)
    result = measure({"sccp": _logits(50, 8)}, labels, average_k=2.5)
    for kind in ("softmax", "sigmoid"):
        values = scores(_logits(50, 8), kind)
        for k in (1.0, 2.0, 2.5, 3.0, 5.0):
            lambda_val = average_k_threshold(values, k).lambda_val
            expected = (values[np.arange(50), labels] >= lambda_val).mean()
            assert result.accuracy[_ScoreChoice(head="sccp", score_kind=kind)][k] == expected


def test_the_better_head_is_chosen() -> None:
    labels = np.arange(40) % 8
    good = np.eye(8, dtype=np.float32)[labels] * 5
    result = measure({"multi_label": _logits(40, 8), "sccp": good}, labels, average_k=1)
    assert result.best.head == "sccp"
    assert result.score == 1.0
    swapped = measure({"multi_label": good, "sccp": _logits(40, 8)}, labels, average_k=1)
    assert swapped.best.head == "multi_label"


def test_of_equal_choices_the_first_is_taken() -> None:
    good = np.eye(4, dtype=np.float32) * 5
    result = measure({"multi_label": good, "sccp": good}, np.arange(4), average_k=1)
    assert result.best == _ScoreChoice(head="multi_label", score_kind="softmax")


@pytest.mark.parametrize(
    ("classes", "wanted", "metric", "chosen"),
    [
        *((2, 3, "average_k", 1.0), (3, 3, "average_k", 2.0), (9, 3, "average_k", 3.0)),
        *((9, 7, "average_k", 7.0), (7, 9, "average_k", 6.0), (3, 7, "top_k", 2.0)),
    ],
)
def test_few_classes_lower_the_k_that_chooses(
    classes: int, wanted: float, metric: MetricName, chosen: float
) -> None:
    labels = np.arange(20) % classes
    result = measure({"linear": _logits(20, classes)}, labels, average_k=wanted, metric=metric)
    assert result.metric == Metric(name=metric, k=chosen)
    assert result.score < 1
    for by_k in result.accuracy.values():
        assert max(by_k) < classes
        assert chosen in by_k


def test_log_loss_and_top_1_are_those_of_torch() -> None:
    labels = np.arange(30) % 6
    logits = _logits(30, 6) + np.float32(1e4)
    result = measure({"linear": logits}, labels, average_k=2)
    tensor = torch.from_numpy(logits).double()
    expected = torch.nn.functional.cross_entropy(tensor, torch.from_numpy(labels)).item()
    assert result.log_loss["linear"] == pytest.approx(expected, rel=1e-6)
    assert result.top_1["linear"] == (logits.argmax(1) == labels).mean()


@pytest.mark.parametrize(
    ("logits", "labels", "average_k", "metric", "score"),
    [
        ([9, 9, -2, -5], [0, 1, 2, 3], 1, "average_k", 0.25),  # half of the two true ones
        ([9, 9, -2, -5], [0, 1, 2, 3], 2, "average_k", 0.5),
        ([9, 5, 5, 0], [1, 1, 1, 1], 2, "average_k", 0.5),  # four places for eight equal scores
        ([9, 5, 5, 0], [0, 0, 0, 1], 2, "macro_average_k", (1 + 0.5) / 2),
    ],
)
def test_equal_scores_count_no_more_than_the_share_that_fits(
    logits: list[float], labels: list[int], average_k: float, metric: MetricName, score: float
) -> None:
    rows = {"linear": np.array([logits] * 4, dtype=np.float32)}
    result = measure(rows, np.array(labels), average_k=average_k, metric=metric)
    assert list(result.values.values()) == [pytest.approx(score)] * 2  # by score kind


@pytest.mark.parametrize("rows", [1, 7, 22])
def test_any_batches_give_the_same_figures(rows: int) -> None:
    logits = {"sccp": _logits(22, 9).round(), "multi_label": _logits(22, 9, seed=1).round()}
    labels = np.arange(22) % 9
    in_batches = measure(logits, labels, average_k=2.5, batch=rows)
    assert in_batches == measure(logits, labels, average_k=2.5)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_workers_that_take_batches_in_turn_give_the_figures_of_one(workers: int) -> None:
    random = np.random.default_rng(6)
    batches = [
        ({"a": random.normal(size=(9, 5)).astype(np.float32),
          "b": random.normal(size=(9, 5)).round(1).astype(np.float32)}, random.integers(0, 5, 9))
        for _ in range(5)
    ]  # fmt: skip
    metric = Metric(name="macro_average_k", k=2.0)
    one, *several = (ValidationMeter(rows=45, metric=metric) for _ in range(workers + 1))
    for turn, (logits, labels) in enumerate(batches):
        one.update(logits, labels)
        several[turn % workers].update(logits, labels)
    assert ValidationMeter.joined(several).result() == one.result()


def test_memory_does_not_grow_with_the_classes() -> None:
    rows, classes, batch = 2000, 5000, 50
    evaluation = ValidationMeter(rows=rows, metric=Metric(name="average_k", k=3.0))
    tracemalloc.start()
    for _ in range(rows // batch):
        evaluation.update({"linear": _logits(batch, classes)}, np.zeros(batch, dtype=np.int64))
    evaluation.result()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows * classes * 4 / 2


@pytest.mark.parametrize("metric", ["macro_average_k", "top_k", "macro_top_k"])
@pytest.mark.parametrize("batch", [7, 60])
def test_every_metric_is_that_of_the_calibration_package(metric: MetricName, batch: int) -> None:
    labels = np.random.default_rng(1).integers(0, 8, 60) // 2 * 2  # odd classes have no photos
    logits = {"multi_label": _logits(60, 8), "sccp": _logits(60, 8, seed=2)}
    outcome = measure(logits, labels, average_k=3, metric=metric, batch=batch)
    for choice, value in outcome.values.items():
        values = scores(logits[choice.head], choice.score_kind)  # type: ignore[arg-type]  # a kind
        if metric == "macro_average_k":
            lambda_val = average_k_threshold(values, 3).lambda_val
            hits = values[np.arange(60), labels] >= lambda_val
        else:
            best = np.argsort(-values, axis=1, kind="stable")[:, :3]
            hits = (best == labels[:, np.newaxis]).any(axis=1)
        by_class = [hits[labels == label].mean() for label in np.unique(labels)]
        expected = hits.mean() if metric == "top_k" else np.mean(by_class)
        assert value == pytest.approx(expected)
    assert outcome.score == max(outcome.values.values())
    assert len(outcome.values) == (4 if metric == "macro_average_k" else 2)

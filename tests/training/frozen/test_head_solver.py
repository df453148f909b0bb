"""Heads that are solved for: the optimum by its gradient, what is decayed, and what val chooses."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilege.errors import UsageError
from florilege.models.backbones import Network, read_weights
from florilege.models.heads import build_head
from florilege.training import batches
from florilege.training.batches import Features
from florilege.training.config import Metric, OptimiserConfig, TrainConfig
from florilege.training.configuration import RunFolder
from florilege.training.frozen import HeadOnFeatures, head_solver
from florilege.training.frozen.head_solver import (
    DECAYS,
    WIDER,
    _beyond,
    _Candidate,
    _candidate_of,
    _choose,
    _HeadProblem,
    _solutions,
    decays_of,
)
from florilege.training.loop.evaluation import Validation, _ScoreChoice
from florilege.training.losses.base import Loss
from florilege.training.network import _make_objective
from florilege.training.run_export import (
    _best_row,
    _networks_compared,
    _RunFacts,
    export_run,
)
from tests.training.frozen.feature_examples import classes_of, features_of
from tests.training.small import lines_of, rows_of, small_config, train_quietly, write_photos

CLASSES, DIMENSIONS = 4, 6
SOLVED: dict[str, Any] = {"name": "lbfgs"}


def _config(loss: str = "cross_entropy", **parameters: Any) -> TrainConfig:
    changes = {"loss": {"name": loss, **parameters}, "freeze": "backbone", "weights": "w"}
    return small_config("x", optimiser=SOLVED, epochs=200, **changes)


def _problem(
    train: Features, loss: str = "cross_entropy", head: str = "linear", **parameters: Any
) -> _HeadProblem:
    config = _config(loss, **parameters)
    torch.manual_seed(0)
    network = Network(nn.Identity(), build_head(head, DIMENSIONS, CLASSES), head_name=head)
    counts = np.bincount(train.split.labels, minlength=CLASSES).tolist()
    return _HeadProblem(
        HeadOnFeatures(network, train), _make_objective(config, counts), train, seed=3
    )


def _layer(problem: _HeadProblem) -> Any:
    return problem.head.head


def _scaled(train: Features) -> NDArray[np.float64]:
    values = train.values.astype(np.float64)
    scaled: NDArray[np.float64] = (values - values.mean(0)) / values.std(0)
    return scaled


@pytest.mark.parametrize("decay", [1.0, 0.01])
def test_at_the_solution_the_gradient_of_loss_and_decay_is_zero(
    decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_solver, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", 7)
    train = classes_of(60, seed=0, wrong=0.3)
    problem = _problem(train)
    problem.solve(decay, passes=500)
    layer, x, labels = _layer(problem), _scaled(train), train.split.labels
    weight, bias = (each.detach().double().numpy() for each in (layer.weight, layer.bias))
    logits = x @ weight.T + bias
    p = np.exp(logits - logits.max(1)[:, None])
    p /= p.sum(1)[:, None]
    apart = (p - np.eye(CLASSES)[labels]) / len(labels)
    np.testing.assert_allclose(apart.T @ x + decay * weight, 0, atol=3e-3)
    np.testing.assert_allclose(apart.sum(0), 0, atol=3e-3)  # no bias is decayed


def test_a_huge_decay_leaves_the_shares_of_the_classes() -> None:
    train = features_of(np.random.default_rng(0).normal(size=(40, DIMENSIONS)), np.arange(40) // 13)
    problem = _problem(train)
    problem.solve(1e4, passes=200)
    assert _layer(problem).weight.abs().max() < 1e-3
    shares = _layer(problem).bias.softmax(0).detach().numpy()
    np.testing.assert_allclose(shares, [13 / 40, 13 / 40, 13 / 40, 1 / 40], atol=1e-3)


@pytest.mark.parametrize(
    ("loss", "parameters"), [("noised_top_k", {"k": 2}), ("role", {"average_k": 2})]
)
def test_an_evaluation_repeats_its_noise_and_its_memory(
    loss: str, parameters: dict[str, Any]
) -> None:
    problem = _problem(classes_of(60, seed=0), loss, **parameters)
    first, second = (float(problem.value(0.1)) for _ in range(2))
    assert first == second
    problem.solve(0.1, passes=40)
    if loss == "role":
        moved = problem.memory["_extra_state"]["logits"]
        assert float(moved.abs().max()) > 1  # the estimates of labels have learnt


def test_a_fixed_class_weight_and_an_ignored_label_count_as_in_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = classes_of(60, seed=0)
    parameters: dict[str, Any] = {"weight": [1.0, 2.0, 0.5, 3.0], "ignore_index": 1}
    whole = float(_problem(train, **parameters).value(0.1))
    monkeypatch.setattr(head_solver, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", 7)
    assert float(_problem(train, **parameters).value(0.1)) == pytest.approx(whole, rel=1e-5)


def test_features_that_do_not_fit_in_memory_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = classes_of(60, seed=0)
    expected = float(_problem(train).value(0.1))
    monkeypatch.setattr(head_solver, "_IN_MEMORY_BYTES", 0)
    problem = _problem(train)
    assert problem.blocks_in_memory is None
    assert float(problem.value(0.1)) == expected


def test_the_decay_of_a_cosine_head_is_that_of_the_linear_head_that_does_the_same() -> None:
    train = features_of(classes_of(60, seed=0).values.astype(np.float64) + 3.0, np.arange(60) % 4)
    problem = _problem(train, "ldam", "cosine")
    layer = _layer(problem)
    layer.scale.fill_(5.0)
    unit = train.values / np.linalg.norm(train.values, axis=1, keepdims=True)
    deviation = np.sqrt(((unit - unit.mean(0)) ** 2).sum(1).mean() / DIMENSIONS)
    weight = layer.weight.detach().numpy()
    linear = 5.0 * weight / np.linalg.norm(weight, axis=1, keepdims=True) * deviation
    expected = ((linear - linear.mean(0)) ** 2).sum()
    assert problem.squares().item() == pytest.approx(expected, rel=1e-4)
    layer.weight.data *= 7  # the length of a direction means nothing
    assert problem.squares().item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "head"), [("ldam", "cosine"), ("two_head_average_k", "two_head"), ("focal", "linear")]
)
def test_more_decay_brings_the_classes_closer(loss: str, head: str) -> None:
    train = classes_of(200, seed=0)
    squares = []
    for decay in (1.0, 0.01):
        problem = _problem(train, loss, head)
        if head == "cosine":
            problem.first_state["head.scale"].fill_(30.0)  # as the start of a run does
        problem.solve(decay, passes=100)
        squares.append(problem.squares().item())
    assert squares[0] < 0.7 * squares[1]


class Remembering(Loss):
    """A loss of a user that changes a buffer in its forward pass."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(logits, labels)
        self.mean = 0.9 * self.mean + 0.1 * value.detach()
        return value + 0.1 * self.mean


def test_a_loss_of_a_user_that_remembers_is_solved_for() -> None:
    train, val = classes_of(300, seed=0), classes_of(200, seed=1)
    config = _config(f"{__name__}:Remembering")
    network = Network(nn.Identity(), build_head("linear", DIMENSIONS, CLASSES), head_name="linear")
    objective = _make_objective(config, [75] * CLASSES)
    candidates = list(_solutions(config, HeadOnFeatures(network, train), objective, train, val))
    assert [each.weight_decay for each in candidates] == list(DECAYS)
    assert max(each.validation.score for each in candidates) > 0.9


class Faint(Loss):
    """A loss of a user whose scale wants far less decay than others."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return 1e-3 * nn.functional.cross_entropy(logits, labels)


def test_the_grid_goes_on_for_as_long_as_accuracy_rises() -> None:
    train, val = classes_of(300, seed=0), classes_of(200, seed=1)
    config = _config(f"{__name__}:Faint")
    network = Network(nn.Identity(), build_head("linear", DIMENSIONS, CLASSES), head_name="linear")
    objective = _make_objective(config, [75] * CLASSES)
    candidates = list(_solutions(config, HeadOnFeatures(network, train), objective, train, val))
    assert [each.weight_decay for each in candidates] == list(WIDER[2:])
    assert candidates[len(DECAYS) - 1].hits.mean() < candidates[-1].hits.mean() - 0.2


def _candidate(decay: float, hits: Sequence[float], log_loss: float = 1.0) -> _Candidate:
    choice = _ScoreChoice(head="linear", score_kind="softmax")
    metric = Metric(name="average_k", k=2.0)
    accuracy = float(np.mean(hits))
    validation = Validation(
        metric=metric, values={choice: accuracy}, accuracy={}, top_1={}, log_loss={}
    )
    return _Candidate(
        weight_decay=decay,
        state={},
        train_loss=0.0,
        validation=validation,
        hits=np.asarray(hits, dtype=np.float64),
        log_loss=log_loss,
    )


def _photos_of_val(rows: int, plants: Sequence[str] | None = None) -> Features:
    features = features_of(np.zeros((rows, 2)), np.zeros(rows, dtype=np.int64))
    object.__setattr__(features.split, "observations", plants)
    return features


def test_where_all_photos_are_right_the_most_probable_labels_decide() -> None:
    candidates = [
        _candidate(decay, [1.0] * 20, log_loss)
        for decay, log_loss in zip((1.0, 0.3, 0.1), (0.9, 0.2, 0.5), strict=True)
    ]
    assert _choose(candidates, _photos_of_val(20)) == (1, False)


@pytest.mark.parametrize(("lost", "choice"), [(2, 1), (3, 0)])
def test_within_half_an_error_of_the_most_hits_the_log_loss_decides(lost: int, choice: int) -> None:
    """Four photos gained and some lost; one error would be too much where labels are wrong."""
    best = [1.0] * 84 + [0.0] * 16
    other = [0.0] * 4 + [1.0] * 80 + [1.0] * lost + [0.0] * (16 - lost)
    candidates = [_candidate(1.0, other, 0.1), _candidate(0.3, best, 0.9)]
    assert _choose(candidates, _photos_of_val(100)) == (choice, False)


def test_a_paired_difference_is_judged_by_its_own_error() -> None:
    """Four photos in 100 lost and none gained: within the error of an accuracy, yet clear."""
    candidates = [
        _candidate(1.0, [1.0] * 46 + [0.0] * 54, 0.1),
        _candidate(0.3, [1.0] * 50 + [0.0] * 50, 0.9),
    ]
    assert _choose(candidates, _photos_of_val(100)) == (1, True)


def test_photos_of_one_plant_are_no_more_evidence_than_one() -> None:
    candidates = [
        _candidate(1.0, [1.0] * 46 + [0.0] * 54, 0.1),
        _candidate(0.3, [1.0] * 50 + [0.0] * 50, 0.9),
    ]
    plants = ["a"] * 46 + ["b"] * 4 + [str(row) for row in range(50)]
    assert _choose(candidates, _photos_of_val(100, plants)) == (0, False)


@pytest.mark.parametrize(("best", "rises"), [(0, True), (1, False), (2, True)])
def test_only_an_end_of_the_grid_that_is_clearly_better_than_its_neighbour_rises(
    best: int, rises: bool
) -> None:
    shares = [0.8, 0.8, 0.8]
    shares[best] = 0.95
    hits = [[1.0] * round(100 * share) + [0.0] * round(100 - 100 * share) for share in shares]
    decays = (1.0, 0.3, 0.1)
    candidates = [_candidate(decay, each) for decay, each in zip(decays, hits, strict=True)]
    assert _choose(candidates, _photos_of_val(100)) == (best, rises)


@pytest.mark.parametrize(("shares", "beyond"), [((9, 8, 8), 3.0), ((8, 8, 9), 0.03)])
def test_the_nearest_decay_beyond_a_rising_end_comes_next(
    shares: tuple[int, ...], beyond: float
) -> None:
    hits = [[1.0] * 10 * share + [0.0] * (100 - 10 * share) for share in shares]
    candidates = [_candidate(*each) for each in zip((1.0, 0.3, 0.1), hits, strict=True)]
    val = _photos_of_val(100)
    assert _beyond(candidates, WIDER, val) == _beyond(candidates[::-1], WIDER, val) == [beyond]
    assert _beyond(candidates, (1.0, 0.3, 0.1), val) == []  # nothing is left
    assert _beyond(candidates[:2] if beyond < 1 else candidates[1:], WIDER, val) == []


def test_one_photo_makes_no_end_rise() -> None:
    one, other = [1.0] * 9 + [0.0], [1.0] * 10
    candidates = [_candidate(1.0, one, 0.9), _candidate(0.3, other, 0.1)]
    assert _choose(candidates, _photos_of_val(10)) == (1, False)


def test_the_figures_of_a_candidate_are_those_that_decide() -> None:
    """A large decay makes logits small: their sets are as good at a low temperature."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, 300)
    logits = (2 * np.eye(CLASSES)[labels] + random.normal(size=(300, CLASSES))).astype(np.float32)
    logits *= random.uniform(1, 4, size=(300, 1))
    metric = Metric(name="average_k", k=2.0)
    for scale in (0.1, 1.0):
        candidate = _candidate_of({"linear": scale * logits}, labels, metric, weight_decay=1.0)
        means = [np.mean([*of.values()]) for of in candidate.validation.accuracy.values()]
        assert candidate.hits.mean() == pytest.approx(max(means))


def test_a_level_end_does_not_rise() -> None:
    level = [_candidate(decay, [1.0] * 10, decay) for decay in (1.0, 0.3, 0.1)]
    assert _choose(level, _photos_of_val(10)) == (2, False)


def test_with_wrong_labels_the_choice_is_near_the_best_on_other_photos() -> None:
    random, rows = np.random.default_rng(0), 150
    dimensions = 60
    centres = random.normal(0, 0.5, (CLASSES, dimensions))

    def photos(count: int, wrong: float) -> Features:
        true = random.integers(0, CLASSES, count)
        labels = np.where(random.random(count) < wrong, random.integers(0, CLASSES, count), true)
        return features_of(centres[true] + random.normal(size=(count, dimensions)), labels)

    train, val, test = photos(rows, 0.5), photos(200, 0.0), photos(4000, 0.0)
    network = Network(nn.Identity(), build_head("linear", dimensions, CLASSES), head_name="linear")
    config = _config()
    objective = _make_objective(config, np.bincount(train.split.labels, minlength=4).tolist())
    by_decay = {
        each.weight_decay: each.hits.mean()
        for each in _solutions(config, HeadOnFeatures(network, train), objective, train, test)
    }
    candidates = list(_solutions(config, HeadOnFeatures(network, train), objective, train, val))
    decay = candidates[_choose(candidates, val)[0]].weight_decay
    assert by_decay[decay] > max(by_decay.values()) - 0.01
    assert by_decay[DECAYS[-1]] < max(by_decay.values()) - 0.03  # so the decay matters


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), train=14, val=8)


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run on a frozen network, and its lines."""
    folder = tmp_path_factory.mktemp("runs")
    train_quietly(small_config(photos, epochs=0), folder / "start")
    lines = lines_of(_run_config(photos, folder), folder / "run")
    return folder / "run", lines


def _run_config(photos: Path, folder: Path, **optimiser: float) -> TrainConfig:
    weights, loss = str(folder / "start"), {"name": "two_head_average_k", "average_k": 2}
    settings = {"weights": weights, "freeze": "backbone", "loss": loss, "epochs": 30}
    return small_config(photos, **settings, optimiser={**SOLVED, **optimiser})


def test_a_run_records_the_curve_and_the_choice(run: tuple[Path, list[str]]) -> None:
    folder, lines = run
    rows = rows_of(folder)
    assert [float(row["weight_decay"]) for row in rows] == list(DECAYS)
    (row,) = [row for row in rows if row["chosen"] == "1"]
    decay = f"weight decay {float(row['weight_decay']):g}"
    assert any(line.startswith(f"{decay} is ") and "best on val" in line for line in lines)
    assert all(0 < float(row["val_hits"]) <= 1 and float(row["val_log_loss"]) > 0 for row in rows)
    assert sum(line.startswith("weight decay ") and "loss" in line for line in lines) == len(DECAYS)
    assert _best_row(RunFolder(folder))["weight_decay"] == float(row["weight_decay"])
    assert float(row["val_score"]) > 0.8
    assert "Chosen of 6 weight decays" in (folder / "report.html").read_text()
    assert "learning_rate" not in row


def test_the_bundle_counts_what_val_compared(run: tuple[Path, list[str]], tmp_path: Path) -> None:
    bundle = export_run(run[0], tmp_path / "bundle")
    provenance = json.loads(bundle.read("provenance.json"))
    chosen = _best_row(RunFolder(run[0]))["weight_decay"]
    assert provenance["weight_decay"] == chosen
    assert provenance["networks_compared"] is None  # the weights it starts from are another run's
    assert f"Weight decay {chosen:g} was chosen on `val`" in bundle.read("MODEL_CARD.md").decode()


def test_promises_allow_for_every_decay_that_may_be_compared(photos: Path) -> None:
    config = small_config(photos, weights="pretrained", freeze="backbone", optimiser=SOLVED)
    classes: Any = None
    assert _networks_compared(_RunFacts(config, classes, {}, None)) == len(WIDER)


def test_a_decay_that_is_set_is_the_only_one(
    photos: Path, run: tuple[Path, list[str]], tmp_path: Path
) -> None:
    config = _run_config(photos, run[0].parent, weight_decay=0.2)
    assert decays_of(config.optimiser) == (0.2,)
    lines = lines_of(config, tmp_path / "run")
    assert not any("is best on val" in line for line in lines)
    assert [row["weight_decay"] for row in rows_of(tmp_path / "run")] == ["0.2"]


def test_a_run_says_that_its_grid_goes_on(
    photos: Path, run: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = iter([[10.0], [30.0], []])
    monkeypatch.setattr(head_solver, "_beyond", lambda *_: next(grids))
    lines = lines_of(_run_config(photos, run[0].parent), tmp_path / "run")
    assert sum("accuracy still rises at this end of the grid" in line for line in lines) == 2
    tried = [float(row["weight_decay"]) for row in rows_of(tmp_path / "run")]
    assert tried == [*DECAYS, 10.0, 30.0]
    assert "Chosen of 8 weight decays" in (tmp_path / "run" / "report.html").read_text()


def test_more_classes_are_decayed_less() -> None:
    solved = OptimiserConfig(name="lbfgs", weight_decay=None)
    assert decays_of(solved, 7) == decays_of(solved, 100) == DECAYS
    assert decays_of(solved, 400) == (0.38, 0.12, 0.037, 0.013, 0.0037, 0.0013)
    assert decays_of(OptimiserConfig(name="lbfgs", weight_decay=0.2), 400) == (0.2,)


def test_a_finished_run_is_not_solved_again(
    photos: Path, run: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run[0]
    before = (folder / "best.safetensors").read_bytes()
    monkeypatch.setattr("florilege.training.train.search", None)  # it would fail
    lines = lines_of(_run_config(photos, folder.parent), folder, resume=True)
    assert any("nothing is left to train" in line for line in lines)
    assert (folder / "best.safetensors").read_bytes() == before


def test_a_run_that_was_stopped_while_it_solved_starts_again(
    photos: Path, run: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    config = _run_config(photos, run[0].parent)
    with monkeypatch.context() as patch:
        patch.setattr("florilege.training.train.search", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_quietly(config, tmp_path / "run")
    train_quietly(config, tmp_path / "run", resume=True)
    whole, again = (read_weights(each / "best.safetensors") for each in (run[0], tmp_path / "run"))
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_a_loss_that_is_not_finite_is_named(photos: Path, run: tuple[Path, list[str]]) -> None:
    problem = _problem(classes_of(20, seed=0))
    problem.first_state["head.bias"].fill_(float("nan"))
    with pytest.raises(UsageError, match=r"the loss is nan at weight decay 0\.1"):
        problem.solve(0.1, passes=10)


def test_the_table_of_a_run_is_read_by_others(run: tuple[Path, list[str]]) -> None:
    with (run[0] / "metrics.csv").open() as file:
        epochs = [row["epoch"] for row in csv.DictReader(file)]
    assert epochs == [str(number) for number in range(1, 7)]


def test_biases_are_held_where_a_loss_asks_only_that_they_grow() -> None:
    train, val = classes_of(300, seed=0), classes_of(200, seed=1)
    held = _problem(train, "positive_bce")
    assert not _layer(held).bias.requires_grad
    before = _layer(held).bias.clone()
    held.solve(0.1, passes=100)
    assert torch.equal(_layer(held).bias, before)
    candidate = head_solver._measure(held, 0.1, val, Metric(name="average_k", k=2.0))
    assert candidate.validation.score > 0.9
    assert _layer(_problem(train, "assume_negative")).bias.requires_grad


def test_the_weights_of_a_run_are_those_of_its_choice_alone(
    photos: Path, run: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run[0].parent
    train_quietly(_run_config(photos, folder, weight_decay=1.0), tmp_path / "alone")
    monkeypatch.setattr(
        "florilege.training.frozen.head_solver._choose", lambda *_: (DECAYS.index(1.0), False)
    )
    train_quietly(_run_config(photos, folder), tmp_path / "among")
    alone, among = (read_weights(tmp_path / x / "best.safetensors") for x in ("alone", "among"))
    assert all(torch.equal(alone[key], among[key]) for key in alone)

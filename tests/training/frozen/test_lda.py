"""The linear discriminant of kept features: right by its densities, added once, where it helps."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from data.dataset import Split
from tests.training.small import small_config, write_photos
from training.export import export_run
from training.frozen import lda
from training.frozen.lda import Discriminant, Linear, add_discriminant, note_of, with_discriminant
from training.frozen.store import Features
from training.train import train_run


def _features(values: NDArray[np.float64], labels: NDArray[np.int64]) -> Features:
    names = [""] * len(labels)
    split = Split(name="train", labels=labels, names=names, observations=None, read=lambda _: b"")
    return Features(split, values.astype(np.float32), np.arange(len(labels)))


def _classes(rows: int, seed: int, *, wrong: float = 0.0) -> Features:
    """Photos of four classes in six dimensions, some with another label than their own."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(0, 1.5, (4, 6))
    true = random.integers(0, 4, rows)
    values = centres[true] + random.normal(0, 1, (rows, 6)) @ np.diag([1, 2, 1, 1, 3, 1.0])
    given = np.where(random.random(rows) < wrong, random.integers(0, 4, rows), true)
    return _features(values, given)


def _density_oracle(found: Features, classes: int, shrinkage: float) -> NDArray[np.float64]:
    """log prior + log density of every class for every row, by the textbook."""
    values, labels = found.values.astype(np.float64), found.split.labels
    within = np.zeros((values.shape[1],) * 2)
    means = np.tile(values.mean(0), (classes, 1))
    for label in set(labels.tolist()):
        own = values[labels == label]
        means[label] = own.mean(0)
        within += (own - means[label]).T @ (own - means[label])
    covariance = within / len(values)
    covariance = (1 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
    inverse = np.linalg.inv(covariance)
    scores = np.empty((len(values), classes))
    for row, value in enumerate(values):
        for label in range(classes):
            away = value - means[label]
            prior = max((labels == label).sum(), 0.5) / len(values)
            scores[row, label] = np.log(prior) - away @ inverse @ away / 2
    return scores


@pytest.mark.parametrize("shrinkage", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("classes", [4, 5])  # the fifth has no photo
def test_it_ranks_classes_by_their_densities(
    shrinkage: float, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lda, "ROWS_AT_ONCE", 7)
    found = _classes(60, seed=0)
    logits = Discriminant(found, classes).layer(shrinkage).logits(torch.from_numpy(found.values))
    wanted = _density_oracle(found, classes, shrinkage)
    apart = logits.astype(np.float64) - wanted
    np.testing.assert_allclose(apart, np.tile(apart[:, :1], (1, classes)), atol=2e-4)


def test_features_that_never_vary_do_no_harm() -> None:
    found = _classes(40, seed=1)
    constant = _features(
        np.concatenate([found.values, np.full((40, 2), 3.0)], axis=1), found.split.labels
    )
    logits = Discriminant(constant, 4).layer(0.1).logits(torch.from_numpy(constant.values))
    assert np.isfinite(logits).all()


def test_it_repairs_a_head_that_learnt_little_and_leaves_one_alone_that_is_right() -> None:
    train, val = _classes(400, seed=2, wrong=0.4), _classes(300, seed=3)
    poor = Linear(0.05 * torch.randn(4, 6, generator=torch.manual_seed(0)), torch.zeros(4))
    added = with_discriminant(poor, train, val)
    assert added is not None
    assert added.after > added.before + 0.02
    best = Discriminant(_classes(5000, seed=4), 4).layer(0.1)
    perfect = Linear(1000 * best.weight, 1000 * best.bias)  # no share counts beside it
    assert with_discriminant(perfect, train, val) is None


def test_a_file_gets_it_once(tmp_path: Path) -> None:
    train, val = _classes(400, seed=2, wrong=0.4), _classes(300, seed=3)
    weights = tmp_path / "best.safetensors"
    state = {"head.weight": torch.zeros(4, 6), "head.bias": torch.zeros(4), "other": torch.ones(2)}
    save_file(state, str(weights))
    assert note_of(weights) is None
    done = add_discriminant(weights, train, val)
    assert done is not None
    assert note_of(weights) == done
    content = weights.read_bytes()
    assert add_discriminant(weights, train, val) == done
    assert weights.read_bytes() == content


def test_a_run_says_what_it_added_and_its_papers_repeat_it(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", train=14, val=8)
    train_run(small_config(photos, epochs=0), tmp_path / "start", say=lambda _: None)
    said: list[str] = []
    config = small_config(
        photos,
        weights=str(tmp_path / "start"),
        freeze="backbone",
        lda=True,
        loss={"name": "cross_entropy"},
        optimiser={"learning_rate": 1e-6},
    )
    train_run(config, tmp_path / "run", say=said.append)
    (done,) = [line for line in said if "linear discriminant" in line]
    bundle = export_run(tmp_path / "run", tmp_path / "bundle")
    assert json.loads(bundle.read("provenance.json"))["lda"] == done
    assert done in bundle.read("MODEL_CARD.md").decode()

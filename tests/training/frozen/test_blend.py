"""Blended heads: the formula, one blend per file, better than either head with wrong labels.

The linear discriminant agrees with its densities.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from florilege.data.dataset import Split
from florilege.training.frozen import feature_store
from florilege.training.frozen.blend import (
    SHARE,
    SHARPNESS,
    Linear,
    accuracy,
    blend,
    candidates,
    discriminant,
    note_of,
    partner,
)
from florilege.training.frozen.feature_store import Features
from florilege.training.run_export import export_run
from tests.training.small import lines_of, small_config, train_quietly, write_photos


def features_of(values: NDArray[np.float64], labels: NDArray[np.int64]) -> Features:
    """Features as if they were stored, ``(rows, dimensions)``."""
    names = [""] * len(labels)
    split = Split(name="train", labels=labels, names=names, observations=None, read=lambda _: b"")
    return Features(split, values.astype(np.float32), np.arange(len(labels)))


def classes_of(rows: int, seed: int, *, wrong: float = 0.0) -> Features:
    """Features of four classes in six dimensions, some with wrong labels."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(0, 1.5, (4, 6))
    true = random.integers(0, 4, rows)
    values = centres[true] + random.normal(0, 1, (rows, 6)) @ np.diag([1, 2, 1, 1, 3, 1.0])
    options = np.where(random.random(rows) < wrong, random.integers(0, 4, rows), true)
    return features_of(values, options)


def _density_oracle(features: Features, classes: int, shrinkage: float) -> NDArray[np.float64]:
    """log prior + log density of every class for every row, by the textbook."""
    values, labels = features.values.astype(np.float64), features.split.labels
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
    monkeypatch.setattr(feature_store, "ROWS_AT_ONCE", 7)
    result = classes_of(60, seed=0)
    logits = discriminant(result, classes, shrinkage).logits(torch.from_numpy(result.values))
    expected = _density_oracle(result, classes, shrinkage)
    apart = logits.astype(np.float64) - expected
    np.testing.assert_allclose(apart, np.tile(apart[:, :1], (1, classes)), atol=2e-4)


def test_features_that_never_vary_do_no_harm() -> None:
    result = classes_of(40, seed=1)
    constant = features_of(
        np.concatenate([result.values, np.full((40, 2), 3.0)], axis=1), result.split.labels
    )
    logits = discriminant(constant, 4, 0.1).logits(torch.from_numpy(constant.values))
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e5])
def test_half_of_the_features_constant_at_any_scale_leaves_the_others_their_say(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels fixed at 128, as in photos on a grey background."""
    monkeypatch.setattr(feature_store, "ROWS_AT_ONCE", 7)
    varying, rows = classes_of(200, seed=1), 200
    values = np.concatenate([varying.values, np.full((rows, 6), 128.1)], axis=1) * scale
    train = features_of(values, varying.split.labels)
    logits = discriminant(train, 4, 0.4).logits(torch.from_numpy(train.values))
    alone = discriminant(varying, 4, 0.4).logits(torch.from_numpy(varying.values))
    apart = (logits - logits.mean(1)[:, None]) - (alone - alone.mean(1)[:, None])
    np.testing.assert_allclose(apart, 0, atol=1e-2)
    _, deviation = train.spread()
    assert (deviation[6:] == 1).all()
    assert (deviation[:6] < 10 * scale).all()


def test_features_of_which_none_varies_are_no_part_of_the_blend() -> None:
    labels = np.arange(40) % 4
    heads = [
        head for head, _ in candidates(_head(1), _head(2), features_of(np.ones((40, 6)), labels))
    ]
    assert all(head.weight.isfinite().all() and head.bias.isfinite().all() for head in heads)


def _head(seed: int) -> Linear:
    random = torch.manual_seed(seed)
    return Linear(torch.randn(4, 6, generator=random), torch.randn(4, generator=random))


def _logits_oracle(layer: Linear, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits around the mean of their row, one at a time."""
    weight, bias = layer.weight.double().numpy(), layer.bias.double().numpy()
    logits = np.array([[weight[c] @ row + bias[c] for c in range(len(bias))] for row in values])
    centred: NDArray[np.float64] = logits - logits.mean(1)[:, None]
    return centred


def test_a_blend_is_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "ROWS_AT_ONCE", 7)
    train, own, other = classes_of(60, seed=0), _head(1), _head(2)
    values = train.values.astype(np.float64)
    ours = [_logits_oracle(head, values) for head in (own, other)]
    theirs = _logits_oracle(discriminant(train, 4, 0.4), values)
    sizes = [np.sqrt((logits**2).mean()) for logits in (*ours, theirs)]
    gain = theirs * (sizes[0] + sizes[1]) / 2 / sizes[2]
    result = list(candidates(own, other, train))
    assert [sharpness for _, sharpness in result] == list(SHARPNESS)
    expected = (1 - SHARE) * (ours[0] + ours[1]) / 2 + SHARE * gain
    for head, sharpness in result:
        logits = _logits_oracle(head, values)
        np.testing.assert_allclose(logits, sharpness * expected, rtol=1e-4, atol=1e-4)


def test_nothing_is_sharpened_where_that_is_as_good() -> None:
    assert (SHARE, SHARPNESS[0]) == (0.25, 1.0)  # what the figures in docs/results.md rest on


def test_it_repairs_a_head_that_learnt_little(tmp_path: Path) -> None:
    train, val = classes_of(400, seed=2, wrong=0.4), classes_of(300, seed=3)
    weights, other = tmp_path / "best.safetensors", torch.ones(2)
    poor = 0.05 * torch.randn(4, 6, generator=torch.manual_seed(0))
    state = {"head.weight": poor, "head.bias": torch.zeros(4), "other": other}
    save_file(state, str(weights))
    assert note_of(weights) is None
    config = small_config(tmp_path, epochs=3)
    result = blend(weights, train, val, config)
    assert note_of(weights) == result
    before, after = (
        float(part.split(" %")[0]) for part in result.split("sizes, are ")[1].split(" and ")
    )
    assert after > before + 2
    content = weights.read_bytes()
    assert blend(weights, train, val, config) == result
    assert weights.read_bytes() == content  # it is done once


def test_val_chooses_and_train_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, val = classes_of(200, seed=2, wrong=0.5), classes_of(60, seed=3)
    own, other = _head(1), _head(2)
    monkeypatch.setattr("florilege.training.frozen.blend.partner", lambda *_: (other, 0.1))
    best = [
        max(
            (accuracy(head, split), -sharpness) for head, sharpness in candidates(own, other, train)
        )
        for split in (val, train)
    ]
    assert [-sharpness for _, sharpness in best] == [2.0, 1.0]
    weights = tmp_path / "best.safetensors"
    save_file({"head.weight": own.weight, "head.bias": own.bias}, str(weights))
    result = blend(weights, train, val, small_config(tmp_path))
    assert "its logits times 2:" in result


def test_its_partner_learns_the_classes(tmp_path: Path) -> None:
    train, val = classes_of(400, seed=2), classes_of(300, seed=3)
    config = small_config(tmp_path, epochs=8, batch_size=16)
    best = accuracy(discriminant(classes_of(5000, seed=4), 4, 0.1), val)
    result, _ = partner(train, val, 4, config)
    assert accuracy(result, val) > best - 0.05
    again, _ = partner(train, val, 4, config)
    assert torch.equal(result.weight, again.weight)
    assert torch.equal(result.bias, again.bias)


@pytest.mark.parametrize(
    ("blend", "head", "words"),
    [
        (True, "auto", "is averaged with one trained by assume_negative"),
        (False, "auto", "that of cross_entropy alone; --set blend=true averages"),
        (True, "cosine", "a cosine head is not blended"),
    ],
)
def test_the_run_and_its_bundle_describe_the_head(
    blend: bool, head: str, words: str, tmp_path: Path
) -> None:
    photos = write_photos(tmp_path / "photos", train=14, val=8)
    train_quietly(small_config(photos, epochs=0), tmp_path / "start")
    config = small_config(
        photos,
        weights=str(tmp_path / "start"),
        freeze="backbone",
        blend=blend,
        head=head,
        loss={"name": "cross_entropy"},
        optimiser={"learning_rate": 1e-6},
    )
    lines = lines_of(config, tmp_path / "run")
    (result,) = [line for line in lines if words in line]
    bundle = export_run(tmp_path / "run", tmp_path / "bundle")
    assert json.loads(bundle.read("provenance.json"))["head"] == result
    assert result in bundle.read("MODEL_CARD.md").decode()

"""The linear discriminant of stored features agrees with its densities."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from florilege.training.frozen import feature_store
from florilege.training.frozen.discriminant import discriminant
from florilege.training.frozen.feature_store import Features
from tests.training.frozen.small import classes_of, features_of


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

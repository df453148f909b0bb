"""The folder of a network's features, and their spread."""

import numpy as np
import pytest
import torch

from florilege.data.records import Split
from florilege.models.backbones import build
from florilege.models.images import Preprocess
from florilege.training import batches
from florilege.training.batches import Features
from florilege.training.frozen import _folder_name
from tests.training.frozen.feature_examples import classes_of, features_of


def test_other_weights_another_input_name_or_runtime_have_another_folder() -> None:
    torch.manual_seed(0)
    first, size = build("tiny", 3, "linear").backbone, Preprocess(image_size=16)
    second = build("tiny", 3, "linear").backbone
    names = {
        _folder_name("tiny", first, size),
        _folder_name("tiny", second, size),
        _folder_name("tiny", first, Preprocess(image_size=16, crop_fraction=0.9)),
        _folder_name("timm:hf-hub:a/b", first, size),
        *(_folder_name("tiny", first, size, computed_by=name) for name in ("openvino", "gpu")),
    }
    assert len(names) == 6
    assert all("/" not in name and ":" not in name for name in names)
    assert _folder_name("tiny", first, size) in names


def test_another_decoder_has_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    network, size = build("tiny", 3, "linear").backbone, Preprocess(image_size=16)
    name = _folder_name("tiny", network, size)
    monkeypatch.setattr("florilege.training.frozen.DECODER_VERSION", 1)
    assert _folder_name("tiny", network, size) != name


def test_the_spread_of_features_is_that_of_their_rows_in_blocks_of_any_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).normal(50, 3, (11, 4)).astype(np.float32)
    values[:, 2] = 7.0
    rows = np.array([3, 1, 1, 10, 0, 7, 9])
    split = Split(name="train", labels=rows, names=[""] * 7, observations=None, read=lambda _: b"")
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", 3)
    mean, deviation = Features(split, values, rows).spread()
    expected = values[rows].astype(np.float64)
    np.testing.assert_allclose(mean, expected.mean(0), rtol=1e-6)
    np.testing.assert_allclose(
        deviation, [*expected.std(0)[:2], 1.0, expected.std(0)[3]], rtol=1e-5
    )


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e5])
def test_features_that_never_vary_are_not_scaled(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels fixed at 128, as in photos on a grey background."""
    monkeypatch.setattr(batches, "ROWS_AT_ONCE", 7)
    varying, rows = classes_of(200, seed=1), 200
    values = np.concatenate([varying.values, np.full((rows, 6), 128.1)], axis=1) * scale
    _, deviation = features_of(values, varying.split.labels).spread()
    assert (deviation[6:] == 1).all()
    assert (deviation[:6] < 10 * scale).all()

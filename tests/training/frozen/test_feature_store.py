"""Stored features: looked up by the bytes of a photo, intact after any interruption."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from florilege.data.dataset import Split
from florilege.errors import BundleError
from florilege.models.backbones import build
from florilege.models.images import Preprocess
from florilege.training.frozen import feature_store
from florilege.training.frozen.feature_store import Features, FeatureStore, folder_name, photo_id

IDS = [photo_id(bytes([number])) for number in range(5)]
ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)


def _store(folder: Path, rows: int = 3) -> FeatureStore:
    store = FeatureStore(folder, 3)
    store.add(IDS[:rows], ROWS[:rows])
    return store


def test_what_is_added_is_found_by_another_run(tmp_path: Path) -> None:
    _store(tmp_path)
    again = FeatureStore(tmp_path, 3)
    again.add(IDS[3:], ROWS[3:])
    result = FeatureStore(tmp_path, 3)
    assert [result.row_of[photo] for photo in IDS] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(result.values(), ROWS)


@pytest.mark.parametrize(("file", "left"), [("features.f32", 25), ("photos.id", 33)])
def test_a_row_cut_short_does_not_count_and_is_written_over(
    tmp_path: Path, file: str, left: int
) -> None:
    _store(tmp_path)
    os.truncate(tmp_path / file, left)  # in the third row
    cut = FeatureStore(tmp_path, 3)
    assert list(cut.row_of) == IDS[:2]
    cut.add(IDS[3:], ROWS[3:])
    np.testing.assert_array_equal(FeatureStore(tmp_path, 3).values(), ROWS[[0, 1, 3, 4]])


def test_an_id_left_by_an_interruption_never_gets_the_features_of_another_photo(
    tmp_path: Path,
) -> None:
    _store(tmp_path)
    os.truncate(tmp_path / "features.f32", 12)  # one of three rows
    FeatureStore(tmp_path, 3).add(IDS[3:4], ROWS[3:4])
    with (tmp_path / "features.f32").open("ab") as file:  # and interrupted before its id
        file.write(ROWS[4].tobytes())
    assert list(FeatureStore(tmp_path, 3).row_of) == [IDS[0], IDS[3]]


def test_a_full_disk_says_what_to_do_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining = _store(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feature_store, "_write_at", full)
    with pytest.raises(BundleError, match=r"No space left.*3 photos.*--features"):
        remaining.add(IDS[3:], ROWS[3:])
    np.testing.assert_array_equal(FeatureStore(tmp_path, 3).values(), ROWS[:3])


def test_other_weights_another_input_name_or_runtime_have_another_folder() -> None:
    torch.manual_seed(0)
    first, size = build("tiny", 3, "linear").backbone, Preprocess(image_size=16)
    second = build("tiny", 3, "linear").backbone
    names = {
        folder_name("tiny", first, size),
        folder_name("tiny", second, size),
        folder_name("tiny", first, Preprocess(image_size=16, crop_fraction=0.9)),
        folder_name("timm:hf-hub:a/b", first, size),
        *(folder_name("tiny", first, size, computed_by=name) for name in ("openvino", "gpu")),
    }
    assert len(names) == 6
    assert all("/" not in name and ":" not in name for name in names)
    assert folder_name("tiny", first, size) in names


def test_another_decoder_has_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    network, size = build("tiny", 3, "linear").backbone, Preprocess(image_size=16)
    name = folder_name("tiny", network, size)
    monkeypatch.setattr("florilege.training.frozen.feature_store.DECODER_VERSION", 1)
    assert folder_name("tiny", network, size) != name


def test_the_spread_of_features_is_that_of_their_rows_in_blocks_of_any_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).normal(50, 3, (11, 4)).astype(np.float32)
    values[:, 2] = 7.0
    rows = np.array([3, 1, 1, 10, 0, 7, 9])
    split = Split(name="train", labels=rows, names=[""] * 7, observations=None, read=lambda _: b"")
    monkeypatch.setattr(feature_store, "ROWS_AT_ONCE", 3)
    mean, deviation = Features(split, values, rows).spread()
    expected = values[rows].astype(np.float64)
    np.testing.assert_allclose(mean, expected.mean(0), rtol=1e-6)
    np.testing.assert_allclose(
        deviation, [*expected.std(0)[:2], 1.0, expected.std(0)[3]], rtol=1e-5
    )

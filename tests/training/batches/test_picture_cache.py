"""Decoded pictures on disk: the same batches in every run, whatever happens to the folder."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from florilege.errors import UsageError
from florilege.training.batches.data_loader import Batch, BatchLoader
from florilege.training.batches.decoded_pictures import Pictures
from florilege.training.batches.picture_cache import TAG, PictureCache
from florilege.training.config import TrainConfig
from tests.training.small import small_config, sources_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def _images(config: TrainConfig, epoch: int = 0) -> list[np.ndarray]:
    batches: list[Batch] = list(BatchLoader(sources_of(config), config).training(epoch))
    return [batch.images.numpy() for batch in batches]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.npy"))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_from_the_cache_are_those_that_are_decoded(
    photos: Path, tmp_path: Path, workers: int
) -> None:
    config = small_config(photos, cache_mb=0, workers=workers, picture_cache=str(tmp_path / "c"))
    for epoch in (0, 1):
        np.testing.assert_equal(_images(config, epoch), _images(small_config(photos), epoch))
    assert len(_files(tmp_path / "c")) == 36


def test_another_run_reads_no_photo_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(photos, cache_mb=0, workers=0, picture_cache=str(tmp_path))
    expected = _images(config)
    sources = sources_of(config.model_copy(update={"seed": 1}))
    assert isinstance(sources.training, Pictures)

    def refuse(data: bytes) -> None:
        raise AssertionError("decoded again")

    again = replace(sources, training=replace(sources.training, decoder=refuse))
    batches = BatchLoader(again, config).training(0)
    np.testing.assert_equal([batch.images.numpy() for batch in batches], expected)
    larger = small_config(photos, cache_mb=0, workers=0, picture_cache=str(tmp_path), image_size=24)
    np.testing.assert_equal(_images(larger), _images(small_config(photos, image_size=24)))


def test_a_changed_photo_is_decoded_and_a_cut_off_file_replaced(
    photos: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(photos, tmp_path / "photos"))
    config = small_config(own, cache_mb=0, workers=0, picture_cache=str(tmp_path / "c"))
    _images(config)
    for number, file in enumerate(_files(tmp_path / "c")):
        whole = file.read_bytes()
        file.write_bytes(whole[: (0, 20, len(whole) - 1)[number % 3]])
    np.testing.assert_equal(_images(config), _images(small_config(own)))
    assert all(np.load(file).ndim == 3 for file in _files(tmp_path / "c"))
    one, other = sorted(own.rglob("train/*/*"))[:2]
    shutil.copyfile(other, one)
    np.testing.assert_equal(_images(config), _images(small_config(own)))


def test_nothing_is_written_where_the_disk_is_nearly_full(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PictureCache, "has_room", False)
    config = small_config(photos, cache_mb=0, workers=0, picture_cache=str(tmp_path))
    np.testing.assert_equal(_images(config), _images(small_config(photos)))
    assert not _files(tmp_path)


def test_a_disk_that_fills_up_ends_no_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    config = small_config(photos, cache_mb=0, workers=0, picture_cache=str(tmp_path))
    np.testing.assert_equal(_images(config), _images(small_config(photos)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != TAG]


def test_a_folder_of_other_files_and_one_that_cannot_be_written_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(UsageError, match="folder"):
        PictureCache(tmp_path, 16)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]
    with pytest.raises(UsageError, match="folder"):
        PictureCache(tmp_path / "photo.jpg", 16)

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from florilege.cores import cores
from florilege.models.images import Preprocess, load
from florilege.training.batches import (
    Batch,
    BatchLoader,
    _split_batches,
    _uniforms,
)
from florilege.training.batches.run_photos import PictureDataset
from florilege.training.config import TrainConfig
from tests.training.small import small_config, sources_of, write_photos

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning"
)  # few cores


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), train=7, val=3)


def _epoch(config: TrainConfig, *, epoch: int = 0, first: int = 0) -> list[Batch]:
    return list(BatchLoader(sources_of(config), config).training(epoch, first))


def _same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.images, b.images) and torch.equal(a.rows, b.rows)
        for a, b in zip(one, other, strict=True)
    )


def test_an_epoch_visits_every_row_once_with_its_label(photos: Path) -> None:
    batches = _epoch(small_config(photos))
    rows = torch.cat([batch.rows for batch in batches])
    labels = torch.cat([batch.labels for batch in batches])
    assert sorted(rows.tolist()) == list(range(21))
    following = torch.cat([batch.rows for batch in _epoch(small_config(photos), epoch=1)])
    assert sorted(following.tolist()) == list(range(21))
    assert not torch.equal(rows, following)
    assert torch.equal(labels, rows.div(7, rounding_mode="floor"))
    assert [len(batch.rows) for batch in batches] == [8, 8, 5]
    assert all(batch.images.shape[1:] == (16, 16, 3) for batch in batches)
    assert all(batch.images.dtype == torch.uint8 for batch in batches)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 2},
        {"workers": 1, "cache_mb": 0},
        {"workers": 0, "cache_mb": 0},
        {"workers": 5, "cache_mb": 0},  # more than batches
    ],
)
def test_batches_do_not_depend_on_workers_or_memory(photos: Path, changes: dict[str, Any]) -> None:
    assert _same(_epoch(small_config(photos)), _epoch(small_config(photos, **changes)))


@pytest.mark.parametrize("workers", [0, 2])
def test_one_loader_prepares_every_epoch_and_val_with_the_same_workers(
    photos: Path, workers: int
) -> None:
    config = small_config(photos, workers=workers, cache_mb=0)
    before = set(multiprocessing.active_children())
    loader, started = BatchLoader(sources_of(config), config), list[set[int | None]]()
    for epoch, first in ((0, 0), (1, 0), (0, 2), (1, 1)):
        stream = loader.training(epoch, first)
        assert _same(list(stream), _epoch(small_config(photos), epoch=epoch)[first:])
        assert torch.cat([batch.rows for batch in loader.validation()]).tolist() == list(range(9))
        started.append({each.pid for each in set(multiprocessing.active_children()) - before})
    assert all(len(each) == workers and each == started[0] for each in started)
    next(loader.training(2))  # after a stop mid-epoch the next starts at its beginning
    assert _same(list(loader.training(3)), _epoch(small_config(photos), epoch=3))


def test_another_epoch_shows_the_same_picture_otherwise(photos: Path) -> None:
    config = small_config(photos)
    views = []
    for epoch in (0, 1):
        for batch in _epoch(config, epoch=epoch):
            views += [view for view, row in zip(batch.images, batch.rows, strict=True) if row == 4]
    assert len(views) == 2
    assert not torch.equal(views[0], views[1])


def test_preparing_batches_leaves_the_random_state_alone(photos: Path) -> None:
    # networks with dropout draw from it: preparing pictures must not change their numbers
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for changes in ({}, {"workers": 1, "cache_mb": 0}):
        _epoch(small_config(photos, **changes))
        assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_goes_through_all_rows_in_order_as_the_server_sees_them(photos: Path) -> None:
    config = small_config(photos, batch_size=4, crop_fraction=0.8, resample="bicubic")
    sources = sources_of(config)
    split = sources.validation.split
    preprocess = Preprocess(image_size=16, crop_fraction=0.8, resample="bicubic")
    batches = list(BatchLoader(sources, config).validation())
    assert [len(batch.rows) for batch in batches] == [8, 1]  # twice those of training
    assert torch.cat([batch.rows for batch in batches]).tolist() == list(range(9))
    for batch in batches:
        for view, row in zip(batch.images, batch.rows.tolist(), strict=True):
            np.testing.assert_array_equal(view.numpy(), load(split.read(row), preprocess))


@pytest.mark.parametrize(
    ("cache_mb", "training", "validation"),
    [(0, False, False), (2, False, False), (3, False, True), (15, False, True), (17, True, True)],
)
def test_what_fits_is_kept_and_what_does_not_is_read_again(
    photos: Path, cache_mb: int, training: bool, validation: bool
) -> None:
    # 9 of 300 x 300 take 2.3 MB; 21 of 425 x 567, as large as they may get, 14.5 MB more
    sources = sources_of(small_config(photos, image_size=300, cache_mb=cache_mb))
    assert isinstance(sources.training, PictureDataset)
    assert isinstance(sources.validation, PictureDataset)
    assert (sources.training.in_memory is not None) == training
    assert (sources.validation.in_memory is not None) == validation


@pytest.mark.parametrize(("cache_mb", "workers"), [(1024, 0), (0, max(1, cores() - 1))])
def test_pictures_in_memory_need_no_workers_and_others_all_cores_but_one(
    photos: Path, cache_mb: int, workers: int
) -> None:
    assert sources_of(small_config(photos, workers=None, cache_mb=cache_mb)).workers == workers
    assert sources_of(small_config(photos, workers=3, cache_mb=cache_mb)).workers == 3


@pytest.mark.parametrize(
    ("rows", "sizes"), [(8, [4, 4]), (10, [4, 4, 2]), (9, [4, 5]), (3, [3]), (1, [1]), (5, [5])]
)
def test_a_last_single_row_joins_the_batch_before(rows: int, sizes: list[int]) -> None:
    batches = _split_batches(np.arange(rows), 4, fewest=2)
    assert [len(batch) for batch in batches] == sizes
    np.testing.assert_array_equal(np.concatenate(batches), np.arange(rows))


def test_a_row_draws_the_same_numbers_in_any_company() -> None:
    alone = _uniforms(1, 2, np.array([7]), 5)
    among = _uniforms(1, 2, np.array([3, 7, 9]), 5)
    np.testing.assert_array_equal(alone[0], among[1])


@pytest.mark.parametrize("other", [(2, 2, 7), (1, 3, 7), (1, 2, 8), (2, 1, 7)])
def test_seed_epoch_and_row_each_change_the_numbers(other: tuple[int, int, int]) -> None:
    seed, epoch, row = other
    same = _uniforms(1, 2, np.array([7]), 8) == _uniforms(seed, epoch, np.array([row]), 8)
    assert not same.any()


def test_the_numbers_are_uniform_and_independent_of_each_other() -> None:
    result = _uniforms(0, 0, np.arange(20_000), 6)
    assert result.min() >= 0
    assert result.max() < 1
    for column in result.T:
        counts = np.histogram(column, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-square, 19 degrees of freedom
    correlations = np.asarray(np.corrcoef(result.T))[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 0.035
    neighbours = np.asarray(np.corrcoef(result[:-1, 0], result[1:, 0]))
    assert abs(neighbours[0, 1]) < 0.035


def test_the_first_numbers_never_change() -> None:
    # a run resumed with a later version must draw what the earlier one did
    result = _uniforms(0, 0, np.array([0, 1]), 2)
    np.testing.assert_array_equal(result, FIRST)


FIRST = [[0.049920065672091285, 0.6703283700586791], [0.9614260094755819, 0.6915822581101866]]

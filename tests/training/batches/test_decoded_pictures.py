import io
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from florilege.data.records import _LOOKED_AT, Split
from florilege.errors import DataError, UsageError
from florilege.training.batches import (
    Batch,
    BatchLoader,
    _decode_for_training,
    _keep_all,
    _training_side,
)
from florilege.training.batches.augmentation import DRAWS, augment
from florilege.training.batches.run_photos import (
    _SHOWN,
    TAG,
    PictureCache,
    PictureDataset,
    UnreadablePictures,
)
from florilege.training.config import AugmentConfig, TrainConfig
from tests.training.small import small_config, sources_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
DECODER = partial(_decode_for_training, side=8)


def _png(width: int, height: int, seed: int = 0) -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def _shape(data: bytes) -> tuple[int, ...]:
    return np.array(_decode_for_training(data, side=30)).shape


class Reader:
    """Pictures from memory; a missing row cannot be read."""

    def __init__(self, content: dict[int, bytes]) -> None:
        self.content = content

    def __call__(self, row: int) -> bytes:
        if row not in self.content:
            raise FileNotFoundError(2, "No such file or directory")
        return self.content[row]


def _split(content: dict[int, bytes], rows: int) -> Split:
    return Split(
        name="train",
        labels=np.zeros(rows, dtype=np.int64),
        names=[f"photo{row}.png" for row in range(rows)],
        observations=None,
        read=Reader(content),
    )


@pytest.mark.parametrize(
    ("width", "height", "shape"),
    [
        (80, 60, (30, 40, 3)),  # by two
        (80, 59, (59, 80, 3)),  # by two it would be below 30
        (60, 80, (40, 30, 3)),
        (20, 25, (25, 20, 3)),  # never enlarged
        (300, 60, (30, 60, 3)),  # a long side is cut to twice the short one
        (60, 300, (60, 30, 3)),
        (100, 10, (10, 20, 3)),
    ],
)
def test_training_pictures_are_shrunk_by_whole_factors_and_never_below_the_side(
    width: int, height: int, shape: tuple[int, ...]
) -> None:
    assert _shape(_png(width, height)) == shape


def test_a_training_picture_is_resized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resize, sizes = Image.Image.resize, []

    def counted(image: Image.Image, size: tuple[int, int], *args: Any, **options: Any) -> Any:
        sizes.append(size)
        return resize(image, size, *args, **options)

    monkeypatch.setattr(Image.Image, "resize", counted)
    picture = _decode_for_training(_png(500, 375), side=336)
    augment(picture, 224, AugmentConfig(), [0.5] * DRAWS)
    assert sizes == [(224, 224)]


@pytest.mark.parametrize(("width", "height"), [(500, 375), (60, 300), (100, 30)])
def test_a_kept_picture_gives_the_same_view_to_the_last_bit(width: int, height: int) -> None:
    data, draws = _png(width, height), np.random.default_rng(1).random(DRAWS).tolist()
    read = augment(_decode_for_training(data, side=60), 40, AugmentConfig(), draws)
    lazy = PictureDataset(_split({0: data}, 1), partial(_decode_for_training, side=60))
    remaining = augment(_keep_all(lazy, workers=0)[0], 40, AugmentConfig(), draws)
    np.testing.assert_array_equal(read, remaining)


def test_a_small_training_picture_is_untouched_and_a_long_one_is_cut_in_the_middle() -> None:
    whole = np.array(Image.open(io.BytesIO(_png(50, 10))))
    picture = np.array(_decode_for_training(_png(50, 10), side=30))
    np.testing.assert_array_equal(picture, whole[:, 15:35])


def test_the_short_side_is_the_median_of_a_few_pictures() -> None:
    content = {row: _png(30 + row, 20 + row) for row in range(100)}
    assert _split(content, 100).short_side() == 20 + 48  # of rows 0, 12, ... 96
    for rows in (_LOOKED_AT, _LOOKED_AT + 1):  # all, and every other one
        record = sorted(20 + row for row in range(0, rows, 1 if rows <= _LOOKED_AT else 2))
        assert _split(content, rows).short_side() == np.median(record)
    assert _split({0: _png(9, 30), 1: b"no picture"}, 3).short_side() == 9
    assert _split({}, 3).short_side() is None


@pytest.mark.parametrize(
    ("image_size", "min_area", "side"), [(48, 1.0, 48), (224, 0.765625, 256), (64, 0.05, 96)]
)
def test_the_kept_side_gives_the_smallest_crop_its_own_pixels_within_reason(
    image_size: int, min_area: float, side: int
) -> None:
    assert _training_side(image_size, min_area) == side


@pytest.mark.parametrize(("workers", "chunk"), [(0, 1), (0, 4), (0, 64), (2, 1), (2, 2), (2, 3)])
def test_keeping_all_gives_the_same_pictures_in_order(
    workers: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.training.batches.run_photos.CHUNK", chunk)
    content = {row: _png(8 + row % 3, 8, seed=row) for row in range(9)}
    lazy = PictureDataset(_split(content, 9), DECODER)
    remaining = _keep_all(lazy, workers=workers)
    assert remaining.in_memory is not None
    assert [type(picture) for picture in remaining.in_memory] == [np.ndarray] * 9
    for row in range(9):
        np.testing.assert_array_equal(remaining[row], lazy[row])


def test_every_unreadable_picture_is_named_with_its_reason() -> None:
    content = {0: _png(8, 8), 1: b"text", 3: _png(8, 8)[:60]}
    pictures = PictureDataset(_split(content, 4), DECODER)
    with pytest.raises(DataError) as caught:
        _keep_all(pictures, workers=0)
    message = str(caught.value)
    assert message.startswith("3 pictures of train cannot be read")
    assert "photo2.png: No such file or directory" in message
    for name in ("photo1.png: ", "photo3.png: "):
        assert name in message
    assert "photo0.png" not in message


def test_a_single_unreadable_picture_is_named_on_demand() -> None:
    assert PictureDataset(_split({}, 2), DECODER)[1] == "photo1.png: No such file or directory"


@pytest.mark.parametrize("more", [-1, 0, 1, 3])
def test_of_many_unreadable_pictures_some_are_shown_and_the_rest_counted(more: int) -> None:
    lines = str(UnreadablePictures.of([f"p{n}" for n in range(_SHOWN + more)], "val")).splitlines()[
        1:
    ]
    result = [f"  p{n}" for n in range(_SHOWN + min(more, 0))]
    assert lines == result + ([f"  and {more} more"] if more > 0 else [])


def test_exif_orientation_is_applied_to_training_pictures() -> None:
    image = Image.fromarray(np.zeros((10, 16, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    assert _shape(buffer.getvalue()) == (16, 10, 3)


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
    assert isinstance(sources.training, PictureDataset)

    def refuse(data: bytes) -> None:
        raise AssertionError("decoded again")

    reads = list[int]()

    def read(row: int) -> bytes:
        reads.append(row)
        return sources.training.split.read(row)

    split = replace(sources.training.split, read=read)
    training = replace(sources.training, split=split, decoder=refuse)
    loader = BatchLoader(replace(sources, training=training), config)
    for _ in range(2):  # the first time each file is read, since its hash names the picture
        batches = loader.training(0)
        np.testing.assert_equal([batch.images.numpy() for batch in batches], expected)
        assert sorted(reads) == list(range(36))
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

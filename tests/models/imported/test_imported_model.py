from pathlib import Path

import numpy as np
import onnx
import pytest

from florilege.errors import DataError
from florilege.models.images import Preprocess, load
from florilege.models.imported.imported_model import MOST_PHOTOS, comparison_pictures, import_onnx
from tests.models.imported.graphs import CLASSES, foreign, save, scaled_description
from tests.models.pictures import encode, noise

PREPROCESS = Preprocess(image_size=8, crop_fraction=0.5)


def _photos(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03}.png" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(encode(noise(20, 16, seed=number), "png"))
    return paths


def test_photos_are_decoded_as_the_server_does(tmp_path: Path) -> None:
    paths = _photos(tmp_path / "deep" / "er", 2)
    (tmp_path / "deep" / "notes.txt").write_text("not a photo")
    names, pixels = comparison_pictures([tmp_path / "deep", paths[0]], PREPROCESS)
    assert names == [str(path) for path in (*paths, paths[0])]
    expected = [load(path.read_bytes(), PREPROCESS) for path in (*paths, paths[0])]
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("count", [1, MOST_PHOTOS, MOST_PHOTOS + 7])
def test_of_many_photos_some_spread_over_all_are_taken(tmp_path: Path, count: int) -> None:
    paths = _photos(tmp_path, count)
    result, _ = comparison_pictures([tmp_path], PREPROCESS)
    assert len(result) == len(set(result)) == min(count, MOST_PHOTOS)
    assert result[0] == str(paths[0])
    assert result[-1] == str(paths[-1])


def test_without_photos_the_made_up_pictures_differ_in_everything() -> None:
    for side in (1, 7, 32):
        names, pixels = comparison_pictures([], Preprocess(image_size=side))
        assert pixels.shape == (len(names), side, side, 3)
        assert pixels.dtype == np.uint8
    for picture in pixels[:6]:
        assert not np.array_equal(picture, picture[..., ::-1])  # colours
        assert not np.array_equal(picture, picture.swapaxes(0, 1))  # rows and columns
    assert len(np.unique(pixels, axis=0)) == len(names)


def test_the_files_that_weights_come_from_are_facts(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(foreign(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    for expected in ("from `net.data`", None):
        imported = import_onnx(path, scaled_description(), classes=CLASSES, photos=[])
        assert imported.facts.get("weights") == expected
        save(foreign(), path)


def test_what_is_no_photo_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for path, message in (
        (tmp_path / "empty", "holds no photo"),
        (tmp_path / "broken.png", "broken.png"),
        (tmp_path / "none.png", "cannot be read: No such file"),
    ):
        with pytest.raises(DataError, match=message):
            comparison_pictures([path], PREPROCESS)

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from florilege.errors import BundleError, DataError
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import Preprocess, load
from florilege.models.imported import MOST_PHOTOS, comparison_pictures, import_onnx
from florilege.models.imported.signature import Description
from florilege.models.runtime import Runtime
from florilege.models.session import Session
from tests.models.imported.graphs import (
    CLASSES,
    SIDE,
    foreign,
    random_pictures,
    save,
    scaled_description,
)
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


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_graph_that_overflows_is_named_so(tmp_path: Path, number: float) -> None:
    model = foreign()
    (bias,) = (each for each in model.graph.initializer if each.name == "bias")
    values = np.full(CLASSES, number, np.float32)
    bias.CopyFrom(onnx.numpy_helper.from_array(values, "bias"))
    path = save(model, tmp_path / "net.onnx")
    with pytest.raises(BundleError, match="`y` holds infinite numbers or NaN"):
        import_onnx(path, scaled_description(), classes=CLASSES, photos=[])


def test_the_files_that_weights_come_from_are_facts(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(foreign(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    for expected in ("from `net.data`", None):
        imported = import_onnx(path, scaled_description(), classes=CLASSES, photos=[])
        assert imported.facts.get("weights") == expected
        save(foreign(), path)


@pytest.mark.parametrize(
    "graph",
    [
        {},
        {"ending": "Softmax", "last": "MatMul"},
        {"ending": "hidden"},  # without features
        {"kind": "uint8", "layout": "nhwc"},  # whose first node gives the input a second name
        {"shape": [1, 3, SIDE, SIDE], "last": "Conv"},
    ],
)
def test_openvino_finds_inputs_and_outputs_by_name(tmp_path: Path, graph: dict[str, Any]) -> None:
    """Our nodes rename tensors, and OpenVINO merges the names of equal tensors."""
    path = save(foreign(**graph), tmp_path / "net.onnx")
    described = Description() if graph.get("kind") == "uint8" else scaled_description()
    imported = import_onnx(path, described, classes=CLASSES, photos=[])
    table = ClassTable(tuple(ClassInfo(id=str(number)) for number in range(CLASSES)))
    bundle = imported.write(table, b"", tmp_path / "b")
    expected, ours = Session(bundle), Session(bundle, runtime=Runtime("openvino", "float32"))
    assert ours.widths == expected.widths
    assert ours.widths.keys() == {"logits"} | ({"features"} if ours.dimensions else set())
    pictures, features = random_pictures(1), ours.dimensions is not None
    results, same = (each.outputs(pictures, features=features) for each in (ours, expected))
    np.testing.assert_allclose(results.logits["linear"], same.logits["linear"], 1e-4, 1e-5)
    if features:
        assert results.features is not None
        assert same.features is not None
        np.testing.assert_allclose(results.features, same.features, 1e-4, 1e-5)


@pytest.mark.timeout(10)
def test_what_is_no_photo_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for path, message in (
        (tmp_path / "empty", "holds no photo"),
        (tmp_path / "broken.png", "broken.png"),
        (tmp_path / "none.png", "cannot be read: No such file"),
        (tmp_path / "pipe.png", "cannot be read: not a regular file"),
    ):
        with pytest.raises(DataError, match=message):
            comparison_pictures([path], PREPROCESS)

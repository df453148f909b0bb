import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.errors import UsageError
from florilege.models.imported.graph import read_graph
from florilege.models.imported.input_format import (
    Description,
    InputFormat,
    infer_input_format,
    read_description,
)
from tests.models.imported.graphs import SCALED, foreign, random_pictures, save, scaled_description


def _form(folder: Path, description: Description, **graph: Any) -> InputFormat:
    return infer_input_format(read_graph(save(foreign(**graph), folder / "net.onnx")), description)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        (["n", 3, 6, 6], "nchw"),
        (["n", 6, 6, 3], "nhwc"),
        (["n", 3, "h", "w"], "nchw"),
        (["n", "h", "w", 3], "nhwc"),
        (["n", "c", 6, 6], "nchw"),
    ],
)
def test_the_layout_is_read_from_the_axis_of_the_channels(
    tmp_path: Path, shape: Sequence[int | str], layout: str
) -> None:
    result = _form(tmp_path, scaled_description(size=6), shape=shape, layout=layout)
    assert (result.layout, result.size, result.type) == (layout, 6, "float32")


@pytest.mark.parametrize(
    ("shape", "description", "keys"),
    [
        (["n", 3, 6, 6], {}, "scale, mean, std"),
        (["n", 3, 6, 6], {"scale": 1.0, "std": (1.0, 1.0, 1.0)}, "mean"),
        (["n", 3, "h", "w"], SCALED, "size"),
        (["n", "c", "h", "w"], SCALED, "layout, size"),
        (["n", 3, 3, 3], SCALED, "layout, size"),
    ],
)
def test_what_stays_open_is_asked_for(
    tmp_path: Path, shape: Sequence[int | str], description: dict[str, Any], keys: str
) -> None:
    with pytest.raises(UsageError) as caught:
        _form(tmp_path, Description(**description), shape=shape)
    assert f"does not determine {keys}" in str(caught.value)
    assert all(f'"{key}": ' in str(caught.value) for key in keys.split(", "))


@pytest.mark.parametrize(
    ("graph", "description", "why"),
    [
        ({"shape": ["n", 1, 28, 28]}, {}, "in colour have three channels"),
        ({"shape": ["n", 3, 6, 6]}, {"layout": "nhwc"}, "as nhwc have three channels"),
        ({"shape": ["n", 3, 6, 8]}, {}, "only square pictures"),
        ({"shape": ["n", 3, 6, 6]}, {"size": 8}, "it takes 6 pixels, but the preprocess file says"),
        ({"shape": [3, 6, 6]}, {}, "four axes"),
        ({"kind": "float32"}, {"type": "uint8"}, "it is float32, but the preprocess file says"),
        ({"kind": "uint8"}, {}, "it takes unscaled pixels: leave out scale, mean, std"),
    ],
)
def test_contradictions_are_refused(
    tmp_path: Path, graph: dict[str, Any], description: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        _form(tmp_path, scaled_description(**description), **graph)
    assert why in str(caught.value)
    assert "`x`" in str(caught.value)


def test_a_type_that_no_picture_has_is_refused(tmp_path: Path) -> None:
    model = foreign()
    model.graph.input[0].type.tensor_type.elem_type = 7  # int64
    graph = read_graph(save(model, tmp_path / "net.onnx"))
    with pytest.raises(UsageError, match="one of float32, float16, uint8"):
        infer_input_format(graph, scaled_description())


def test_bytes_need_nothing_said(tmp_path: Path) -> None:
    description = Description(crop=0.5, resize="bicubic")
    result = _form(tmp_path, description, kind="uint8", layout="nhwc")
    pictures = random_pictures(2)
    np.testing.assert_array_equal(result.prepare(pictures), pictures)
    expected = result.preprocess
    assert (expected.image_size, expected.crop_fraction, expected.resample) == (6, 0.5, "bicubic")
    assert (expected.mean, expected.std) == ((0, 0, 0), (1 / 255, 1 / 255, 1 / 255))


def test_the_papers_say_mean_and_std_for_red_first_and_values_up_to_one(tmp_path: Path) -> None:
    description = scaled_description(
        channels="bgr", scale=1.0, mean=(51.0, 102.0, 204.0), std=(255.0, 510.0, 51.0)
    )
    expected = _form(tmp_path, description).preprocess
    assert expected.mean == pytest.approx((0.8, 0.4, 0.2))
    assert expected.std == pytest.approx((0.2, 2.0, 1.0))


def _read(folder: Path, content: Any) -> Description:
    path = folder / "preprocess.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_description(path)


def test_every_key_of_a_file_is_read_and_none_where_no_file_is_named(tmp_path: Path) -> None:
    content = {
        **{"layout": "nhwc", "type": "float32", "channels": "bgr", "size": 192},
        **{"resize": "bicubic", "crop": 0.875, "scale": 1, "mean": [104, 117, 123]},
        **{"std": [1, 1, 1.5], "output": "prob", "kind": "probabilities"},
    }
    result = _read(tmp_path, content)
    assert result.model_dump(mode="json") == content
    result = read_description(None)
    assert result == Description()
    assert (result.channels, result.resize, result.crop) == ("rgb", "bilinear", 1.0)
    with pytest.raises(UsageError, match="No such file"):
        read_description(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"sizes": 2}, "unknown key 'sizes'; keys are layout, type, channels, size"),
        ({"resize": 256}, "got 256; use crop for a resize before the crop: 224 of 256 pixels"),
        ({"mean": [1, 2]}, "mean"),
        ({"std": [1, 0, 1]}, "std.1: input should be greater than 0, got 0"),
        ({"crop": 1.5}, "crop: input should be less than or equal to 1"),
        ({"size": 0}, "size"),
        ("[]", "input should be an object"),
        ("{", "JSON"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, content)
    assert message in str(caught.value)
    assert str(tmp_path / "preprocess.json") in str(caught.value)

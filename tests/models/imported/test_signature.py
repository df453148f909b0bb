import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from florilege.errors import UsageError
from florilege.models.imported.graph import Graph
from florilege.models.imported.signature import Description, InputFormat, OutputChoice
from florilege.models.imported.wrapper import original_outputs
from tests.models.imported.graphs import (
    CLASSES,
    SCALED,
    foreign,
    random_pictures,
    save,
    scaled_description,
)


def _form(folder: Path, description: Description, **graph: Any) -> InputFormat:
    return InputFormat.of(Graph.read(save(foreign(**graph), folder / "net.onnx")), description)


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
    graph = Graph.read(save(model, tmp_path / "net.onnx"))
    with pytest.raises(UsageError, match="one of float32, float16, uint8"):
        InputFormat.of(graph, scaled_description())


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
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, "utf-8-sig")  # editors of Windows begin a file with a mark
    return Description.read(path)


def test_every_key_of_a_file_is_read_and_none_where_no_file_is_named(tmp_path: Path) -> None:
    content = {
        **{"layout": "nhwc", "type": "float32", "channels": "bgr", "size": 192},
        **{"resize": "bicubic", "crop": 0.875, "scale": 1, "mean": [104, 117, 123]},
        **{"std": [1, 1, 1.5], "output": "prob", "kind": "probabilities"},
    }
    result = _read(tmp_path, content)
    assert result.model_dump(mode="json") == content
    result = Description.read(None)
    assert result == Description()
    assert (result.channels, result.resize, result.crop) == ("rgb", "bilinear", 1.0)
    with pytest.raises(UsageError, match="No such file"):
        Description.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"sizes": 2}, "unknown setting sizes; allowed: layout, type, channels, size"),
        ({"resize": 256}, "got 256; use crop for a resize before the crop: 224 of 256 pixels"),
        ({"mean": [1, 2]}, "mean"),
        ({"std": [1, 0, 1]}, "std must be a list of 3 numbers > 0, or null, got 0"),
        ({"crop": 1.5}, "crop must be a number in [0.01, 1], got 1.5"),
        ({"size": 0}, "size"),
        ("[]", "the file must hold settings by name, got []"),
        ("{", "JSON"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, content)
    assert message in str(caught.value)
    assert str(tmp_path / "preprocess.json") in str(caught.value)


def _choose(
    folder: Path, model: onnx.ModelProto, classes: int = CLASSES, **description: Any
) -> OutputChoice:
    graph = Graph.read(save(model, folder / "net.onnx"))
    outputs = original_outputs(
        graph, InputFormat.of(graph, scaled_description()), random_pictures(5)
    )
    return OutputChoice.of(graph, outputs, Description(**description), classes=classes)


def test_logits_are_served_as_they_are(tmp_path: Path) -> None:
    result = _choose(tmp_path, foreign())
    assert result == OutputChoice(output="y", logits="y", link=None, log=False, features="mean")
    assert _choose(tmp_path, foreign(), kind="logits") == result
    assert _choose(tmp_path, foreign(ending="LogSoftmax")).logits == "y"


@pytest.mark.parametrize("ending", ["Softmax", "Sigmoid"])
def test_of_probabilities_the_logits_behind_them_are_served(tmp_path: Path, ending: str) -> None:
    link = ending.lower()
    for kind in (None, "probabilities"):
        result = _choose(tmp_path, foreign(ending=ending), kind=kind)
        assert result == OutputChoice(
            output="y", logits="raw", link=link, log=False, features="mean"
        )


def test_of_probabilities_without_logits_the_logarithm_is_served(tmp_path: Path) -> None:
    result = _choose(tmp_path, foreign(ending="hidden"))
    assert result == OutputChoice(output="y", logits="y", link="softmax", log=True, features=None)


def test_of_logits_and_their_softmax_the_logits_are_served(tmp_path: Path) -> None:
    model = foreign(ending="Softmax", more_outputs=["raw", "mean"])
    assert _choose(tmp_path, model).output == "raw"
    assert _choose(tmp_path, model, output="y").output == "y"


def test_a_single_number_beside_the_logits_is_ignored(tmp_path: Path) -> None:
    model = foreign(more_outputs=["loss"])
    model.graph.node.append(helper.make_node("ReduceMax", ["y"], ["loss"], keepdims=0))
    assert _choose(tmp_path, model).output == "y"


def test_several_outputs_for_the_same_classes_are_asked_about(tmp_path: Path) -> None:
    model = foreign(more_outputs=["twice"])
    model.graph.node.append(helper.make_node("Add", ["y", "y"], ["twice"]))
    with pytest.raises(UsageError, match="choose"):
        _choose(tmp_path, model)
    assert _choose(tmp_path, model, output="twice").logits == "twice"
    with pytest.raises(UsageError, match=r"no output 'z' of numbers; it has `y` \(batch, 3\)"):
        _choose(tmp_path, model, output="z")
    pairs = foreign(ending="Softmax", more_outputs=["raw", "twice", "other"])
    pairs.graph.node.append(helper.make_node("Add", ["raw", "raw"], ["twice"]))
    pairs.graph.node.append(helper.make_node("Softmax", ["twice"], ["other"]))
    with pytest.raises(UsageError, match="twice"):
        _choose(tmp_path, pairs)


def test_the_rows_of_the_class_table_are_counted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has 4 rows.* has `y` \(batch, 3\)$"):
        _choose(tmp_path, foreign(), classes=4)
    with pytest.raises(UsageError, match=r"has 2 rows.* one more, perhaps a background class"):
        _choose(tmp_path, foreign(), classes=2)
    with pytest.raises(UsageError, match=r"has `mean` \(batch, 4\)$"):
        _choose(tmp_path, foreign(more_outputs=["mean"]), classes=5, output="mean")


def test_an_output_that_was_squeezed_is_not_blamed_on_the_class_table(tmp_path: Path) -> None:
    model = foreign(more_outputs=["mixed"])
    model.graph.node.append(helper.make_node("ReduceMean", ["y"], ["mixed"], axes=[0], keepdims=0))
    with pytest.raises(UsageError, match=r"`mixed` has no axis for pictures .* without `squeeze`"):
        _choose(tmp_path, model, output="mixed")


@pytest.mark.parametrize("output", [{}, {"output": "table"}])
def test_a_sequence_of_maps_is_named_with_the_remedy(tmp_path: Path, output: Any) -> None:
    """As scikit-learn's converters write it, with the label beside it."""
    model = foreign(ending="Softmax")
    model.graph.node.extend(
        [
            helper.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0),
            helper.make_node(
                *("ZipMap", ["y"], ["table"]), domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
            ),
        ]
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    number = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    rows = helper.make_sequence_type_proto(
        helper.make_map_type_proto(onnx.TensorProto.INT64, number)
    )
    del model.graph.output[:]
    label = helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["n"])
    model.graph.output.extend([label, helper.make_value_info("table", rows)])
    with pytest.raises(UsageError, match=r"^the output `table` holds a mapping.*zipmap=False"):
        _choose(tmp_path, model, **output)
    with pytest.raises(UsageError, match="no output 'label' of numbers"):
        _choose(tmp_path, model, output="label")


def test_an_output_with_axes_of_length_one_fits(tmp_path: Path) -> None:
    assert _choose(tmp_path, foreign(last="Conv")).features == "square"
    with pytest.raises(UsageError, match="has `maps`"):  # 4 x 2 x 2 numbers
        _choose(tmp_path, foreign(more_outputs=["maps"]), classes=16, output="maps")


@pytest.mark.parametrize(
    ("ending", "kind", "message"),
    [
        ("logits", "probabilities", "they do not sum to one"),
        ("Softmax", "logits", "these are probabilities"),
        ("hidden", "logits", "these are probabilities"),
    ],
)
def test_a_kind_that_the_numbers_contradict_is_refused(
    tmp_path: Path, ending: str, kind: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        _choose(tmp_path, foreign(ending=ending), kind=kind)


def test_numbers_from_0_to_1_that_do_not_sum_to_one_are_asked_about(tmp_path: Path) -> None:
    model = foreign(ending="HardSigmoid")
    with pytest.raises(UsageError, match='"kind": "logits"'):
        _choose(tmp_path, model)
    assert _choose(tmp_path, model, kind="logits").link is None
    with pytest.raises(UsageError, match="they"):
        _choose(tmp_path, model, kind="probabilities")


def test_probabilities_of_few_bits_are_believed(tmp_path: Path) -> None:
    graph = Graph.read(save(foreign(ending="hidden"), tmp_path / "net.onnx"))
    result: dict[str, npt.NDArray[Any]] = {"y": np.array([[0.5, 0.25, 0.15], [0.5, 0.5, 0.2]])}
    with pytest.raises(UsageError, match='"kind": "probabilities"'):
        OutputChoice.of(graph, result, Description(), classes=3)
    assert OutputChoice.of(graph, result, Description(kind="probabilities"), classes=3).log


def test_half_precision_counts_as_numbers_and_whole_numbers_do_not(tmp_path: Path) -> None:
    graph = Graph.read(save(foreign(), tmp_path / "net.onnx"))
    result: dict[str, npt.NDArray[Any]] = {
        "y": np.array([[1.5, 2, 3]], np.float16),
        "best": np.ones((1, 3), np.int64),
    }
    assert OutputChoice.of(graph, result, Description(), classes=3).output == "y"
    with pytest.raises(UsageError, match="numbers"):
        OutputChoice.of(graph, result, Description(output="best"), classes=3)

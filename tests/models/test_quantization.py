from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from florilege.errors import BundleError
from florilege.models.quantization import int8_graph
from florilege.models.session import open_graph

SIDE, CLASSES = 8, 5


def graph(*, convolution: bool = True) -> bytes:
    """Normalisation, two convolutions, a mean over the picture, ``features`` and ``logits``."""
    random = np.random.default_rng(2)
    weights: dict[str, NDArray[Any]] = {
        "mean": np.full(3, 128, np.float32),
        "std": np.full(3, 60, np.float32),
        "first": random.normal(size=(8, 3, 3, 3)).astype(np.float32),
        # channels of very different sizes: one scale for all of them would lose the small ones
        "second": (random.normal(size=(6, 8, 3, 3)) * 10.0 ** -np.arange(6)[:, None, None, None])
        .astype(np.float32),
        "spread": (random.normal(size=(6, CLASSES)) * 10.0 ** np.arange(6)[:, None])
        .astype(np.float32),
        "places": np.array([2, 3], np.int64),
    }  # fmt: skip
    node = helper.make_node
    middle = [node("Conv", ["moved", "first"], ["a"]), node("Relu", ["a"], ["b"]),
              node("Conv", ["b", "second"], ["last"])]  # fmt: skip
    nodes = [
        node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
        node("Sub", ["real", "mean"], ["less"]),
        node("Div", ["less", "std"], ["normal"]),
        node("Transpose", ["normal"], ["moved"], perm=[0, 3, 1, 2]),
        *(middle if convolution else [node("Tile", ["moved", "twice"], ["last"])]),
        node("ReduceMean", ["last", "places"], ["features"], keepdims=0),
        node("MatMul", ["features", "spread"], ["logits"]),
    ]
    weights["twice"] = np.array([1, 2, 1, 1], np.int64)
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in (("logits", CLASSES), ("features", 6))
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph_def = helper.make_graph(nodes, "small", [image], outputs, constants)
    model = helper.make_model(graph_def, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def picture(row: int) -> NDArray[np.uint8]:
    return np.random.default_rng(row).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def quantised() -> bytes:
    return int8_graph(graph(), 20, picture, name="here")


def test_input_and_outputs_are_those_of_the_float_graph(quantised: bytes) -> None:
    described = [
        [[(node.name, node.type, node.shape) for node in nodes]
         for nodes in (run.get_inputs(), run.get_outputs())]
        for run in (open_graph(content, threads=1) for content in (graph(), quantised))
    ]  # fmt: skip
    assert described[0] == described[1]


def test_the_numbers_are_nearly_those_of_the_float_graph(quantised: bytes) -> None:
    images = np.stack([picture(row) for row in range(100, 108)])
    before, after = (
        open_graph(content, threads=1).run(["logits", "features"], {"image": images})
        for content in (graph(), quantised)
    )
    for exact, approximate in zip(before, after, strict=True):
        error = np.abs(approximate - exact).mean(axis=0) / exact.std(axis=0)
        assert (error > 0).all()  # it did calculate otherwise
    # each channel of the features has a scale of its own in the weights, not in what flows
    assert np.abs(after[1] - before[1])[:, 0].mean() < 0.05 * before[1][:, 0].std()


def test_each_channel_of_the_weights_has_its_own_scale_and_the_rest_is_float(
    quantised: bytes,
) -> None:
    nodes = onnx.load_from_string(quantised).graph
    scales = {each.name: numpy_helper.to_array(each) for each in nodes.initializer}
    by_output = {node.output[0]: node for node in nodes.node}
    weighted = [by_output[node.input[1]] for node in nodes.node if node.op_type == "Conv"]
    assert [scales[node.input[1]].shape for node in weighted] == [(8,), (6,)]
    assert [scales[node.input[0]].dtype for node in weighted] == [np.int8, np.int8]
    (last,) = (node for node in nodes.node if node.op_type == "MatMul")
    assert scales[last.input[1]].dtype == np.float32
    # what is normalised, and the features, come from no quantised number
    assert by_output["normal"].op_type == "Div"
    assert by_output["features"].op_type == "ReduceMean"


def test_every_picture_is_seen_and_only_one_at_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    counts = list[int]()

    def output(row: int) -> NDArray[np.uint8]:
        counts.append(row)
        return picture(row)

    int8_graph(graph(), 7, output, name="here")
    assert counts == list(range(7))
    assert capfd.readouterr().out == ""


def test_the_few_largest_numbers_are_cut_off() -> None:
    def scale_with(glare: int) -> float:
        """The scale of what flows from the first convolution, one pixel of many being white."""

        def dark(row: int) -> NDArray[np.uint8]:
            picture_values = np.full((SIDE, SIDE, 3), 128, np.uint8) + picture(row) // 16
            if row == 0:
                picture_values[0, 0] = glare
            return picture_values.astype(np.uint8)

        model = onnx.load_from_string(int8_graph(graph(), 400, dark, name="here"))
        scales = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        (first,) = (n for n in model.graph.node if list(n.input[:1]) == ["moved"])
        return float(scales[first.input[1]])

    assert scale_with(255) < 1.3 * scale_with(140)  # without it 127 / 15 as much


def test_what_cannot_be_quantised_is_refused(quantised: bytes) -> None:
    with pytest.raises(BundleError, match="here calculates with eight bits already"):
        int8_graph(quantised, 2, picture, name="here")
    with pytest.raises(BundleError, match="here has no convolution"):
        int8_graph(graph(convolution=False), 2, picture, name="here")

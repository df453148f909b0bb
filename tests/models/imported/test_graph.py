import hashlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from florilege.errors import BundleError
from florilege.models.imported.graph import Graph
from tests.models.files_in_graphs import SECRET, leaking
from tests.models.imported.graphs import foreign, save


def _graph(folder: Path, model: onnx.ModelProto) -> Graph:
    return Graph.read(save(model, folder / "net.onnx"))


def test_input_and_hash_are_read(tmp_path: Path) -> None:
    result = _graph(tmp_path, foreign(layout="nhwc", kind="uint8"))
    assert (result.input.name, result.type, result.shape) == ("x", "uint8", [None, 6, 6, 3])
    assert result.batch == 1
    content = (tmp_path / "net.onnx").read_bytes()
    assert result.files == {"net.onnx": hashlib.sha256(content).hexdigest()}
    assert _graph(tmp_path, foreign(shape=[4, 3, 6, 6])).batch == 4


def test_constants_that_an_old_file_lists_as_inputs_are_none(tmp_path: Path) -> None:
    result = _graph(tmp_path, foreign(ir=3, opset=9))
    assert [value.name for value in result.model.graph.input] == ["x"]
    assert result.model.ir_version == 4


def test_what_is_not_a_classifier_of_pictures_is_refused(tmp_path: Path) -> None:
    two = foreign()
    two.graph.input.append(helper.make_tensor_value_info("training", onnx.TensorProto.BOOL, []))
    old = foreign(opset=6)
    for model, message in ((two, "takes 2 inputs (x, training)"), (old, "has opset 6")):
        with pytest.raises(BundleError) as caught:
            _graph(tmp_path, model)
        assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"PK\x03\x04" + bytes(50)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(BundleError, match="damaged"):
        Graph.read(tmp_path / "net.onnx")
    with pytest.raises(BundleError, match="read"):
        Graph.read(tmp_path / "none.onnx")


def test_weights_beside_the_file_are_taken_in_and_hashed(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(foreign(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    result = Graph.read(path)
    assert set(result.files) == {"net.onnx", "net.data"}
    (tmp_path / "net.data").unlink()
    assert result.run(np.zeros((2, 3, 6, 6), np.float32))["y"].shape == (2, 3)
    with pytest.raises(BundleError, match="data"):
        Graph.read(path)


def test_weights_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    path = tmp_path / "net" / "net.onnx"
    onnx.save(foreign(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    (path.parent / "net.data").rename(tmp_path / "net.data")
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../net.data"
    save(model, path)
    with pytest.raises(BundleError, match="outside its folder"):
        Graph.read(path)


def test_a_hidden_file_is_no_weight_file(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(foreign(), path, save_as_external_data=True, location=".env", size_threshold=0)
    with pytest.raises(BundleError, match=r"\.env is hidden"):
        Graph.read(path)


@pytest.mark.parametrize("place", ["constant", "branches", "function"])
def test_weights_are_hashed_wherever_the_graph_names_them(tmp_path: Path, place: str) -> None:
    (tmp_path / "w.bin").write_bytes(SECRET)
    assert set(_graph(tmp_path, leaking(place, "w.bin")).files) == {"net.onnx", "w.bin"}
    with pytest.raises(BundleError, match="outside its folder"):
        _graph(tmp_path, leaking(place, "../w.bin"))


def test_weights_where_onnx_does_not_read_them_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(SECRET)
    model = leaking("sparse initializer", "w.bin")
    with pytest.raises(BundleError, match="stored in the file"):
        _graph(tmp_path, model).run(np.zeros((1, 4, 4, 3), np.uint8))


def test_options_for_a_runtime_are_left_out(tmp_path: Path) -> None:
    model = foreign()
    helper.set_model_props(model, {"ort_config": "{}"})
    assert _graph(tmp_path, model).run(np.zeros((1, 3, 6, 6), np.float32))["y"].shape == (1, 3)


def test_an_unknown_operation_is_told_by_the_runtime(tmp_path: Path) -> None:
    model = foreign()
    model.graph.node[3].op_type = "Rele"
    with pytest.raises(BundleError, match="Runtime"):
        _graph(tmp_path, model).run(np.zeros((1, 3, 6, 6), np.float32))


def test_a_softmax_over_another_axis_is_none(tmp_path: Path) -> None:
    model = foreign(ending="Softmax")
    model.graph.node[-1].attribute.append(helper.make_attribute("axis", 0))
    assert _graph(tmp_path, model).logits_behind("y") == ("y", None)


def test_without_a_linear_layer_at_the_end_there_are_no_features(tmp_path: Path) -> None:
    model = foreign(ending="Relu")
    assert _graph(tmp_path, model).features_behind("y") is None
    wide = foreign(last="Conv")
    wide.graph.node[-1].input[1] = "kernel"  # of 3 x 3 pixels
    assert _graph(tmp_path, wide).features_behind("y") is None
    turned = foreign()
    turned.graph.node[-1].attribute.append(helper.make_attribute("transA", 1))
    assert _graph(tmp_path, turned).features_behind("y") is None
    moving = foreign(last="MatMul")
    moving.graph.node[-2].input[1] = "mean"  # a product of two things that depend on the picture
    assert _graph(tmp_path, moving).features_behind("y") is None


def test_a_graph_of_many_layers_takes_no_longer_than_its_length(tmp_path: Path) -> None:
    model = foreign(last="MatMul")
    nodes = list(model.graph.node)
    names = ["active", *(f"layer {number}" for number in range(3000))]
    layers = [
        helper.make_node("Add", [before, before], [after]) for before, after in pairwise(names)
    ]
    nodes[4].input[0] = names[-1]
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:4], *layers, *nodes[4:]])
    assert _graph(tmp_path, model).features_behind("y") == "mean"

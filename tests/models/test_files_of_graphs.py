"""A graph cannot name a file of the machine that opens it, wherever it hides the name."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from florilege.errors import BundleError
from florilege.models import runtime
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.runtime import (
    Runtime,
    open_graph,
    open_in_openvino,
    refuse_files,
    weight_files,
)
from florilege.models.session import Session
from florilege.plugins.devices.device_bundle import _halve_weights
from tests.models.bundles import make_bundle, network
from tests.models.files_in_graphs import PLACES, SECRET, leaking, outside

NUMBERS = [float(byte) for byte in SECRET]  # the logits that would leak
CLASSES = ClassTable(tuple(ClassInfo(id=str(number)) for number in range(len(SECRET))))


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the working folder, which is where ONNX Runtime looks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_bytes(SECRET)
    return tmp_path / ".env"


@pytest.mark.parametrize("place", PLACES)
def test_no_place_for_a_tensor_leads_to_a_file(secret: Path, place: str) -> None:
    content = leaking(place, ".env").SerializeToString()
    picture = {"image": np.zeros((1, 4, 4, 3), np.uint8)}
    leak = onnxruntime.InferenceSession(content).run(["logits"], picture)[0]
    assert leak.tolist() == [NUMBERS]  # so ONNX Runtime itself is no protection
    assert set(weight_files(content)) == {".env"}
    bundle = make_bundle(secret.parent / "b", content, classes=CLASSES)
    for name in ("onnxruntime", "openvino"):
        with pytest.raises(BundleError, match=r"b/model.onnx .* stored in .*'\.env'"):
            Session(bundle, device="cpu", runtime=Runtime(name, "float32"))
    with pytest.raises(BundleError, match=r"\.env"):
        _halve_weights(content)


@pytest.mark.parametrize("place", PLACES)
def test_onnx_runtime_looks_for_weights_where_none_can_be(
    secret: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "refuse_files", lambda content: None)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        open_graph(leaking(place, ".env").SerializeToString(), quiet=True)


def test_openvino_would_read_any_file(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = leaking("initializer", str(secret)).SerializeToString()
    with pytest.raises(BundleError, match=r"\.env"):
        open_in_openvino(content, 4, bf16=False)
    monkeypatch.setattr("florilege.models.runtime.refuse_files", lambda content: None)
    graph = open_in_openvino(content, 4, bf16=False)
    leak = graph.run(["logits"], {"image": np.zeros((1, 4, 4, 3), np.uint8)})[0]
    assert leak.tolist() == [NUMBERS]


@pytest.mark.parametrize("file", ["../.env", "/etc/hostname", "*/_ORT_MEM_ADDR_/*", ""])
def test_neither_a_path_nor_an_address_is_taken(file: str) -> None:
    with pytest.raises(BundleError, match="stored in the file"):
        open_graph(leaking("initializer", file).SerializeToString())


def test_tensors_of_a_training_and_lists_of_tensors_and_graphs_count_too() -> None:
    training = onnx.load_from_string(network({"logits": 1.0}))
    training.training_info.add().algorithm.initializer.append(outside("a"))
    listed = onnx.load_from_string(network({"logits": 1.0}))
    node = listed.graph.node[0]
    node.attribute.add(name="x", type=onnx.AttributeProto.TENSORS).tensors.append(outside("b"))
    graphs = node.attribute.add(name="y", type=onnx.AttributeProto.GRAPHS).graphs
    graphs.add().initializer.append(outside("c"))
    sparse = node.attribute.add(name="z", type=onnx.AttributeProto.SPARSE_TENSORS).sparse_tensors
    sparse.add().indices.CopyFrom(outside("d"))
    contents = [model.SerializeToString() for model in (training, listed)]
    assert [sorted(weight_files(each)) for each in contents] == [["a"], ["b", "c", "d"]]


def test_every_message_of_onnx_that_can_hold_a_tensor_is_looked_into() -> None:
    """So a version of ONNX with a new place for tensors is noticed."""
    fields, pending = dict[str, dict[int, str]](), [ModelProto.DESCRIPTOR]
    while pending:
        message = pending.pop()
        inner = [field for field in message.fields if field.message_type]
        fields[message.name] = {field.number: field.message_type.name for field in inner}
        pending += [f.message_type for f in inner if f.message_type.name not in fields]
    holders, size = {"TensorProto"}, 0
    while len(holders) > size:
        size = len(holders)
        holders |= {name for name, inner in fields.items() if holders & set(inner.values())}
    expected = {
        name: {number: inner for number, inner in fields[name].items() if inner in holders}
        for name in holders
    }
    assert expected == runtime._HOLDERS
    numbers = TensorProto.DESCRIPTOR.fields_by_name
    own = (runtime._EXTERNAL_DATA, runtime._DATA_LOCATION)
    assert own == tuple(numbers[each].number for each in ("external_data", "data_location"))


# How a tensor may say it ------------------------------------------------------------------------


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 0x80
    return bytes([number << 3 | 2, len(content)]) + content


def _model(tensor: bytes) -> bytes:
    return bytes([1 << 3, 9]) + _field(7, _field(5, tensor))


INSIDE, OUTSIDE = bytes([14 << 3, 0]), bytes([14 << 3, 1])
LONG = bytes([14 << 3, *[0x81] * 4, 0x10])  # an enum is cut to 32 bits, which leaves 1


@pytest.mark.parametrize(
    "tensor",
    [
        OUTSIDE,
        OUTSIDE + INSIDE,
        INSIDE + OUTSIDE,
        LONG,
        _field(13, b""),
        _field(14, b"\x01"),
        bytes([14 << 3, 0x80, 0x02]),  # 256, which no version of ONNX defines
    ],
)
def test_a_tensor_that_says_it_in_any_way_is_refused(tensor: bytes) -> None:
    with pytest.raises(BundleError, match="stored in the file"):
        refuse_files(_model(_field(8, b"w") + tensor))


def test_unknown_fields_of_every_type_are_skipped() -> None:
    unknown = bytes([2 << 3 | 5]) + b"\xff" * 4 + bytes([3 << 3 | 1]) + b"\xff" * 8
    refuse_files(_model(unknown + INSIDE))
    with pytest.raises(BundleError, match="stored in the file"):
        refuse_files(_model(unknown + OUTSIDE))


def test_of_two_locations_the_last_counts_as_for_the_runtimes() -> None:
    tensor = outside("first")
    tensor.external_data.add(key="location", value="last")
    assert list(weight_files(_model(tensor.SerializeToString()))) == ["last"]


def test_a_second_graph_which_parsers_merge_with_the_first_is_looked_into() -> None:
    graph = _field(7, _field(5, OUTSIDE))
    with pytest.raises(BundleError, match="stored in the file"):
        refuse_files(graph + _model(INSIDE))
    refuse_files(_model(INSIDE) + _model(b""))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08",
        _field(7, b"")[:-1] + b"\x05",  # shorter than it says
        bytes([7 << 3, 1]),  # a graph that is a number
        bytes([7 << 3 | 3, 7 << 3 | 4]),  # one that is a group
        b"\x80" * 11,
        b"<?xml version='1.0'?><net/>",
        network({"logits": 1.0})[:-40],
    ],
)
def test_what_is_no_graph_is_refused(content: bytes) -> None:
    with pytest.raises(BundleError, match="not an ONNX graph"):
        refuse_files(content)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for each in (content, _model(content), network({"logits": 1.0}) + content):
        with suppress(BundleError):
            refuse_files(each)


LEAKING = leaking("initializer", ".env").SerializeToString()


@given(st.integers(0, len(LEAKING) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_damage_hides_no_file_that_the_parser_of_onnx_sees(
    at: int, new: bytes, removed: int
) -> None:
    content = LEAKING[:at] + new + LEAKING[at + removed :]
    try:
        tensors = onnx.load_from_string(content).graph.initializer
    except Exception:  # protobuf's classes differ by version
        return
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors):
        with pytest.raises(BundleError):
            refuse_files(content)


# Other ways to a file ----------------------------------------------------------------------------


def test_a_graph_that_a_compiler_stored_elsewhere_cannot_be_opened(secret: Path) -> None:
    model = onnx.load_from_string(network({"logits": 1.0}))
    node = helper.make_node(
        *("EPContext", ["image"], ["y"]), domain="com.microsoft", embed_mode=0, main_context=1
    )
    node.attribute.extend([helper.make_attribute("ep_cache_context", ".env")])
    model.graph.node.append(node)
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    content = model.SerializeToString()
    with pytest.raises(Exception, match="EPContext"):
        open_graph(content, quiet=True)
    with pytest.raises(Exception, match="EPContext"):
        open_in_openvino(content, 4, bf16=False)


def test_a_graph_brings_no_options_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    monkeypatch.chdir(tmp_path)
    model = onnx.load_from_string(network({"logits": 1.0}))
    options = json.dumps({"session_options": {"enable_profiling": 1}})
    helper.set_model_props(model, {"note": "harmless"})
    open_graph(model.SerializeToString())
    helper.set_model_props(model, {"note": "harmless", "ort_config": options})
    with pytest.raises(BundleError, match="ort_config"):
        open_graph(model.SerializeToString())
    assert not list(tmp_path.iterdir())  # without this, a profile


def test_the_compact_format_of_onnx_runtime_is_not_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(network({"logits": 1.0}), options)
    content = (tmp_path / "model.ort").read_bytes()
    with pytest.raises(BundleError, match="not an ONNX graph"):
        open_graph(content)
    monkeypatch.setattr(runtime, "refuse_files", lambda content: None)
    with pytest.raises(Exception, match="protobuf"):
        open_graph(content, quiet=True)


def test_a_tensor_of_a_petabyte_is_an_error_of_the_bundle(tmp_path: Path) -> None:
    weights = onnx.load_from_string(network({"logits": 1.0}))
    weights.graph.initializer[-1].dims[:] = [2**50]
    bundle = make_bundle(tmp_path / "weights", weights.SerializeToString())
    with pytest.raises(BundleError, match="cannot be loaded"):
        Session(bundle, device="cpu")
    filled = onnx.load_from_string(network({"other": 1.0}))
    filled.graph.initializer.append(numpy_helper.from_array(np.array([2**50]), "size"))
    filled.graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["huge"]))
    filled.graph.node.append(helper.make_node("ReduceMax", ["huge"], ["largest"]))
    filled.graph.node.append(helper.make_node("Add", ["other", "largest"], ["logits"]))
    filled.graph.output[0].name = "logits"
    session = Session(make_bundle(tmp_path / "filled", filled.SerializeToString()), device="cpu")
    with pytest.raises(BundleError, match="cannot be run"):
        session.logits(np.zeros((1, 4, 4, 3), np.uint8))


def test_only_the_modules_that_check_open_graphs() -> None:
    package = Path(runtime.__file__).parents[1]
    opening = ("InferenceSession(", "read_model(", "onnx.load(")
    modules = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(each in path.read_text("utf-8") for each in opening)
    }
    own = {"models/export.py"}  # opens what it has just made
    assert modules == {"models/runtime.py"} | own


def test_the_check_needs_no_package_that_a_server_lacks() -> None:
    assert "onnx" not in {each.partition(".")[0] for each in _imports(runtime.__file__)}


def _imports(file: str) -> list[str]:
    lines = Path(file).read_text("utf-8").splitlines()
    return [line.split()[1] for line in lines if line.startswith(("import ", "from "))]

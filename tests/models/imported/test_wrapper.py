from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from florilege.errors import BundleError
from florilege.models.imported import wrapper
from florilege.models.imported.graph import Graph
from florilege.models.imported.signature import Description, InputFormat, OutputChoice
from florilege.models.imported.wrapper import (
    OutputComparison,
    WrappedModel,
    original_outputs,
    wrap_and_compare,
)
from tests.models.imported.graphs import (
    CLASSES,
    foreign,
    oracle,
    random_pictures,
    save,
    scaled_description,
)

PICTURES = random_pictures(6)


def _prove(
    folder: Path, model: onnx.ModelProto, description: Description | None = None
) -> WrappedModel:
    graph = Graph.read(save(model, folder / "net.onnx"))
    description = description or scaled_description()
    input_format = InputFormat.of(graph, description)
    outputs = original_outputs(graph, input_format, PICTURES)
    choice = OutputChoice.of(graph, outputs, description, classes=CLASSES)
    original = outputs[choice.output].reshape(len(PICTURES), -1).astype(np.float64)
    return wrap_and_compare(graph, input_format, choice, PICTURES, original)


def _run(
    wrapped: WrappedModel, pictures: npt.NDArray[np.uint8]
) -> dict[str, npt.NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(wrapped.model.SerializeToString())
    (inputs,) = session.get_inputs()
    assert (inputs.name, inputs.type, inputs.shape[1:]) == ("image", "tensor(uint8)", [6, 6, 3])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {"image": pictures}), strict=True))


def _softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    powers = np.exp(logits.astype(np.float64))
    shares: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("kind", ["float32", "float16", "uint8"])
def test_the_bundle_says_what_the_original_says_of_the_same_pixels(
    tmp_path: Path, kind: str, layout: str, channels: Any
) -> None:
    model = foreign(kind=kind, layout=layout)
    description = (
        Description(channels=channels) if kind == "uint8" else scaled_description(channels=channels)
    )
    wrapped = _prove(tmp_path, model, description)
    expected = oracle(model, PICTURES, kind=kind, layout=layout, channels=channels)
    slack = 2e-2 if kind == "float16" else 1e-5
    result = _run(wrapped, PICTURES)
    np.testing.assert_allclose(result["logits"], expected, atol=slack, rtol=slack)
    np.testing.assert_allclose(wrapped.logits, expected, atol=slack, rtol=slack)
    assert result["features"].shape == (6, 4)
    assert result["logits"].dtype == result["features"].dtype == np.float32
    assert wrapped.batch
    assert wrapped.dimensions == 4
    assert wrapped.comparison.same_best_class == wrapped.comparison.pictures == 6


@pytest.mark.parametrize(
    ("ending", "link"), [("Softmax", _softmax), ("hidden", _softmax), ("Sigmoid", _sigmoid)]
)
def test_the_link_of_the_logits_is_the_original_probability(
    tmp_path: Path, ending: str, link: Callable[[Any], Any]
) -> None:
    model = foreign(ending=ending)
    result = _run(_prove(tmp_path, model), PICTURES)
    np.testing.assert_allclose(link(result["logits"]), oracle(model, PICTURES), atol=1e-6)
    assert set(result) == ({"logits"} if ending == "hidden" else {"logits", "features"})


def test_a_probability_of_zero_has_a_finite_logarithm(tmp_path: Path) -> None:
    model = foreign(ending="hidden")
    model.graph.node[-3].op_type = "Relu"  # instead of Exp
    model.graph.initializer[3].CopyFrom(
        numpy_helper.from_array(np.array([5.0, -50, 1], np.float32), "bias")
    )
    result = _run(_prove(tmp_path, model), PICTURES)["logits"]
    assert np.isfinite(result).all()
    assert (result[:, 1] < -80).all()
    np.testing.assert_allclose(_softmax(result), oracle(model, PICTURES), atol=1e-6)


@pytest.mark.parametrize(("ir", "opset"), [(3, 7), (4, 9), (7, 12), (10, 20)])
def test_old_and_new_files_are_taken(tmp_path: Path, ir: int, opset: int) -> None:
    model = foreign(ir=ir, opset=opset, layout="nhwc", ending="Softmax")
    result = _run(_prove(tmp_path, model), PICTURES)
    np.testing.assert_allclose(
        _softmax(result["logits"]), oracle(model, PICTURES, layout="nhwc"), atol=1e-6
    )


@pytest.mark.parametrize("names", [("image", "features"), ("logits", "image"), ("x", "logits")])
@pytest.mark.parametrize("mean", ["mean", "features"])
def test_names_of_ours_may_be_taken(tmp_path: Path, names: tuple[str, str], mean: str) -> None:
    model = foreign(names=names)
    if mean not in names:
        model.graph.node[5].output[0] = model.graph.node[6].input[0] = mean
    result = _run(_prove(tmp_path, model), PICTURES)
    np.testing.assert_allclose(result["logits"], oracle(model, PICTURES), atol=1e-5)
    assert result["features"].shape == (6, 4)


def test_branches_see_renamed_tensors(tmp_path: Path) -> None:
    model = foreign(names=("image", "y"))
    branches = [
        helper.make_graph(
            [helper.make_node("Add", ["features", "bias"], [f"{word}_sum"])],
            word,
            [],
            [helper.make_tensor_value_info(f"{word}_sum", TensorProto.FLOAT, None)],
        )
        for word in ("yes", "no")
    ]
    node = model.graph.node[-1]
    node.output[0] = "features"
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    model.graph.node.append(
        helper.make_node("If", ["always"], ["y"], then_branch=branches[0], else_branch=branches[1])
    )
    result = _run(_prove(tmp_path, model), PICTURES)
    np.testing.assert_allclose(result["logits"], oracle(model, PICTURES), atol=1e-5)


@pytest.mark.parametrize("flat", [[1, -1], [1, 4], [0, -1]])
@pytest.mark.parametrize("zeros", [None, 0, 1])
def test_a_graph_made_for_one_picture_takes_any_number(
    tmp_path: Path, flat: list[int], zeros: int | None
) -> None:
    if flat[0] == 0 and zeros:
        pytest.skip("a shape with no picture in it")
    model = foreign(shape=[1, 3, 6, 6], flat=flat)
    if zeros is not None:
        model.graph.node[5].attribute.append(helper.make_attribute("allowzero", zeros))
    wrapped = _prove(tmp_path, model)
    assert wrapped.batch
    result = _run(wrapped, PICTURES)["logits"]
    np.testing.assert_allclose(result, oracle(model, PICTURES), atol=1e-5)


def _stuck(batch: int) -> onnx.ModelProto:
    """A graph that forgets the batch between two reshapes."""
    model = foreign(shape=[batch, 3, 6, 6], flat=[4 * batch])
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 4], np.int64), "back"))
    model.graph.node.insert(6, helper.make_node("Tile", ["mean", "once"], ["flat mean"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "once"))
    model.graph.node.insert(7, helper.make_node("Reshape", ["flat mean", "back"], ["rows"]))
    model.graph.node[8].input[0] = "rows"
    return model


def test_a_graph_that_cannot_take_several_pictures_takes_one(tmp_path: Path) -> None:
    model = _stuck(1)
    wrapped = _prove(tmp_path, model)
    assert not wrapped.batch
    assert wrapped.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    result = np.concatenate([_run(wrapped, row[np.newaxis])["logits"] for row in PICTURES])
    np.testing.assert_allclose(result, oracle(model, PICTURES), atol=1e-5)


def test_a_fixed_batch_of_several_pictures_is_freed_or_refused(tmp_path: Path) -> None:
    free = foreign(shape=[4, 3, 6, 6], flat=[4, -1])  # six pictures: one batch and a half
    wrapped = _prove(tmp_path, free)
    single = foreign(flat=[0, -1])
    np.testing.assert_allclose(wrapped.logits, oracle(single, PICTURES), atol=1e-5)
    with pytest.raises(BundleError, match="graph"):
        _prove(tmp_path, _stuck(2))


def test_pictures_that_leak_into_each_other_go_one_at_a_time(tmp_path: Path) -> None:
    model = foreign()
    model.graph.node[-1].output[0] = "own"
    model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "axis"))
    model.graph.node.append(helper.make_node("ReduceSum", ["own", "axis"], ["all"], keepdims=1))
    model.graph.node.append(helper.make_node("Add", ["own", "all"], ["y"]))
    assert not _prove(tmp_path, model).batch


def test_what_is_not_served_is_left_out(tmp_path: Path) -> None:
    model = foreign(ending="Softmax", more_outputs=["maps", "other"])
    model.graph.node.append(helper.make_node("Mul", ["maps", "extra"], ["other"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([2], np.float32), "extra"))
    wrapped = _prove(tmp_path, model).model.graph
    assert "Softmax" not in {node.op_type for node in wrapped.node}
    assert not {"tall", "extra"} & {tensor.name for tensor in wrapped.initializer}
    assert [value.name for value in wrapped.output] == ["logits", "features"]


def test_a_difference_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = wrapper._wrap_graph

    def wrong(graph: Any, input_format: Any, choice: Any, **more: Any) -> onnx.ModelProto:
        return right(
            graph, input_format.model_copy(update={"mean": (0.5, 1.0, 1.6)}), choice, **more
        )

    monkeypatch.setattr(wrapper, "_wrap_graph", wrong)
    with pytest.raises(BundleError, match="nothing"):
        _prove(tmp_path, foreign())


def test_agreement_counts_best_classes_and_allows_near_ties() -> None:
    original = np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.3]])
    same = OutputComparison.of(original, original + 1e-5, relative=1e-4)
    assert same.holds
    assert (same.same_best_class, same.pictures) == (3, 3)
    assert same.max_difference == pytest.approx(1e-5)
    assert same.tolerance == pytest.approx(2e-4)
    near = OutputComparison.of(original, original + np.array([0.0, 1e-4]), relative=1e-4)
    assert near.holds  # the tie goes the other way
    other = OutputComparison.of(original, original[:, ::-1], relative=1e-4)
    assert other.same_best_class == 1
    assert not other.holds
    assert not OutputComparison.of(original, np.full((3, 2), np.nan), relative=1e-4).holds


def test_the_best_class_may_change_between_classes_as_near_as_allowed() -> None:
    allowed = 1e-4 * 1.5  # nearly; the largest number is near 0.5
    for apart, holds in ((0.5, True), (1.5, False)):
        original = np.array([[0.5, 0.5 + apart * allowed]])
        ours = original + 0.55 * apart * allowed * np.array([[1, -1]])
        result = OutputComparison.of(original, ours, relative=1e-4)
        assert result.max_difference < result.tolerance
        assert result.holds == holds


def test_probabilities_whose_sum_is_not_quite_one_agree_with_their_shares(tmp_path: Path) -> None:
    model = foreign(ending="hidden")
    model.graph.node[-1].output[0] = "exact"
    model.graph.initializer.append(numpy_helper.from_array(np.array([1.01], np.float32), "more"))
    model.graph.node.append(helper.make_node("Mul", ["exact", "more"], ["y"]))
    result = _run(_prove(tmp_path, model), PICTURES)["logits"]
    np.testing.assert_allclose(_softmax(result) * 1.01, oracle(model, PICTURES), atol=1e-6)


def test_a_quantised_softmax_is_served_by_the_logits_behind_it(tmp_path: Path) -> None:
    model = foreign(ending="Softmax")
    model.graph.node[-1].output[0] = "exact"
    constants: dict[str, Any] = {
        "step": np.array(1 / 256, np.float32),
        "zero": np.array(0, np.uint8),
    }
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    words = ["step", "zero"]
    model.graph.node.append(helper.make_node("QuantizeLinear", ["exact", *words], ["bytes"]))
    model.graph.node.append(helper.make_node("DequantizeLinear", ["bytes", *words], ["y"]))
    wrapped = _prove(tmp_path, model)
    assert 1e-4 < wrapped.comparison.max_difference <= 1 / 500
    result = _run(wrapped, PICTURES)["logits"]
    np.testing.assert_allclose(_softmax(result), oracle(model, PICTURES), atol=1 / 500)


def test_original_and_batch_are_compared_on_few_pictures_together() -> None:
    assert len(PICTURES) > wrapper.BATCH > 1

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from florilege.errors import UsageError
from florilege.models.imported.graph import read_graph
from florilege.models.imported.input_format import Description, infer_input_format
from florilege.models.imported.output_choice import OutputChoice, choose_output
from florilege.models.imported.parity import original_outputs
from tests.models.imported.graphs import CLASSES, foreign, random_pictures, save, scaled_description


def _choose(
    folder: Path, model: onnx.ModelProto, classes: int = CLASSES, **description: Any
) -> OutputChoice:
    graph = read_graph(save(model, folder / "net.onnx"))
    outputs = original_outputs(
        graph, infer_input_format(graph, scaled_description()), random_pictures(5)
    )
    return choose_output(graph, outputs, Description(**description), classes=classes)


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
    graph = read_graph(save(foreign(ending="hidden"), tmp_path / "net.onnx"))
    result: dict[str, npt.NDArray[Any]] = {"y": np.array([[0.5, 0.25, 0.15], [0.5, 0.5, 0.2]])}
    with pytest.raises(UsageError, match='"kind": "probabilities"'):
        choose_output(graph, result, Description(), classes=3)
    assert choose_output(graph, result, Description(kind="probabilities"), classes=3).log


def test_half_precision_counts_as_numbers_and_whole_numbers_do_not(tmp_path: Path) -> None:
    graph = read_graph(save(foreign(), tmp_path / "net.onnx"))
    result: dict[str, npt.NDArray[Any]] = {
        "y": np.array([[1.5, 2, 3]], np.float16),
        "best": np.ones((1, 3), np.int64),
    }
    assert choose_output(graph, result, Description(), classes=3).output == "y"
    with pytest.raises(UsageError, match="numbers"):
        choose_output(graph, result, Description(output="best"), classes=3)

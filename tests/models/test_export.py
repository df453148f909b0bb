import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from florilege.errors import BundleError
from florilege.models import export
from florilege.models.backbones import Network, build
from florilege.models.export import _compare, _ExportedNetwork, export_onnx
from florilege.models.heads import HEADS, CosineHead
from florilege.models.images import Preprocess

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
PREPROCESS = Preprocess(image_size=24, mean=MEAN, std=STD)


def _network(head: str) -> Network:
    torch.manual_seed(0)
    network = build("tiny", 6, head).eval()
    if isinstance(network.head, CosineHead):
        network.head.scale.fill_(30.0)
    return network


def _pictures(head: str = "linear") -> _ExportedNetwork:
    return _ExportedNetwork(_network(head), MEAN, STD).eval()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return {head: export_onnx(_network(head), PREPROCESS)[0] for head in HEADS}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("batch", [1, 2, 5, 17])
def test_the_exported_graph_gives_features_of_torch_and_logits_that_do_not_depend_on_them(
    files: dict[str, bytes], head: str, batch: int
) -> None:
    network = _network(head)
    pictures = np.random.default_rng(1).integers(0, 256, (batch, 24, 24, 3), dtype=np.uint8)
    normalised = (torch.from_numpy(pictures) / 255.0 - torch.tensor(MEAN)) / torch.tensor(STD)
    with torch.no_grad():
        features = network.backbone(normalised.permute(0, 3, 1, 2))
        outputs = network.head(features)
    session = onnxruntime.InferenceSession(files[head], providers=["CPUExecutionProvider"])
    graph_outputs = session.run(None, {"image": pictures})
    expected = (*(outputs if isinstance(outputs, tuple) else (outputs,)), features)
    assert len(graph_outputs) == len(expected)
    for ours, theirs in zip(expected, graph_outputs, strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-4, rtol=1e-4)
    *names, _ = (output.name for output in session.get_outputs())
    alone = session.run(names, {"image": pictures})
    assert [values.tobytes() for values in alone] == [each.tobytes() for each in graph_outputs[:-1]]


@pytest.mark.parametrize("head", HEADS)
def test_input_and_outputs_have_the_documented_names_and_shapes(
    files: dict[str, bytes], head: str
) -> None:
    session = onnxruntime.InferenceSession(files[head], providers=["CPUExecutionProvider"])
    (image,) = session.get_inputs()
    assert (image.name, image.type, image.shape) == ("image", "tensor(uint8)", ["batch", 24, 24, 3])
    names = ["multi_label_logits", "sccp_logits"] if head == "two_head" else ["logits"]
    *logits, features = session.get_outputs()
    assert [output.name for output in logits] == names
    assert all(output.shape == ["batch", 6] for output in logits)
    assert (features.name, features.shape) == ("features", ["batch", 320])


@pytest.mark.parametrize("head", HEADS)
def test_no_source_path_and_no_note_of_the_exporter_is_left(
    files: dict[str, bytes], head: str
) -> None:
    content = files[head]
    model = onnx.load_from_string(content)
    for weights in model.graph.initializer:
        weights.ClearField("raw_data")  # random bytes may spell anything
    rest = model.SerializeToString()
    assert not re.search(rb"\.py|site-packages|/home|/usr|/tmp|line \d+|pkg\.torch", rest)
    assert str(Path.cwd()).encode() not in content
    assert not model.metadata_props
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)


def test_a_second_export_gives_the_same_bytes_and_the_figures_of_its_comparison(
    files: dict[str, bytes],
) -> None:
    again, figures = export_onnx(_network("linear"), PREPROCESS)
    assert again == files["linear"]
    features = {"max_feature_difference", "feature_tolerance"}
    assert set(figures) == {"max_difference", "max_logit", "tolerance", "pictures"} | features
    assert 0 <= figures["max_feature_difference"] <= figures["feature_tolerance"] < 0.01
    assert figures["pictures"] == 8
    assert 0 <= figures["max_difference"] <= figures["tolerance"]
    assert figures["tolerance"] == pytest.approx(1e-4 + 5e-4 * figures["max_logit"])


@pytest.mark.parametrize(
    ("head", "bias"),
    [
        ("linear", "head.bias"),
        ("two_head", "head.multi_label.bias"),
        ("two_head", "head.sccp.bias"),
    ],
)
def test_the_comparison_sees_a_changed_weight_of_each_head(
    files: dict[str, bytes], head: str, bias: str
) -> None:
    pictures = _pictures(head)
    with torch.no_grad():
        pictures.network.get_parameter(bias)[3] += 0.01
    parity = _compare(pictures, files[head], image_size=24)
    assert parity.max_difference == pytest.approx(0.01, rel=0.01)
    assert parity.max_difference > parity.tolerance
    assert not parity.holds


def test_the_comparison_sees_changed_features_behind_the_same_logits(
    files: dict[str, bytes],
) -> None:
    pictures = _pictures()
    forward = pictures.forward
    pictures.forward = lambda image: (forward(image)[0], forward(image)[1] + 0.01)  # type: ignore[method-assign]
    parity = _compare(pictures, files["linear"], image_size=24)
    assert parity.max_difference <= parity.tolerance
    assert parity.max_feature_difference == pytest.approx(0.01, rel=0.01)
    assert not parity.holds


def test_the_tolerance_is_that_of_float32_whatever_the_process_computes_in(
    files: dict[str, bytes],
) -> None:
    """bfloat16 would move these logits by a hundredth of the largest."""
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            parity = _compare(_pictures(), files["linear"], image_size=24)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert parity.max_difference < 1e-5
    assert parity.tolerance == pytest.approx(1e-4 + 5e-4 * parity.max_logit)


def test_a_graph_further_away_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ABSOLUTE_TOLERANCE", 0.0)
    monkeypatch.setattr(export, "RELATIVE_TOLERANCE", 0.0)
    with pytest.raises(BundleError, match=r"differs from torch by .*; nothing was written"):
        export_onnx(_network("linear"), PREPROCESS)


def test_a_network_of_nan_is_refused() -> None:
    network = _network("linear")
    with torch.no_grad():
        network.get_parameter("head.bias").fill_(float("nan"))
    with pytest.raises(BundleError, match="differs"):
        export_onnx(network, PREPROCESS)


def test_a_graph_that_gives_nan_where_torch_does_not_is_infinitely_far_away(
    files: dict[str, bytes],
) -> None:
    model = onnx.load_from_string(files["linear"])
    (bias,) = (item for item in model.graph.initializer if list(item.dims) == [6])
    bias.CopyFrom(onnx.numpy_helper.from_array(np.full(6, np.nan, np.float32), bias.name))
    parity = _compare(_pictures(), model.SerializeToString(), image_size=24)
    assert parity.max_difference == float("inf")
    assert not parity.holds


def test_the_comparison_takes_black_white_and_extreme_pictures(files: dict[str, bytes]) -> None:
    batches: list[Tensor] = []
    pictures = _pictures()
    pictures.register_forward_pre_hook(lambda _, images: batches.append(images[0]))
    _compare(pictures, files["linear"], image_size=24)
    assert [len(batch) for batch in batches[:3]] == [1, 2, 5]
    batch = batches[2]
    assert batch[1].max() == 0
    assert batch[2].min() == 255
    assert set(np.unique(batch[3].numpy())) == {0, 255}
    assert len(np.unique(batch[4].numpy())) > 50


class _Keeps(nn.Module):
    """Caches a tensor on its first picture, like some of timm's transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.kept: dict[str, Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        if "it" not in self.kept:
            self.kept["it"] = self.weight * 2
        return images.mean((2, 3)) * self.kept["it"]


def _negative_padded() -> nn.Sequential:
    shifted = nn.Conv2d(3, 3, 1)
    assert shifted.bias is not None
    nn.init.constant_(shifted.bias, -9.0)  # every real value is below the zeros around them
    return nn.Sequential(
        shifted, nn.ConstantPad2d(1, 0.0), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


@pytest.mark.parametrize("make", [_Keeps, _negative_padded])
def test_what_exporter_or_runtime_would_trip_over_is_exported_right(
    make: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    network = Network(make(), nn.Linear(3, 2), head_name="linear")
    _, parity = export_onnx(network, Preprocess(image_size=8, mean=MEAN, std=STD))
    assert parity["max_feature_difference"] < 1e-4
    assert parity["feature_tolerance"] < 1e-2

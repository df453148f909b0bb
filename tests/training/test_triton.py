"""A bundle's network as a model repository of Triton, which itself is not here to run it."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

from calibration.offline.calibrate import calibrate_bundle
from models.bundle import open_bundle
from models.errors import BundleError, UsageError
from server.answers.ask import Ask
from server.answers.pipeline import open_pipeline
from tests.calibration.small_bundle import SIDE, make_bundle, make_data
from training.cli import app
from training.triton import CONFIG, export_triton, model_name


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    make_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def parsed(folder: Path) -> Any:
    """What Triton would read."""
    definition = pytest.importorskip(
        "tritonclient.grpc.model_config_pb2", reason="pip install 'tritonclient[grpc]'"
    )
    text_format = pytest.importorskip("google.protobuf.text_format")
    return text_format.Parse((folder / CONFIG).read_text(), definition.ModelConfig())


def test_the_configuration_says_what_the_graph_takes_and_gives(
    bundle: Path, tmp_path: Path
) -> None:
    folder = export_triton(bundle, tmp_path / "repository")
    config = parsed(folder)
    assert (config.name, config.backend) == (folder.name, "onnxruntime")
    graph = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    (image,) = graph.get_inputs()
    assert [(each.name, list(each.dims)) for each in config.input] == [
        (image.name, list(image.shape[1:]))
    ]
    assert image.type == "tensor(uint8)"
    assert config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[
        config.input[0].data_type
    ].name == "TYPE_UINT8"  # fmt: skip
    given = {each.name: each.shape[1:] for each in graph.get_outputs()}
    assert {each.name: list(each.dims) for each in config.output} == given
    most = np.zeros((config.max_batch_size, SIDE, SIDE, 3), np.uint8)
    assert len(graph.run(None, {image.name: most})[0]) == config.max_batch_size
    assert config.parameters["bundle_sha256"].string_value == open_bundle(bundle).sha256


def test_the_graph_is_the_bundles_own_byte_for_byte(bundle: Path, tmp_path: Path) -> None:
    folder = export_triton(bundle, tmp_path / "repository")
    assert (folder / "1" / "model.onnx").read_bytes() == (bundle / "model.onnx").read_bytes()
    assert sorted(path.name for path in folder.rglob("*")) == ["1", CONFIG, "model.onnx"]


def test_a_model_of_that_name_is_not_overwritten(bundle: Path, tmp_path: Path) -> None:
    folder = export_triton(bundle, tmp_path / "repository")
    (folder / CONFIG).write_text("changed by hand")
    with pytest.raises(UsageError, match="is there already"):
        export_triton(bundle, tmp_path / "repository")
    assert (folder / CONFIG).read_text() == "changed by hand"


def test_the_command_says_where_it_is_and_refuses_what_does_not_go_with_it(
    bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "repository"
    command = ["export", str(bundle), "--out", str(out), "--target", "triton"]
    told = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert json.loads(told.stdout) == {
        "repository": str(out),
        "model": model_name(open_bundle(bundle)),
    }
    with pytest.raises(UsageError, match="leave out --quantize"):
        CliRunner().invoke(app, [*command, "--quantize", "int8"], catch_exceptions=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    with pytest.raises(UsageError, match="run folder"):
        CliRunner().invoke(app, ["export", str(tmp_path / "run"), *command[2:]],
                           catch_exceptions=False)  # fmt: skip
    with pytest.raises(BundleError):
        export_triton(tmp_path, out)


class Stand:
    """What the documented client uses of ``tritonclient.http``, around ONNX Runtime."""

    repository: Path

    def __init__(self, address: str) -> None:
        assert address == "127.0.0.1:8000"

    def infer(self, name: str, inputs: list[Any]) -> Any:
        graph = onnxruntime.InferenceSession(self.repository / name / "1" / "model.onnx")
        names = [each.name for each in graph.get_outputs()]
        outputs = dict(zip(names, graph.run(None, {"image": inputs[0].values}), strict=True))
        return SimpleNamespace(as_numpy=outputs.__getitem__)

    class Input:
        def __init__(self, name: str, shape: list[int], kind: str) -> None:
            assert (name, kind) == ("image", "UINT8")
            self.shape = shape

        def set_data_from_numpy(self, values: Any) -> None:
            assert list(values.shape) == self.shape
            self.values = values


def test_the_documented_client_gives_the_servers_sets(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_data(tmp_path / "data")
    calibrate_bundle(bundle, str(data), ks=[3])
    Stand.repository = export_triton(bundle, tmp_path / "repository").parent
    stand = SimpleNamespace(InferenceServerClient=Stand, InferInput=Stand.Input)
    monkeypatch.setitem(sys.modules, "tritonclient", SimpleNamespace(http=stand))
    monkeypatch.setitem(sys.modules, "tritonclient.http", stand)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")
    (code,) = re.findall(r"<!-- tested -->\n```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    pipeline = open_pipeline(bundle, device="cpu")
    for path in sorted((data / "val").rglob("*.*"))[:20]:
        answer = pipeline([path.read_bytes()], Ask(k=3), "x").answer
        expected = [each.taxon.scientific_name for each in answer.results]
        assert names["species"](path.read_bytes()) == expected

"""The program of `docs/scaling.md` for Triton, which itself is not here to run it."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from florilege.calibration.calibrate import calibrate_bundle
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from tests.calibration.small_bundle import make_bundle, make_data


class Stand:
    """What the documented client uses of ``tritonclient.http``, around ONNX Runtime."""

    def __init__(self, address: str) -> None:
        assert address == "127.0.0.1:8000"

    def infer(self, name: str, inputs: list[Any]) -> Any:
        graph = onnxruntime.InferenceSession(Path(name, "model.onnx"))
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    make_bundle(bundle)
    data = make_data(tmp_path / "data")
    calibrate_bundle(bundle, str(data), ks=[3])
    stand = SimpleNamespace(InferenceServerClient=Stand, InferInput=Stand.Input)
    monkeypatch.setitem(sys.modules, "tritonclient", SimpleNamespace(http=stand))
    monkeypatch.setitem(sys.modules, "tritonclient.http", stand)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text("utf-8")
    (code,) = re.findall(r"<!-- tested -->\n```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    pipeline = open_pipeline(bundle, device="cpu")
    for path in sorted((data / "val").rglob("*.*"))[:20]:
        answer = pipeline([path.read_bytes()], IdentifyQuery(k=3), "x").answer
        expected = [each.taxon.scientific_name for each in answer.results]
        assert names["species"](path.read_bytes()) == expected

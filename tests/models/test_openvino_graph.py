"""OpenVINO returns the same outputs as ONNX Runtime, from any number of threads."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino
import pytest

from florilege.errors import BundleError, UsageError
from florilege.models.bundle import Bundle, replace_files
from florilege.models.runtime import Runtime, open_in_openvino
from florilege.models.session import Session
from tests.calibration.small_bundle import SIDE, make_bundle, network

FLOAT32, BF16 = Runtime("openvino", "float32"), Runtime("openvino", "bf16")
HAS_BF16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
PICTURES = np.random.default_rng(3).integers(0, 256, (5, SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "b", features=True)


@pytest.mark.parametrize(
    ("runtime", "tolerance"),
    [
        (FLOAT32, 1e-5),
        pytest.param(BF16, 2e-2, marks=pytest.mark.skipif(not HAS_BF16, reason="no bf16 here")),
    ],
)
def test_outputs_are_those_of_onnx_runtime(
    bundle: Bundle, runtime: Runtime, tolerance: float
) -> None:
    ours = Session(bundle, runtime=runtime)
    outputs = ours.outputs(PICTURES, features=True)
    expected = Session(bundle).outputs(PICTURES, features=True)
    assert (ours.provider, ours.dimensions) == (f"OpenVINO {runtime.precision}", 3)
    assert outputs.features is not None
    for name, values in {**expected.logits, "features": expected.features}.items():
        assert values is not None
        result = {**outputs.logits, "features": outputs.features}[name]
        assert np.abs(result - values).max() <= tolerance * np.abs(values).max()


def test_a_picture_gets_the_same_outputs_alone_and_among_others(bundle: Bundle) -> None:
    session = Session(bundle, runtime=FLOAT32)
    together = session.logits(PICTURES)
    for row in range(len(PICTURES)):
        alone = session.logits(PICTURES[row : row + 1])
        for head, values in alone.items():
            assert values.tolist() == together[head][row : row + 1].tolist()


def run_with_session(bundle: Bundle, code: str, **environment: str) -> None:
    """Run code in a process that has opened the bundle."""
    opened = f"""
from florilege.models.bundle import open_bundle
from florilege.models.runtime import Runtime, open_in_openvino
from florilege.models.session import Session
session = Session(open_bundle({str(bundle.path)!r}), runtime=Runtime("openvino", "float32"))
"""
    command = [sys.executable, "-c", opened + code]
    subprocess.run(command, check=True, timeout=60, env=os.environ | environment)


def test_threads_that_run_it_first_at_once_all_get_an_answer(bundle: Bundle) -> None:
    """Two threads that create the first tensors of a process would deadlock."""
    code = f"""
from concurrent.futures import ThreadPoolExecutor
import numpy as np
picture = np.zeros((1, {SIDE}, {SIDE}, 3), np.uint8)
with ThreadPoolExecutor(8) as pool:
    rows = list(pool.map(lambda _: session.logits(picture)["sccp"].tolist(), range(200)))
assert all(row == rows[0] for row in rows)
"""
    run_with_session(bundle, code)


def test_opening_one_reports_nothing_and_leaves_nothing_in_the_home_folder(
    bundle: Bundle, tmp_path: Path
) -> None:
    code = """
import sys
assert not [name for name in sys.modules if name.startswith("openvino_telemetry.")]
"""
    home = tmp_path / "home"
    home.mkdir()
    run_with_session(bundle, code, HOME=str(home))
    assert not list(home.iterdir())


def test_a_graph_that_cannot_be_read_is_damaged(bundle: Bundle) -> None:
    broken = replace_files(bundle.path, {"model.onnx": b"no graph"})
    with pytest.raises(BundleError, match="loaded"):
        Session(broken, runtime=FLOAT32)


def test_without_the_package_and_for_cuda_the_message_says_how_to_go_on(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="onnxruntime"):
        Session(bundle, device="cuda", runtime=FLOAT32)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UsageError, match="onnxruntime"):
        Session(bundle, runtime=FLOAT32)


def test_a_processor_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    core = SimpleNamespace(get_property=lambda *_: ["FP32"])
    monkeypatch.setattr(openvino, "Core", lambda: core)
    with pytest.raises(UsageError, match=r"not support bf16.*add --runtime onnxruntime"):
        open_in_openvino(network({"logits": 1.0}), SIDE, bf16=True)


def test_each_runtime_has_its_precision_and_onnx_runtime_bf16_on_arm_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Runtime.of("onnxruntime", None) == Runtime("onnxruntime", "float32")
    assert (Runtime.of("openvino", None), Runtime.of("openvino", "float32")) == (BF16, FLOAT32)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(ValueError, match="bf16 needs runtime openvino"):
        Runtime.of("onnxruntime", "bf16")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert Runtime.of("onnxruntime", "bf16").precision == "bf16"

"""A session runs the graph that the bundle describes, on the requested device, or refuses."""

import ctypes
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from florilege.errors import BundleError, UsageError
from florilege.models import runtime
from florilege.models.bundle import MODEL, Bundle, open_bundle
from florilege.models.runtime import open_graph
from florilege.models.session import (
    FEATURES,
    FixedBatch,
    Session,
    _demand_cuda,
    _lock_pages,
    _vector_length,
    _wanted_providers,
)
from tests.models.bundles import HEADS, make_bundle, network

TWO_HEADS = {"multi_label": "multi_label_logits", "sccp": "sccp_logits"}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "b", network({"logits": 2.0}))


def pictures(*levels: int) -> npt.NDArray[np.uint8]:
    return np.stack([np.full((4, 4, 3), level, np.uint8) for level in levels])


def test_logits_are_those_of_the_graph_wherever_pictures_lie_in_any_thread(bundle: Bundle) -> None:
    session = Session(bundle, device="cpu")
    assert session.provider == "CPUExecutionProvider"
    logits = session.logits(pictures(10, 200))
    assert list(logits) == ["linear"]
    assert logits["linear"].dtype == np.float32
    assert logits["linear"].tolist() == [[20.0, -20.0], [400.0, -400.0]]
    apart = pictures(1, 2, 3, 4)[::2]
    assert session.logits(apart)["linear"][:, 0].tolist() == [2.0, 6.0]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: session.logits(pictures(i))["linear"][0, 0], range(200)))
    assert results == [2.0 * level for level in range(200)]


def test_each_head_gets_its_own_output(tmp_path: Path) -> None:
    model = network({"sccp_logits": 1.0, "multi_label_logits": -3.0})
    heads = dict(reversed(TWO_HEADS.items()))
    session = Session(make_bundle(tmp_path / "b", model, heads), device="cpu")
    logits = session.logits(pictures(10))
    assert dict(session.heads) == TWO_HEADS
    assert logits["multi_label"].tolist() == [[-30.0, 30.0]]
    assert logits["sccp"].tolist() == [[10.0, -10.0]]


def test_a_bundle_may_be_replaced_while_its_session_runs(bundle: Bundle) -> None:
    session = Session(bundle, device="cpu")
    make_bundle(bundle.path, network({"logits": 5.0}))
    assert session.logits(pictures(1))["linear"][0, 0] == 2.0
    assert Session(open_bundle(bundle.path)).logits(pictures(1))["linear"][0, 0] == 5.0


# Invalid arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((0, 4, 4, 3), np.uint8), "at least one image"),
        (np.zeros((1, 4, 4, 3), np.float32), "uint8 of shape"),
        (np.zeros((4, 4, 3), np.uint8), "uint8 of shape"),
        (np.zeros((1, 5, 4, 3), np.uint8), "uint8 of shape"),
        (np.zeros((1, 3, 4, 4), np.uint8), "uint8 of shape"),
    ],
)
def test_other_arrays_and_devices_are_refused(bundle: Bundle, images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Session(bundle, device="cpu").logits(images)
    with pytest.raises(UsageError, match="device must be one of auto, cpu, cuda, got 'tpu'"):
        Session(bundle, device="tpu")


# Graphs that do not fit ------------------------------------------------------------------------


@pytest.mark.parametrize("model", [b"", b"garbage", network({"logits": 1.0})[:-40]])
def test_a_damaged_model_is_named(tmp_path: Path, model: bytes) -> None:
    with pytest.raises(BundleError, match="export"):
        Session(make_bundle(tmp_path / "b", model), device="cpu")


@pytest.mark.parametrize(
    ("model", "heads", "message"),
    [
        (network({"logits": 1.0}, classes=3), HEADS, "has 3 classes .* has 2"),
        (network({"logits": 1.0}, side=5), HEADS, "must take `image`"),
        (network({"logits": 1.0}, input_name="pixels"), HEADS, "must take `image`"),
        (network({"scores": 1.0}), HEADS, "has no output logits"),
        (network({"logits": 1.0}), TWO_HEADS, "has no output multi_label_logits"),
    ],
)
def test_a_graph_that_does_not_fit_the_bundle_is_refused(
    tmp_path: Path, model: bytes, heads: dict[str, str], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        Session(make_bundle(tmp_path / "b", model, heads), device="cpu")


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e38])
def test_logits_that_are_no_numbers_are_refused(tmp_path: Path, factor: float) -> None:
    session = Session(make_bundle(tmp_path / "b", network({"logits": factor})), device="cpu")
    with pytest.raises(BundleError, match="NaN or infinite"):
        session.logits(pictures(1, 200))


# Features --------------------------------------------------------------------------------------


def test_features_are_given_where_they_are_asked_for(tmp_path: Path) -> None:
    model = network({"logits": 1.0}, features="features")
    session = Session(make_bundle(tmp_path / "b", model), device="cpu")
    picture = pictures(10, 30)
    picture[1, 2] = 90
    assert session.dimensions == 4
    logits, features = session.outputs(picture, features=True)
    assert features is not None
    assert features.tolist() == [[10.0] * 4, [30.0, 30.0, 90.0, 30.0]]
    assert logits["linear"].tobytes() == session.logits(picture)["linear"].tobytes()
    assert session.outputs(picture).features is None
    for row in range(2):  # alone as in a batch
        alone = session.outputs(picture[row : row + 1], features=True).features
        assert alone is not None
        assert alone[0].tobytes() == features[row].tobytes()


@pytest.mark.parametrize("output", [None, "embedding"])
def test_a_graph_without_features_answers_and_refuses_to_give_them(
    tmp_path: Path, output: str | None
) -> None:
    model = network({"logits": 1.0}, features=output)
    session = Session(make_bundle(tmp_path / "b", model), device="cpu")
    assert session.dimensions is None
    assert session.logits(pictures(2))["linear"].tolist() == [[2.0, -2.0]]
    with pytest.raises(ValueError, match="features"):
        session.outputs(pictures(2), features=True)


@pytest.mark.parametrize(
    ("kind", "shape", "length"),
    [
        ("float", ["batch", 4], 4),
        ("double", ["batch", 4], None),
        ("float", ["batch", "dimensions"], None),
        ("float", ["batch", 4, 1], None),
    ],
)
def test_features_are_vectors_of_a_fixed_length(kind: str, shape: Any, length: Any) -> None:
    assert _vector_length(SimpleNamespace(type=f"tensor({kind})", shape=shape)) == length


def test_outputs_of_another_shape_are_refused(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match=r"logits has shape \(2, 3\), not \(2, 2\): export the"):
        Session(bundle).check_outputs({"logits": np.zeros((2, 3), np.float32)}, 2, features=False)


def test_features_are_not_computed_for_those_who_want_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[list[str]] = []
    compute = onnxruntime.InferenceSession.run

    def run(runtime: Any, outputs: list[str], pictures: Any) -> Any:
        requests.append(outputs)
        return compute(runtime, outputs, pictures)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", run)
    model = network({"logits": 1.0}, features="features", feature_factor=float("inf"))
    session = Session(make_bundle(tmp_path / "b", model), device="cpu")
    assert session.logits(pictures(2))["linear"].tolist() == [[2.0, -2.0]]
    with pytest.raises(BundleError, match="features"):
        session.outputs(pictures(2), features=True)
    assert requests == [["logits"], ["logits", "features"]]


# Providers -------------------------------------------------------------------------------------


def test_one_thread_and_no_spinning_are_asked_for(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = runtime.import_runtime()
    requests = []
    real = onnxruntime.InferenceSession

    def spy(content: bytes, options: Any, **named: Any) -> Any:
        requests.append(options)
        return real(content, options, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    Session(bundle, device="cpu")
    assert requests[0].intra_op_num_threads == 1
    assert requests[0].inter_op_num_threads == 1
    assert requests[0].get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert requests[0].enable_cpu_mem_arena


def fake_runtime(*available: str) -> Any:
    return SimpleNamespace(
        get_available_providers=lambda: list(available), preload_dlls=lambda: None
    )


def test_auto_takes_what_the_wheel_offers_and_cuda_names_the_extra_of_its_own() -> None:
    with pytest.raises(UsageError, match="install"):
        _wanted_providers(fake_runtime(runtime.CPU), "cuda")
    both = fake_runtime(runtime.CUDA, runtime.CPU)
    assert _wanted_providers(both, "auto") == [runtime.CUDA, runtime.CPU]
    assert _wanted_providers(both, "cpu") == [runtime.CPU]
    assert _wanted_providers(fake_runtime(runtime.CPU), "auto") == [runtime.CPU]


def test_missing_libraries_of_a_gpu_are_not_printed_among_the_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = fake_runtime(runtime.CUDA, runtime.CPU)
    both.preload_dlls = lambda: print("Failed to load libcublas.so.13")  # noqa: T201
    assert _wanted_providers(both, "auto") == [runtime.CUDA, runtime.CPU]
    assert capsys.readouterr() == ("", "Failed to load libcublas.so.13\n")


def test_cuda_that_silently_fell_back_is_refused() -> None:
    with pytest.raises(UsageError, match=r"libcuda\.so\.1"):
        _demand_cuda(runtime.CPU)
    _demand_cuda(runtime.CUDA)


@pytest.mark.parametrize(
    "reason",
    [
        "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 9437184",
    ],
)
def test_a_gpu_without_room_for_another_session_is_no_damaged_model(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"[ONNXRuntimeError] : 6 : {reason}")

    monkeypatch.setattr(runtime.import_runtime(), "InferenceSession", fails)
    with pytest.raises(UsageError, match=r"no memory left .*: use fewer --workers, end what else"):
        Session(bundle, device="cpu")


@pytest.mark.parametrize(("device", "falls_back"), [("auto", 1), ("cuda", 0), ("cpu", 0)])
def test_only_auto_goes_to_the_cpu_where_a_gpu_fails_and_says_so_beside_the_answers(
    bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    falls_back: int,
) -> None:
    requests, streams = list[int](), list[Any]()
    real = runtime.import_runtime().InferenceSession

    def spy(*given: Any, enable_fallback: int, **_: Any) -> Any:
        requests.append(enable_fallback)
        if requests[-1]:
            print("Falling back")  # noqa: T201
        streams.append(sys.stdout)
        return real(*given, providers=[runtime.CPU])

    monkeypatch.setattr(runtime.import_runtime(), "InferenceSession", spy)
    wanted = [runtime.CPU] if device == "cpu" else [runtime.CUDA, runtime.CPU]
    monkeypatch.setattr("florilege.models.session._wanted_providers", lambda *_: wanted)
    own = sys.stdout
    with nullcontext() if device != "cuda" else pytest.raises(UsageError, match="runs on CPU"):
        Session(bundle, device=device)
    assert requests == [falls_back]
    assert (streams == [own]) == (not falls_back)  # it is that of all threads
    assert capsys.readouterr() == ("", "Falling back\n" if falls_back else "")


@pytest.mark.gpu
def test_cuda_runs_the_graph_on_the_gpu(bundle: Bundle) -> None:
    if "onnxruntime-gpu" not in runtime.installed_wheels():
        pytest.skip("onnxruntime-gpu is not installed")
    session = Session(bundle, device="cuda")
    assert session.provider == runtime.CUDA
    assert session.logits(pictures(10))["linear"].tolist() == [[20.0, -20.0]]


def test_both_wheels_at_once_and_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "installed", lambda name: "1.31.1")
    with pytest.raises(UsageError, match=r"both installed.*pip uninstall"):
        runtime.import_runtime()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"extra `cpu`.*`gpu`"):
        runtime.import_runtime()


@pytest.mark.parametrize(("value", "expected"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_before_the_runtime_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, expected: str
) -> None:
    name = "ORT_DISABLE_TELEMETRY"
    monkeypatch.setenv(name, value or "")
    if value is None:
        monkeypatch.delenv(name)
    (tmp_path / "onnxruntime.py").write_text(f"import os\nSEEN = os.environ.get({name!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert expected == runtime.import_runtime().SEEN


# Batches in fixed buffers ---------------------------------------------------------------------


def random_pictures(number: int, seed: int) -> list[npt.NDArray[np.uint8]]:
    return list(np.random.default_rng(seed).integers(0, 256, (number, 4, 4, 3), dtype=np.uint8))


def batch(folder: Path, size: int, features: str | None = FEATURES) -> tuple[Session, FixedBatch]:
    session = Session(make_bundle(folder / "b", network({"logits": 2.0}, features=features)))
    return session, FixedBatch(session, open_graph(session.bundle.read(MODEL)), size)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_batch_full_or_not_gives_what_the_session_gives(tmp_path: Path, number: int) -> None:
    session, three = batch(tmp_path, 3)
    three.run(random_pictures(3, seed=7))  # earlier content must not leak
    pictures = random_pictures(number, seed=number)
    outputs = three.run(pictures)
    expected = session.outputs(np.stack(pictures), features=True)
    assert list(outputs) == ["logits", FEATURES]
    assert np.array_equal(outputs["logits"], expected.logits["linear"])
    assert expected.features is not None
    assert np.array_equal(outputs[FEATURES], expected.features)


def test_what_a_batch_gave_stays_when_the_next_one_runs(tmp_path: Path) -> None:
    _, two = batch(tmp_path, 2, features=None)
    outputs = two.run(random_pictures(2, seed=0))
    before = {name: values.copy() for name, values in outputs.items()}
    assert list(before) == ["logits"]
    two.run(random_pictures(2, seed=1))
    assert np.array_equal(outputs["logits"], before["logits"])


# Calls to a GPU, tested without one -------------------------------------------------------------


def test_a_gpu_gets_buffers_of_its_own_and_a_graph_for_each_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = batch(tmp_path, 1)
    values, options, locked = list[tuple[Any, ...]](), list[tuple[str, str]](), list[int]()

    class Value:
        @staticmethod
        def ortvalue_from_shape_and_type(*requests: Any) -> object:
            values.append(requests)
            return object()

    options_of = SimpleNamespace(add_run_config_entry=lambda *entry: options.append(entry))
    fake = SimpleNamespace(OrtValue=Value, RunOptions=lambda: options_of, cuda_version="13.0")
    monkeypatch.setattr("florilege.models.session.import_runtime", lambda: fake)
    monkeypatch.setattr(
        "florilege.models.session._lock_pages", lambda array, _: locked.append(array.nbytes)
    )
    binding = SimpleNamespace(
        bind_ortvalue_input=lambda *_: None, bind_ortvalue_output=lambda *_: None
    )
    graph = SimpleNamespace(
        get_providers=lambda: [runtime.CUDA, runtime.CPU], io_binding=lambda: binding
    )
    FixedBatch(session, graph, 8)
    assert values == [
        ((8, 4, 4, 3), np.uint8, "cuda"),
        ((8, 2), np.float32, "cuda"),
        ((8, 4), np.float32, "cuda"),
    ]
    assert options == [("gpu_graph_id", "8")]
    assert locked == [8 * 4 * 4 * 3]


@pytest.mark.parametrize("replayed", [True, False])
def test_a_gpu_computes_in_float32_and_captures_where_it_is_to_be_replayed(
    monkeypatch: pytest.MonkeyPatch, replayed: bool
) -> None:
    requests = list[Any]()
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *_, providers, **__: requests.extend(providers)
    )
    open_graph(network({"logits": 1.0}), providers=[runtime.CUDA, runtime.CPU], replayed=replayed)
    graph = "1" if replayed else "0"
    assert requests == [(runtime.CUDA, {"use_tf32": "0", "enable_cuda_graph": graph}), runtime.CPU]


@pytest.mark.parametrize(("code", "locked"), [(0, True), (1, False)])
def test_pages_are_locked_by_the_cuda_runtime_of_the_wheel(
    monkeypatch: pytest.MonkeyPatch, code: int, locked: bool
) -> None:
    opened, requests, freed = list[str](), list[tuple[Any, ...]](), list[int | None]()
    array = np.zeros(6, np.uint8)

    def library(name: str) -> SimpleNamespace:
        opened.append(name)

        def register(address: ctypes.c_void_p, size: ctypes.c_size_t, flags: ctypes.c_uint) -> int:
            requests.append((address.value, size.value, flags.value))
            return code

        return SimpleNamespace(
            cudaHostRegister=register,
            cudaHostUnregister=lambda address: freed.append(address.value),
        )

    monkeypatch.setattr(ctypes, "CDLL", library)
    _lock_pages(array, "13.0")
    assert opened == ["libcudart.so.13"]
    address = array.ctypes.data
    assert requests == [(address, 6, 0)]
    assert not freed
    del array
    assert freed == [address] * locked


def test_pages_stay_as_they_are_where_there_is_no_cuda_runtime() -> None:
    pages = np.zeros(6, np.uint8)
    _lock_pages(pages, "0.0")
    assert weakref.getweakrefcount(pages) == 0  # nothing waits for their end

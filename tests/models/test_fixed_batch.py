"""A fixed batch returns the same outputs as the session, and shares no buffers."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from florilege.models.bundle.bundle import MODEL
from florilege.models.fixed_batch import FixedBatch, _lock_pages
from florilege.models.runtime import CPU, CUDA
from florilege.models.session import FEATURES, Session, open_graph
from tests.models.bundles import make_bundle, network


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
    monkeypatch.setattr("florilege.models.fixed_batch.import_runtime", lambda: fake)
    monkeypatch.setattr(
        "florilege.models.fixed_batch._lock_pages", lambda array, _: locked.append(array.nbytes)
    )
    binding = SimpleNamespace(
        bind_ortvalue_input=lambda *_: None, bind_ortvalue_output=lambda *_: None
    )
    graph = SimpleNamespace(get_providers=lambda: [CUDA, CPU], io_binding=lambda: binding)
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
        onnxruntime, "InferenceSession", lambda *_, providers: requests.extend(providers)
    )
    open_graph(b"", providers=[CUDA, CPU], replayed=replayed)
    graph = "1" if replayed else "0"
    assert requests == [(CUDA, {"use_tf32": "0", "enable_cuda_graph": graph}), CPU]


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
    _lock_pages(np.zeros(6, np.uint8), "0.0")

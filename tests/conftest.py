"""What holds for every test."""

import asyncio
import atexit
import copy
import functools
import gc
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from florilege.models.runtime import silence_telemetry
from tests.chromium import launched

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's; each core has a process of tests
for _verb in ("CALIBRATE", "EVALUATE", "PREDICT"):  # tests of the store name a folder of their own
    os.environ.setdefault(f"FLORILEGE_{_verb}_OUTPUT_CACHE", "none")
os.fsync = lambda fd: None  # no test cuts the power, and thousands wait for the disk
# A client reads all certificates of the machine, and hundreds of requests have one of their own.
_context = functools.cache(ssl.create_default_context)
ssl.create_default_context = _context  # type: ignore[assignment]  # its arguments are hashable
# A first example may load a library, and other work may hold the cores: no example is timed.
settings.register_profile("florilege", max_examples=60, deadline=None)
settings.load_profile("florilege")
silence_telemetry()


gc.disable()  # while modules are imported
gc.set_threshold(20_000, 20, 20)


LONG_FILES = {"test_pages.py", "test_packaging.py", "test_notebooks.py", "test_distributed.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: a test of a minute that begins last keeps the other processes waiting."""
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not search it, not even when pytest ends."""
    gc.enable()
    gc.freeze()
    # What is left when Python ends would be freed one by one, and listed by nanobind as leaks.
    if "PYTEST_XDIST_WORKER" in os.environ:
        atexit.register(os._exit, 0)
    else:
        atexit.register(gc.unfreeze)
    if "torch" in sys.modules:
        _parse_operators_once()
        _export_each_network_once()


def _parse_operators_once() -> None:
    """The exporter reads its table of operators anew for each network: a third of its time.

    It also makes an object of each composite operator of torch 64 times: a seventh of the rest.
    """
    import torch._export.utils as composites
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    table = functools.cache(ONNXRegistry.from_torchlib)
    ONNXRegistry.from_torchlib = staticmethod(table)
    made = functools.cache(composites._materialize_cpp_cia_ops)
    composites._materialize_cpp_cia_ops = made


def _export_each_network_once() -> None:
    """Tests export the same few networks hundreds of times, each with other weights.

    The exporter runs once for each network, with weights of which no two are equal; they tell what
    becomes of every weight in the graph. The same is done to the weights of the others, to the
    bit. `export_onnx` compares all graphs with torch, those too.
    """
    from florilege.models import export

    exported, templates = export._export, dict[Any, Template | None]()

    def once(pictures: Any, head: str, image_size: int) -> Any:
        if head == "cosine":  # the graph holds its weights at length one
            return exported(pictures, head, image_size)
        state = {name: value.numpy() for name, value in pictures.state_dict().items()}
        others = [
            (name, value.numpy().tobytes())
            for name, value in pictures.named_buffers()
            if name not in state
        ]
        parts = [
            (name, type(part), part.extra_repr(), str([v for v in vars(part).items() if _plain(v)]))
            for name, part in pictures.named_modules()
        ]
        shapes = [(name, value.shape, value.dtype) for name, value in state.items()]
        key = (head, image_size, *others, *parts, *shapes)
        if key not in templates:
            templates[key] = Template.of(exported, pictures, head, image_size)
        template = templates[key]
        return template.graph_of(state) if template else exported(pictures, head, image_size)

    export._export = once


def _plain(attribute: tuple[str, object]) -> bool:
    """Whether it is a setting, which a graph may hold as a constant."""
    return isinstance(attribute[1], bool | int | float | str | tuple)


State = dict[str, np.ndarray]


@dataclass(frozen=True)
class Template:
    """A graph, and how its tensors follow from the weights of a network."""

    graph: Any  # with no values where a tensor follows from weights
    tensors: dict[str, Callable[[State], np.ndarray]]

    @classmethod
    def of(
        cls, exported: Callable[..., Any], pictures: Any, head: str, image_size: int
    ) -> "Template | None":
        """None if it cannot be told of every tensor what it follows from."""
        from onnx.numpy_helper import to_array

        try:
            network = copy.deepcopy(pictures)
        except Exception:
            return None
        random = np.random.default_rng(0)
        values = network.state_dict().values()
        for value in (each.numpy() for each in values if each.is_floating_point()):
            value[...] = random.uniform(0.5, 1.5, value.shape)
        graph = exported(network, head, image_size)
        state = {name: value.numpy() for name, value in network.state_dict().items()}
        norms = [
            (f"{name}.", part.eps) for name, part in network.named_modules() if hasattr(part, "eps")
        ]
        ways = dict[tuple[Any, bytes], Callable[[State], np.ndarray]]()
        for name, value in state.items():
            ways[value.shape, value.tobytes()] = itemgetter(name)
            if value.ndim == 2:
                ways[value.T.shape, value.T.tobytes()] = partial(_turned, name)
        tensors = {}
        for each in graph.graph.initializer:
            value = to_array(each)
            way = ways.get((value.shape, value.tobytes()))
            for norm, eps in () if way else norms:
                weight = each.name.removesuffix("_bias").removesuffix(".bias")
                weight += ".weight" * (weight not in state)
                fused = partial(_joined, weight=weight, norm=norm, eps=eps, bias=value.ndim == 1)
                with suppress(KeyError, ValueError):
                    if np.array_equal(fused(state), value):
                        way = fused
            if way:
                tensors[each.name] = way
                each.raw_data = b""
            elif value.dtype.kind == "f" and value.size > 1:
                return None
        return cls(graph, tensors)

    def graph_of(self, state: State) -> Any:
        """The graph of a network with these weights."""
        from onnx.numpy_helper import from_array

        graph = type(self.graph)()
        graph.CopyFrom(self.graph)
        for each in graph.graph.initializer:
            if each.name in self.tensors:
                value = np.ascontiguousarray(self.tensors[each.name](state))
                each.raw_data = from_array(value).raw_data
        return graph


def _turned(name: str, state: State) -> np.ndarray:
    return state[name].T


def _joined(state: State, *, weight: str, norm: str, eps: float, bias: bool) -> np.ndarray:
    """What the exporter makes of a convolution and the batch norm that follows it."""
    mean = state[f"{norm}running_mean"]
    scale = state[f"{norm}weight"] / np.sqrt(state[f"{norm}running_var"] + eps)
    if not bias:
        return state[weight] * scale.reshape(-1, *[1] * (state[weight].ndim - 1))
    before = state.get(f"{weight.removesuffix('weight')}bias", np.zeros_like(mean))
    return (before - mean) * scale + state[f"{norm}bias"]


@pytest.fixture
def without_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports for what they say; writing the drawings takes longer than all else."""
    monkeypatch.setattr("florilege.calibration.report.html_page._svg", lambda _figure: "")


@pytest.fixture(scope="session")
def browser_and_loop() -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """One browser for all tests of a process, and the loop that its driver runs."""
    with launched() as browser:
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)


@pytest.fixture(scope="module")
def chromium(browser_and_loop: tuple[Any, asyncio.AbstractEventLoop]) -> Iterator[Any]:
    """The browser, for the tests of a file."""
    browser, loop = browser_and_loop
    # The driver's loop counts as running between its calls: other files may run none meanwhile.
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)

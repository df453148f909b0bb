"""What holds for every test."""

import asyncio
import atexit
import functools
import gc
import os
import ssl
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from florilege.models.runtime import silence_telemetry
from tests.chromium import launched

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's; each core has a process of tests
for _verb in ("CALIBRATE", "EVALUATE", "PREDICT"):  # tests of the store name a folder of their own
    os.environ.setdefault(f"FLORILEGE_{_verb}_OUTPUT_CACHE", "none")
os.fsync = lambda fd: None  # no test cuts the power, and thousands wait for the disk
if hasattr(os, "SCHED_BATCH"):  # more processes than cores: each is interrupted less often
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
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
    """Many tests export the same small network with the same first weights."""
    import onnx

    from florilege.models import export

    exported, graphs = export._export, dict[str, onnx.ModelProto]()

    def once(pictures: Any, head: str, image_size: int) -> onnx.ModelProto:
        parts = [
            (name, type(part), part.extra_repr(), [v for v in vars(part).items() if _plain(v[1])])
            for name, part in pictures.named_modules()
        ]
        state = [(name, value.numpy().tobytes()) for name, value in pictures.state_dict().items()]
        if sum(len(values) for _, values in state) > 2_000_000:
            return exported(pictures, head, image_size)
        key = repr((parts, hash(tuple(state)), head, image_size))
        if key not in graphs:
            graphs[key] = exported(pictures, head, image_size)
        model = onnx.ModelProto()
        model.CopyFrom(graphs[key])  # what changes it changes a copy
        return model

    export._export = once


def _plain(value: object) -> bool:
    """Whether it is a setting, which a graph may hold as a constant."""
    return isinstance(value, bool | int | float | str | tuple)


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

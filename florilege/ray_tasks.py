"""Work spread over processes of Ray Data, on this machine or on many, in order.

The counterpart of `florilege.cores.in_order`: what a photo needs is the same function there and
here. Only this module and `florilege.server.ray_serve` import Ray, and only when they are asked for
it.
"""

import logging
import os
import pickle
import socket
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from florilege.cores import cores, in_order
from florilege.errors import FlorilegeError, UsageError, install_hint

AT_ONCE: Final = 64  # items a worker is given at most: what is done again if it dies
TURNS: Final = 8  # that each worker gets at least, if there are enough items: all end together
ATTEMPTS: Final = 4  # to do the same items, after which it is they that end the workers
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Workers:
    """How many processes share the work.

    Attributes:
        number: Of all machines together; by default as many as the cluster's cores hold, or with
            ``gpu`` as there are GPUs.
        threads: Of each, one for each core it takes; by default 1, or with ``gpu`` the cores there
            are for each GPU.
        gpu: Whether each takes a GPU.
    """

    number: int | None = None
    threads: int | None = None
    gpu: bool = False


def demand_ray() -> ModuleType:
    """The module `ray`, which reports nothing to its makers and stays on this machine if alone.

    Raises:
        UsageError: The extra `ray` is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its errors are raised all the same
    if "RAY_ADDRESS" not in os.environ:  # else Ray listens on every network there is
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UsageError(f"Ray cannot be imported ({error}): {install_hint('ray')}") from error
    module: ModuleType = ray
    return module


def spread(
    open_work: Callable[[], Callable[[Item], Result]], items: Sequence[Item], workers: Workers
) -> Generator[Result, None, None]:
    """The work on each item, in the order of the items, by workers of Ray.

    Each worker calls ``open_work`` once, and what that gives for each item; all of them travel by
    pickle. A worker that dies is replaced, and what it had is done again. The cluster is that of
    the environment variable ``RAY_ADDRESS``; without it, this machine for as long as it takes.

    Raises:
        UsageError: The extra `ray` is not installed, or there is no such cluster.
        FlorilegeError: Some items ended every worker that had them, or Ray cannot go on.
        Exception: What a worker raised.
    """
    ray = demand_ray()
    with _cluster(ray, workers):
        number, threads = _shape(ray, workers)
        portions = _portions(items, number)
        if not portions:
            return
        dataset = ray.data.from_items(portions, override_num_blocks=len(portions))
        dataset.context.execution_options.preserve_order = True
        dataset.context.enable_progress_bars = False
        attempts = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Attempts).remote()
        mapped = dataset.map_batches(
            _Worker,
            fn_constructor_args=(ray.put(open_work), attempts, threads, str(Path.cwd())),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=number),
            num_cpus=threads,
            num_gpus=1 if workers.gpu else None,
        )
        blocks = mapped.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0)
        try:
            with closing(iter(blocks)) as batches:  # Ray Data ends before Ray does
                for content in chain.from_iterable(each["results"] for each in batches):
                    yield from _unpickle(content)
        except ray.exceptions.RayError as error:
            raise FlorilegeError(f"Ray cannot go on: {_reason(error)}") from error


def _unpickle(content: bytes) -> list[Any]:
    """The results of a portion; raises what its worker raised."""
    results: list[Any] | Exception = pickle.loads(content)
    if isinstance(results, Exception):
        raise results
    return results


def _portions(items: Sequence[Any], workers: int) -> list[dict[str, Any]]:
    size = max(1, min(AT_ONCE, len(items) // (TURNS * workers)))
    return [
        {"first": first, "items": pickle.dumps(items[first : first + size])}
        for first in range(0, len(items), size)
    ]


class _Attempts:
    """How often each portion was begun, counted outside the workers: they die without a word."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def count(self, first: int) -> int:
        self._counts[first] += 1
        return self._counts[first]


class _Worker(Generic[Item, Result]):
    """One process: it opens its work once, and then takes portions of the items."""

    def __init__(self, opener: Any, attempts: Any, threads: int, folder: str) -> None:
        self.ray, self.opener, self.attempts, self.threads = demand_ray(), opener, attempts, threads
        with suppress(OSError):  # so that relative paths mean what they mean to the command
            os.chdir(folder)

    @cached_property
    def work(self) -> Callable[[Item], Result]:
        opened: Callable[[], Callable[[Item], Result]] = self.ray.get(self.opener)
        return opened()

    def __call__(self, portion: dict[str, Any]) -> dict[str, list[bytes]]:
        first, items = int(portion["first"][0]), pickle.loads(portion["items"][0])
        results: list[Result] | Exception
        try:
            if self.ray.get(self.attempts.count.remote(first)) > ATTEMPTS:
                raise FlorilegeError(
                    f"{ATTEMPTS} workers died while they had items {first + 1:,} to "
                    f"{first + len(items):,}: is one of these to blame, or is memory short?"
                )
            results = list(in_order(self.work, items, threads=self.threads))
        except Exception as error:  # whatever it is, the command raises it
            results = error
        return {"results": [pickle.dumps(results)]}


@contextmanager
def _cluster(ray: ModuleType, workers: Workers) -> Generator[None, None, None]:
    """Be connected to Ray while the block runs; what it has to say goes to stderr."""
    for name in ("ray", "ray.data", "ray.data._internal.progress"):
        logging.getLogger(name).setLevel(logging.ERROR)
    address = os.environ.get("RAY_ADDRESS")
    alone = {
        "num_cpus": max(cores(), (workers.number or 1) * (workers.threads or 1)),
        "include_dashboard": False,
    }
    with redirect_stdout(sys.stderr):
        try:
            _reach(address)
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else alone),
            )
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at RAY_ADDRESS={address}" if address else "on this machine"
            raise UsageError(f"--ray: there is no Ray {where}: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()


def _reach(address: str | None) -> None:
    """Raise ``OSError`` where nobody listens: Ray would try for many minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _shape(ray: ModuleType, workers: Workers) -> tuple[int, int]:
    """How many workers, and threads of each."""
    there = ray.cluster_resources()
    cpus, gpus = int(there.get("CPU", 1)), int(there.get("GPU", 0))
    if workers.gpu and not gpus:
        raise UsageError("--ray: no machine of the cluster offers a GPU: ask for --device cpu")
    threads = workers.threads or (max(1, cpus // gpus) if workers.gpu else 1)
    return workers.number or max(1, gpus if workers.gpu else cpus // threads), threads


def _reason(error: BaseException) -> str:
    """The first line of what Ray says."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)

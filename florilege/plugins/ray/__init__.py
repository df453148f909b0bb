"""``predict --ray`` and ``calibrate --ray``: photos spread over the machines of a Ray cluster.

This is the counterpart of `florilege.cores.in_order`: it applies the same functions, and
results come in the order of the photos.
"""

import logging
import os
import pickle
import socket
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, redirect_stdout, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from florilege.cores import Workers, cores, in_order
from florilege.errors import FlorilegeError, UsageError, install_hint
from florilege.hooks import Cluster, hookimpl

MOST_ITEMS: Final = 64  # per portion, the work that is repeated if a worker dies
PORTIONS: Final = 8  # per worker, if there are enough items, so that all workers end together
ATTEMPTS: Final = 4  # for one portion; after that, its items are probably at fault
Item = TypeVar("Item")
Result = TypeVar("Result")


@hookimpl
def clusters() -> dict[str, Cluster]:
    """Ray, whose library is imported on the first use."""
    return {"ray": Cluster(demand=demand_ray, spread=spread)}


def demand_ray() -> ModuleType:
    """Import `ray` without telemetry; unless it joins a cluster, it stays on this machine.

    Raises:
        UsageError: The extra `ray` is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors are still raised
    # A local cluster that Ray starts by itself would listen on every network interface.
    if "RAY_ADDRESS" not in os.environ:
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
    """Apply work to each item in Ray workers; yields results in the order of the items.

    Each worker calls ``open_work`` once and the function it returns once per item; functions, items
    and results are pickled. A worker that dies is replaced, and its portion is repeated. The
    environment variable ``RAY_ADDRESS`` names the cluster; without it, Ray runs on this machine
    until the work is done.

    Raises:
        UsageError: The extra `ray` is not installed, or there is no such cluster.
        FlorilegeError: Some items ended every worker that had them, or Ray failed.
        Exception: A worker raised it.
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
            # In Ray's object store, so that each machine, not each worker, receives the bundle.
            fn_constructor_args=(ray.put(open_work), attempts, threads, str(Path.cwd())),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=number),
            num_cpus=threads,
            num_gpus=1 if workers.gpu else None,
        )
        blocks = mapped.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0)
        try:
            with closing(iter(blocks)) as batches:  # Ray Data must end before Ray
                for content in chain.from_iterable(batch["results"] for batch in batches):
                    results: list[Result] | Exception = pickle.loads(content)
                    if isinstance(results, Exception):
                        raise results
                    yield from results
        except ray.exceptions.RayError as error:
            lines = (line for line in str(error).splitlines() if line.strip())
            reason = next(lines, type(error).__name__)
            raise FlorilegeError(f"Ray failed: {reason}") from error


def _portions(items: Sequence[Any], workers: int) -> list[dict[str, Any]]:
    size = max(1, min(MOST_ITEMS, len(items) // (PORTIONS * workers)))
    return [
        {"first": first, "items": pickle.dumps(items[first : first + size])}
        for first in range(0, len(items), size)
    ]


class _Attempts:
    """Counts the starts of each portion, outside the workers because they may die silently."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def count(self, first: int) -> int:
        self._counts[first] += 1
        return self._counts[first]


class _Worker(Generic[Item, Result]):
    """One process, which opens its work once and then processes portions of the items."""

    def __init__(self, opener: Any, attempts: Any, threads: int, folder: str) -> None:
        self.ray, self.opener, self.attempts, self.threads = demand_ray(), opener, attempts, threads
        with suppress(OSError):  # so that relative paths mean the same as in the command
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
                    f"{first + len(items):,}: check these items and the available memory"
                )
            results = list(in_order(self.work, items, threads=self.threads))
        except Exception as error:  # the command raises it
            results = error
        # As bytes: Ray Data would make a column of an array or a table of anything else.
        return {"results": [pickle.dumps(results)]}


@contextmanager
def _cluster(ray: ModuleType, workers: Workers) -> Generator[None, None, None]:
    """Connect to Ray while the block runs; its output goes to stderr."""
    for name in ("ray", "ray.data", "ray.data._internal.progress"):
        logging.getLogger(name).setLevel(logging.ERROR)
    address = os.environ.get("RAY_ADDRESS")
    local_options = {
        "num_cpus": max(cores(), (workers.number or 1) * (workers.threads or 1)),
        "include_dashboard": False,
    }
    with redirect_stdout(sys.stderr):
        try:
            _check_address(address)
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else local_options),
            )
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at RAY_ADDRESS={address}" if address else "on this machine"
            raise UsageError(f"--ray: cannot connect to Ray {where}: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raise ``OSError`` if the address does not answer; Ray would try for many minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _shape(ray: ModuleType, workers: Workers) -> tuple[int, int]:
    """The number of workers, and of threads per worker."""
    resources = ray.cluster_resources()
    cpus, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    if workers.gpu and not gpus:
        raise UsageError("--ray: no machine of the cluster has a GPU: use --device cpu")
    threads = workers.threads or (max(1, cpus // gpus) if workers.gpu else 1)
    return workers.number or max(1, gpus if workers.gpu else cpus // threads), threads

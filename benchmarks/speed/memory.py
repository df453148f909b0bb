"""Peak memory of a piece of work: what its tensors held at once."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(work: Callable[[], object], device: str = "cpu") -> int:
    """Largest number of bytes that ``work`` held at once beyond what was there before.

    On the CPU it counts the results of every operation, backward ones included, but not what
    an operation needs inside; on a GPU it asks the allocator, which sees everything.
    """
    work()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        peak: int = torch.cuda.max_memory_allocated() - before
        return peak
    ledger = _Ledger()
    with ledger:
        work()
    return ledger.peak


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Adds up the storages that operations make, until they are let go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.held: int = 0
        self.peak: int = 0
        self.known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        there = {id(leaf.untyped_storage()) for leaf in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self.known and id(storage) not in there:
                self._enter(storage)
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        self.known.add(storage)
        self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._leave, storage.nbytes())

    def _leave(self, size: int) -> None:
        self.held -= size


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]

"""The most recent items by name, within a limit."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentItems(Generic[T]):
    """The most recent items by name, of total weight up to ``limit``. Thread-safe."""

    def __init__(self, limit: int, weigh: Callable[[T], int] = lambda _: 1) -> None:
        self.limit, self._weigh, self._weight = limit, weigh, 0
        self._by_name: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: Hashable, item: T) -> None:
        """Add an item under a new name, and drop the oldest while they weigh too much."""
        if (weight := self._weigh(item)) > self.limit:
            return
        with self._lock:
            self._by_name[name] = item
            self._weight += weight
            while self._weight > self.limit:
                self._weight -= self._weigh(self._by_name.popitem(last=False)[1])

    def find(self, name: Hashable) -> T | None:
        """The item of this name; None if it is unknown or dropped."""
        with self._lock:
            return self._by_name.get(name)

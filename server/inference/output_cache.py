"""Keep the outputs of the network for photos that are sent again, byte for byte."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

from florilege.models.session import Outputs
from florilege.server.prometheus import Metrics


class OutputCache:
    """The outputs for the last ``limit`` photos, the least recent dropped first. Thread-safe.

    Sets are drawn anew from them, so a query, a list or a threshold never meets another's answer.
    """

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.limit, self._lookups = limit, metrics.cache_lookups
        self._recent: OrderedDict[tuple[str, ...], Outputs] = OrderedDict()
        self._lock = threading.Lock()

    def outputs(self, owner: tuple[str, ...], photo: bytes, run: Callable[[], Outputs]) -> Outputs:
        """What ``run`` returns for a photo, or returned for the same ``owner`` before."""
        if not self.limit:
            return run()
        name = (*owner, sha256(photo).hexdigest())
        with self._lock:
            outputs = self._recent.pop(name, None)
            if outputs is not None:
                self._recent[name] = outputs  # now the most recent
        self._lookups.labels("miss" if outputs is None else "hit").inc()
        if outputs is None:
            outputs = run()
            with self._lock:
                self._recent[name] = outputs
                if len(self._recent) > self.limit:
                    self._recent.popitem(last=False)
        return outputs

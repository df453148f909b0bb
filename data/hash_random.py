"""Random draws that never change, whatever the versions of anything: they come from a hash."""

import hashlib
from collections.abc import Iterable


def fraction(key: str, seed: int) -> float:
    """A number in [0, 1) that depends only on the key and the seed.

    Example:
        >>> 0.0 <= fraction("a", 0) < 1.0
        True
    """
    return int.from_bytes(_digest(key, seed)[:6], "big") / 2**48


def shuffled(keys: Iterable[str], seed: int) -> list[str]:
    """The keys in an order drawn by ``seed``; each key's place depends on no other key's name."""
    return sorted(keys, key=lambda key: (_digest(key, seed), key))


def _digest(key: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{key}".encode()).digest()

"""Random draws from a hash, so that they do not depend on library versions."""

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
    """The keys in an order drawn by ``seed``; other keys do not change the order of two keys."""
    return sorted(keys, key=lambda key: (_digest(key, seed), key))


def _digest(key: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{key}".encode()).digest()

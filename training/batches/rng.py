"""Random numbers that depend on seed, epoch and row alone.

Every process draws the same numbers for a picture, before and after an interruption, so no state
has to be saved.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_GOLDEN: Final = 0x9E3779B97F4A7C15


def uniforms(seed: int, epoch: int, rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), shape ``(len(rows), count)``.

    A counter-based generator: three rounds of SplitMix64 hash (seed, epoch, row) to a stream, and
    a fourth hashes each count of that stream, all rows at once.

    References:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    stream = _mix(np.array([seed], dtype=np.uint64))
    stream = _mix(stream + np.uint64(epoch))
    streams = _mix(stream + rows.astype(np.uint64))  # (rows,)
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)  # (count,)
    bits = _mix(streams[:, None] + counters)  # (rows, count)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of SplitMix64, which relies on unsigned arrays wrapping around."""
    state = state + np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed

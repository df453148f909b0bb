"""Scores that are hard on thresholds: ties, neighbouring floats, zeros, one class, minus infinity.

Uniform random numbers would miss all of these.
"""

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

Scores = NDArray[np.floating[Any]]
DTYPES = (np.float16, np.float32, np.float64)


@st.composite
def score_arrays(draw: st.DrawFn, *, classes: int | None = None, infinite: bool = True) -> Scores:
    """Arrays of 1 to 12 rows and 1 to 6 classes in any of the three precisions."""
    rows = draw(st.integers(1, 12))
    columns = classes or draw(st.integers(1, 6))
    dtype = draw(st.sampled_from(DTYPES))
    values = draw(st.lists(_values(dtype, infinite), min_size=rows * columns,
                           max_size=rows * columns))  # fmt: skip
    return np.array(values, dtype=dtype).reshape(rows, columns)


@cache  # or each example checks a strategy of its own
def _values(dtype: type, infinite: bool) -> st.SearchStrategy[Any]:
    near = dtype(0.3)
    neighbours = [
        near,
        np.nextafter(near, dtype(1)),
        np.nextafter(near, dtype(0)),
        np.nextafter(dtype(0), dtype(1)),
        dtype(0),
        dtype(-0.0),
        dtype(0.5),
        dtype(1),
        dtype(-2),
    ]
    if infinite:
        neighbours.append(dtype(-np.inf))
    width = np.dtype(dtype).itemsize * 8
    smooth = st.floats(0, 1, width=width).map(dtype)  # type: ignore[arg-type]  # 16, 32 or 64
    return st.sampled_from(neighbours) | smooth


def draw_labels(data: st.DataObject, scores: Scores) -> list[int]:
    """A class for each row."""
    rows, classes = scores.shape
    return data.draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))


@cache
def average_ks(classes: int, *, lowest: int = 0) -> st.SearchStrategy[float]:
    """Wanted mean sizes: whole, fractional with few digits, and the two ends."""
    twentieths = st.integers(lowest * 20, classes * 20).map(lambda steps: steps / 20)
    return (
        twentieths | st.floats(lowest, classes) | st.sampled_from([float(lowest), float(classes)])
    )

"""Hypothesis batches where losses tend to break: ties, neighbouring floats, zeros, huge scores."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

NEAR = (0.5, math.nextafter(0.5, 1), math.nextafter(0.5, 0), 1.5, math.nextafter(1.5, 2))
TOUCHY = (0.0, -0.0, 1.0, -1.0, *NEAR, 1e-300, 30.0, -30.0, 1e4, -1e4)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Scores ``(rows, classes)`` in float64, labels, and a k that fits."""

    scores: Tensor
    labels: Tensor
    k: int

    @property
    def rows(self) -> list[tuple[list[float], int]]:
        return list(zip(self.scores.tolist(), self.labels.tolist(), strict=True))


# Made once, or each example checks strategies of its own.
_MODERATE, _EXTREME = (
    st.sampled_from(touchy) | st.floats(-5, 5) for touchy in (TOUCHY[:-4], TOUCHY)
)


@st.composite
def batches(draw: st.DrawFn, *, most_classes: int = 7, extreme: bool = True) -> Batch:
    """One to four rows of critical or ordinary scores."""
    rows = draw(st.integers(1, 4))
    classes = draw(st.integers(2, most_classes))
    score = _EXTREME if extreme else _MODERATE
    scores = draw(
        st.lists(st.lists(score, min_size=classes, max_size=classes), min_size=rows, max_size=rows)
    )
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    return Batch(
        scores=torch.tensor(scores, dtype=torch.float64),
        labels=torch.tensor(labels),
        k=draw(st.integers(1, classes - 1)),
    )

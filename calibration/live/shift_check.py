"""Did nothing but the class frequencies change? What logits without labels say about it.

Where only frequencies changed, the live photos are the validation photos weighted by class, so the
mean of anything one can measure of a photo is known beforehand: that of each class, averaged by
the new frequencies. Log sum exp and spread of the logits are two such things. Blur moves both, and
the scores, from which the frequencies are estimated, hold neither.
"""

from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.distribution import traits
from calibration.live.prior_shift import PriorShift

Floats = NDArray[np.float64]

UNLIKELY = 0.05
"""Below this a change of frequencies does not explain the traffic."""
TOLERANCE = 0.03
"""Gaps of so many standard deviations of a photo are the scores' own error and no evidence."""
FEWEST_A_CLASS = 10
"""Validation photos a class, on average, without which scores say too little of frequencies: with 9
and with 4 a correction lowered the hit rate under every change of frequencies tried."""


def likelihood_of_logits(
    logits: NDArray[Any], scores: Floats, shift: PriorShift, by_class: Floats
) -> float:
    """How likely traits as far off as these are, if nothing but the frequencies changed.

    A chi-squared test with two degrees of freedom of the mean traits. A validation photo stands
    for ``w = sum_j p_j new_j / old_j`` live ones; the error of the expected means is estimated from
    the live photos, on which the mean of any ``f`` is that of ``w f`` on validation photos.

    Args:
        logits: Of the live photos, as the network gives them, shape ``(rows, classes)``.
        scores: Their softmax scores that ``shift`` was estimated from, same shape.
        shift: The change of frequencies; ``old_rows`` says how many photos are behind ``by_class``.
        by_class: Mean traits of the photos of each class, shape ``(classes, 2)``.

    Returns:
        A probability; too high, if anything, since the frequencies were fitted to these photos.
    """
    found = traits(logits)  # (rows, 2)
    off = found - shift.new_prior @ by_class
    weights = scores @ (shift.new_prior / shift.old_prior)  # (rows,)
    expected_error = 0.0 if shift.old_rows is None else (off.T * weights) @ off / shift.old_rows
    spread = np.cov(found.T)
    variance = spread * (1 / len(found) + TOLERANCE**2) + expected_error / len(found)
    gap = off.mean(axis=0)
    return exp(-float(gap @ np.linalg.pinv(variance) @ gap) / 2)

"""Judging requests: suspect or not."""

import numpy as np
import pytest

from calibration.rejection import METHODS, suspect_threshold
from calibration.verdict import Rejection

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(0, 2, (400, 12)).astype(np.float32)


def rejection(method: str = "max_score", threshold: float = 0.5) -> Rejection:
    return Rejection(
        method=method, threshold=threshold, share=0.1, rows=400, head="h", score_kind="softmax"
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_photo_is_judged_by_its_familiarity(method: str) -> None:
    values = METHODS[method](LOGITS, "softmax")
    judge = rejection(method, suspect_threshold(values, 0.1))
    verdicts = [judge.verdict(row[np.newaxis]) for row in LOGITS]
    assert [value for value, _ in verdicts] == values.tolist()
    assert sum(suspect for _, suspect in verdicts) == 40


def test_a_request_is_suspect_only_where_every_photo_is() -> None:
    values = METHODS["max_score"](LOGITS, "softmax")
    judge = rejection(threshold=float(np.median(values)))
    order = np.argsort(values)
    low, high = LOGITS[order[:3]], LOGITS[order[-1:]]
    assert judge.verdict(low) == (values[order[2]], True)
    assert judge.verdict(np.concatenate([low, high])) == (values[order[-1]], False)


def test_a_photo_at_the_threshold_is_not_suspect() -> None:
    value = float(METHODS["max_score"](LOGITS[:1], "softmax")[0])
    assert rejection(threshold=value).verdict(LOGITS[:1]) == (value, False)


@pytest.mark.parametrize(
    ("method", "threshold", "message"),
    [("guess", 0.5, "method"), ("energy", float("nan"), "threshold")],
)
def test_what_cannot_judge_is_refused(method: str, threshold: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rejection(method, threshold)


def test_no_photo_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one photo"):
        rejection().verdict(LOGITS[:0])

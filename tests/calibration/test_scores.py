"""Scores from logits."""

import numpy as np
import pytest

from florilege.calibration.scores import SCORE_KINDS, ScoreKind, scores


@pytest.mark.parametrize("kind", SCORE_KINDS)
@pytest.mark.parametrize("classes", [1, 2, 7, 85, 1081])
def test_a_row_scores_alone_as_in_a_batch_of_any_memory_order_bit_for_bit(
    kind: ScoreKind, classes: int
) -> None:
    logits = np.random.default_rng(0).normal(0, 5, (37, classes)).astype(np.float32)
    together = scores(logits, kind)
    alone = np.concatenate([scores(row[np.newaxis], kind) for row in logits])
    assert together.tobytes() == alone.tobytes()
    assert scores(np.asfortranarray(logits), kind).tobytes() == together.tobytes()


def test_softmax_keeps_the_ratios_and_sigmoid_is_one_half_at_zero_and_symmetric() -> None:
    result = scores([[0.0, np.log(2.0), np.log(5.0)]], "softmax")
    assert result == pytest.approx(np.array([[0.125, 0.25, 0.625]]))
    result = scores([[0.0, 2.0, -2.0]], "sigmoid")
    assert result[0, 0] == 0.5
    assert result[0, 1] == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert result[0, 1] + result[0, 2] == pytest.approx(1.0)


@pytest.mark.parametrize("kind", SCORE_KINDS)
def test_extreme_logits_neither_overflow_nor_warn(kind: ScoreKind) -> None:
    result = scores([[1e4, -1e4, 0.0]], kind)
    assert np.isfinite(result).all()
    assert result[0, 0] == 1.0
    assert result[0, 1] == 0.0


def test_scores_come_in_double_precision_from_half_precision_logits() -> None:
    result = scores(np.array([[1, 2]], dtype=np.float16), "softmax")
    assert result.dtype == np.float64
    assert result[0, 1] == pytest.approx(1 / (1 + np.exp(-1.0)), rel=1e-15)


def test_minus_infinity_is_a_class_that_cannot_be() -> None:
    assert scores([[0.0, -np.inf]], "softmax").tolist() == [[1.0, 0.0]]
    assert scores([[0.0, -np.inf], [-np.inf, 0.0]], "sigmoid").tolist() == [[0.5, 0.0], [0.0, 0.5]]
    assert scores([[-np.inf, -np.inf]], "sigmoid").tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("logits", "kind", "message"),
    [
        *(([[0.0, 1.0], [bad, 1.0]], kind, "row 1") for bad in (np.nan, np.inf)
          for kind in SCORE_KINDS),
        ([[0.0, 1.0], [-np.inf, -np.inf]], "softmax", "got -inf as the largest of row 1"),
        ([[0.0]], "hardmax", "softmax, sigmoid"),
        ([0.0, 1.0], "softmax", "shape"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(logits: list[float], kind: ScoreKind, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scores(logits, kind)

"""The benchmark of tails: what a hit counts, what val chooses, and what a method is ahead by."""

import numpy as np
import pytest

from benchmarks.rules import tails
from benchmarks.rules.tails import PLAIN, Candidate, World, lines, photo_weights, table


def test_hits_count_by_photo_by_species_or_between() -> None:
    labels = np.array([0, 0, 0, 2])  # species 1 has no photo
    np.testing.assert_allclose(photo_weights(labels, 0.0), 1 / 4)
    np.testing.assert_allclose(photo_weights(labels, 1.0), [1 / 6, 1 / 6, 1 / 6, 1 / 2])
    np.testing.assert_allclose(photo_weights(labels, 0.5), [5 / 24, 5 / 24, 5 / 24, 3 / 8])


def test_val_chooses_and_test_is_compared_with_plain_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tails, "KS", (1.0,))
    random, classes = np.random.default_rng(0), 4
    labels = {part: random.integers(0, classes, 400) for part in ("val", "test")}
    noise = {part: random.random((400, classes)) for part in labels}
    right = {part: np.eye(classes)[labels[part]] for part in labels}

    def candidate(name: str, val: float, test: float) -> Candidate:
        values = (strength * right[part] + noise[part] for part, strength in
                  (("val", val), ("test", test)))  # fmt: skip
        return Candidate(name, *(scores / scores.sum(1, keepdims=True) for scores in values))

    plain = [candidate("good on val", 2.0, 0.5), candidate("good on test", 0.5, 2.0)]
    world = World("data", labels, np.full(classes, 10), {
        PLAIN: plain, "better": [candidate("best", 3.0, 3.0)],
    })  # fmt: skip
    rows = [dict(zip(tails.HEAD, line, strict=True)) for line in lines(world)]
    assert [row["method"] for row in rows] == [PLAIN, "better"] * 3
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        assert ours["chosen"].startswith("good on val")
        assert (ours["ahead"], theirs["aim"]) == ("0.0", "100.0")
        gap = float(theirs["aim"]) - float(ours["aim"])
        assert float(theirs["ahead"]) == pytest.approx(gap, abs=0.11)
        assert gap > 2 * float(theirs["error"]) > 0
    assert table(rows).splitlines()[2].startswith("| data | 1 | better | ")

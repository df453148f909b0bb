"""Differences between methods are paired over seeds and photos."""

from pathlib import Path

import numpy as np

from benchmarks.sets.heads_ahead import EVERY, lines, table


def test_methods_are_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    base = random.random((4, 500)) < 0.8
    for data in ("a", "b"):
        for seed in ("100", "101"):
            np.save(tmp_path / f"{data}+plain+0.4+{seed}+clean.npy", base)
        better = base.copy()
        better[1, :20] = True  # at K = 2
        gain = (better[1] ^ base[1]).mean()
        np.save(tmp_path / f"{data}+ours+0.4+101+clean.npy", better)
    rows = list(lines(tmp_path, "plain"))
    assert [(row["data"], row["seeds"]) for row in rows] == [("a", "1"), ("b", "1"), (EVERY, "")]
    for row in rows:
        assert row["ahead_2"] == f"{100 * gain:+.2f}"
        assert float(row["ahead_2_low"]) < 100 * gain < float(row["ahead_2_high"])
        assert row["ahead_3"] == row["ahead_3_low"] == row["ahead_3_high"] == "+0.00"
    first, *others = [float(row["ahead_2_high"]) for row in rows]
    assert others[1] < max(first, others[0])  # the mean of two sets is known better
    assert table(rows).splitlines()[2].startswith("| `ours` | a |  | +")

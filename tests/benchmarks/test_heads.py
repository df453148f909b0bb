"""The benchmark of heads measures a loss, one with the discriminant, and the blend."""

import numpy as np
import pytest

from benchmarks import heads
from tests.benchmarks.small import NOISE, bench


@pytest.fixture(autouse=True)
def _few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "DECAYS", (1e-3,))
    monkeypatch.setattr(heads, "RATES", (0.1, 0.03))
    monkeypatch.setattr(heads, "BATCH", 32)


def test_every_kind_of_row_has_its_place_in_the_tables() -> None:
    ours, names = bench(), ("cross_entropy", "two_head_average_k", "cross_entropy+lda", "blend")
    rows = [ours.measure(name, noise, 2) for noise in (0.0, NOISE) for name in names]
    for row in rows:
        assert np.shape(row["average_k"]) == np.shape(row["top_k"]) == (2, len(heads.SIZES))
        assert row["average_k"][0][2] > 60  # far from 3 of 8 by chance
    printed = heads.tables(rows)
    assert all(printed.count(f"| `{name}` |") == 3 for name in names)
    assert "| `blend`, `cross_entropy` | " in printed
    assert "sharpness" in printed


def test_no_method_trains_for_longer_than_another(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = list[int]()

    def count(*_: object, epochs: int, **__: object) -> None:
        trained.append(epochs)

    monkeypatch.setattr(heads, "train", count)
    ours = bench(epochs=4)
    ours.measure("cross_entropy", 0.0, 1)
    assert set(trained) == {4}
    trained.clear()
    ours.measure("blend", 0.0, 1)
    assert set(trained) == {2}
    assert len(heads.MEMBERS) == 2

"""What a calibration is asked for, with few classes and with many."""

import pytest

from calibration.offline.settings import Plan


@pytest.mark.parametrize(
    ("classes", "ks", "end", "steps", "largest_set"),
    [
        (1, (1.0,), 1.0, 1, 1),
        (2, (1.0, 2.0), 2.0, 11, 2),
        (3, (1.0, 2.0, 3.0), 3.0, 21, 3),
        (20, (1.0, 2.0, 3.0, 5.0, 10.0), 20.0, 191, 20),
        (21, (1.0, 2.0, 3.0, 5.0, 10.0), 20.0, 191, 21),
        (51, (1.0, 2.0, 3.0, 5.0, 10.0), 20.0, 191, 50),
        (10_000, (1.0, 2.0, 3.0, 5.0, 10.0), 20.0, 191, 50),
    ],
)
def test_the_grid_and_the_largest_set_end_where_classes_do(
    classes: int, ks: tuple[float, ...], end: float, steps: int, largest_set: int
) -> None:
    found = Plan(classes=classes)
    assert found.ks == ks
    assert (found.grid[0], found.grid[-1], len(found.grid)) == (1.0, end, steps)
    assert found.largest_set == largest_set
    assert found.default_k == (3.0 if classes >= 3 else 1.0)


@pytest.mark.parametrize(("k", "largest_set"), [(24.9, 50), (25.5, 51), (40.0, 80), (60.0, 100)])
def test_a_large_k_widens_the_grid_and_the_largest_set(k: float, largest_set: int) -> None:
    found = Plan(classes=100, ks=(k,))
    assert found.grid[-2:] == (20.0, k)
    assert found.largest_set == largest_set

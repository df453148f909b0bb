import numpy as np
import pytest

from florilege.training.batches.rng import uniforms


def test_a_row_draws_the_same_numbers_in_any_company() -> None:
    alone = uniforms(1, 2, np.array([7]), 5)
    among = uniforms(1, 2, np.array([3, 7, 9]), 5)
    np.testing.assert_array_equal(alone[0], among[1])


@pytest.mark.parametrize("other", [(2, 2, 7), (1, 3, 7), (1, 2, 8), (2, 1, 7)])
def test_seed_epoch_and_row_each_change_the_numbers(other: tuple[int, int, int]) -> None:
    seed, epoch, row = other
    same = uniforms(1, 2, np.array([7]), 8) == uniforms(seed, epoch, np.array([row]), 8)
    assert not same.any()


def test_the_numbers_are_uniform_and_independent_of_each_other() -> None:
    result = uniforms(0, 0, np.arange(20_000), 6)
    assert result.min() >= 0
    assert result.max() < 1
    for column in result.T:
        counts = np.histogram(column, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi-square, 19 degrees of freedom
    correlations = np.asarray(np.corrcoef(result.T))[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 0.035
    neighbours = np.asarray(np.corrcoef(result[:-1, 0], result[1:, 0]))
    assert abs(neighbours[0, 1]) < 0.035


def test_the_first_numbers_never_change() -> None:
    # a run resumed with a later version must draw what the earlier one did
    result = uniforms(0, 0, np.array([0, 1]), 2)
    np.testing.assert_array_equal(result, FIRST)


FIRST = [[0.049920065672091285, 0.6703283700586791], [0.9614260094755819, 0.6915822581101866]]

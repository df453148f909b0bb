"""Class weights of the balanced rules."""

import numpy as np
import pytest

from calibration.rules.balance import class_weights


def test_weights_run_from_one_to_the_inverse_of_the_prior() -> None:
    assert class_weights([1, 4, 5], 1.0).tolist() == [1.0, 1.0, 1.0]
    assert class_weights([1, 4, 5], 0.0) == pytest.approx(np.array([10 / 3, 10 / 12, 10 / 15]))
    assert class_weights([1, 4, 5]) == pytest.approx((1 + class_weights([1, 4, 5], 0.0)) / 2)


def test_equal_counts_weigh_one_whatever_the_share() -> None:
    assert class_weights([7, 7], 0.3) == pytest.approx(np.ones(2))


def test_a_class_without_images_counts_as_one_with_one() -> None:
    assert (class_weights([0, 3], 0.0) == class_weights([1, 3], 0.0)).all()


@pytest.mark.parametrize("micro_weight", [-0.1, 1.1, np.nan])
def test_a_share_out_of_range_is_refused(micro_weight: float) -> None:
    with pytest.raises(ValueError, match=r"micro_weight must be in \[0, 1\]"):
        class_weights([1], micro_weight)

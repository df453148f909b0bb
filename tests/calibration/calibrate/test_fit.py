from florilege.calibration.calibrate.fit import comparable


def test_a_pair_whose_ties_swell_its_sets_is_not_compared_by_its_hits() -> None:
    assert comparable([3.0, 38.1, 3.1], 3.0) == [0, 2]


def test_where_all_are_swollen_the_least_swollen_is_left() -> None:
    assert comparable([85.0, 12.0, 38.1], 3.0) == [1]

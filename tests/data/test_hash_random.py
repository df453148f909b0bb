from florilege.data.options import fraction, shuffled


def test_an_order_is_the_same_for_ever() -> None:
    assert shuffled("abcdef", 0) == ["f", "d", "a", "c", "b", "e"]


def test_another_seed_gives_another_order_of_the_same_keys() -> None:
    keys = [str(number) for number in range(100)]
    assert sorted(shuffled(keys, 1)) == sorted(keys)
    assert shuffled(keys, 1) != shuffled(keys, 2)
    assert shuffled(reversed(keys), 1) == shuffled(keys, 1)


def test_fractions_fill_the_unit_interval_evenly() -> None:
    draws = [fraction(str(number), 3) for number in range(2000)]
    assert all(0 <= value < 1 for value in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.03  # five standard errors
    assert fraction("a", 0) != fraction("a", 1)

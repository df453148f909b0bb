"""The random order of photos."""

from florilege.data.options import shuffled
from florilege.label_review.photo_order import _random_rows


def test_a_sample_does_not_prefer_what_an_option_of_the_data_drew() -> None:
    # `hold_out` takes the first photos of each class: in that order, all of the large class lead.
    large = shuffled((f"large/{number}.jpg" for number in range(2000)), 0)[:20]
    names = [*large, *(f"small/{number}.jpg" for number in range(20))]
    first = [names[row] for row in _random_rows(names, 0)[:20]]
    assert 5 <= sum(name.startswith("large") for name in first) <= 15

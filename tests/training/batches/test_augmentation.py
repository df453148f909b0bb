import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from florilege.training.batches.augmentation import (
    DRAWS,
    _crop_box,
    _recoloured,
    _resized,
    _rotated,
    _shifted,
    augment,
    cut_mixed,
    mixed,
)
from florilege.training.config import AugmentConfig, Border

PLAIN: dict[str, Any] = {"min_area": 1.0, "max_stretch": 1.0, "flip": 0.0}
HALVES = [0.5] * DRAWS


def _picture(height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("setting", "draw", "view"),
    [
        ("flip", 4, np.fliplr),
        ("flip_vertical", 5, np.flipud),
        ("transpose", 12, lambda picture: picture.transpose(1, 0, 2)),
    ],
)
def test_a_picture_is_mirrored_below_the_probability_only(
    setting: str, draw: int, view: Any
) -> None:
    picture = _picture(8, 8)
    config = AugmentConfig(**{**PLAIN, setting: 0.5})
    below = [0.499 if number == draw else 0.5 for number in range(DRAWS)]
    np.testing.assert_array_equal(augment(picture, 8, config, below), view(picture))
    np.testing.assert_array_equal(augment(picture, 8, config, HALVES), picture)


def test_flips_and_transposition_give_all_eight_views() -> None:
    picture = _picture(4, 4)
    config = AugmentConfig(**{**PLAIN, "flip": 0.5}, flip_vertical=0.5, transpose=0.5)
    views = {
        augment(picture, 4, config, [*HALVES[:4], a, b, *HALVES[6:12], c]).tobytes()
        for a in (0.1, 0.9)
        for b in (0.1, 0.9)
        for c in (0.1, 0.9)
    }
    turns = [np.rot90(picture, k) for k in range(4)]
    assert views == {view.tobytes() for turn in turns for view in (turn, turn[:, ::-1])}


@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.floats(0.05, 1),
    st.floats(0, 1),
    st.floats(1, 3),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4),
)
def test_a_crop_lies_inside_the_picture(
    width: int, height: int, low: float, above: float, stretch: float, draws: list[float]
) -> None:
    config = AugmentConfig(
        min_area=low, max_area=min(1.0, low + above * (1 - low)), max_stretch=stretch
    )
    left, top, right, bottom = _crop_box(width, height, config, draws)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_a_crop_has_the_area_and_shape_it_was_drawn() -> None:
    config = AugmentConfig(min_area=0.25, max_area=0.75, max_stretch=4.0)
    left, top, right, bottom = _crop_box(400, 100, config, [0.0, 1.0, 0.0, 0.5])
    assert (right - left) * (bottom - top) == pytest.approx(0.25 * 100 * 100)
    assert (right - left) / (bottom - top) == pytest.approx(4.0)
    assert left == 0
    assert (top + bottom) / 2 == pytest.approx(50)
    left, top, right, bottom = _crop_box(100, 100, config, [1.0, 0.5, 1.0, 0.0])
    assert right - left == pytest.approx(100 * math.sqrt(0.75))
    assert (right, top) == (100, 0)


def test_a_resized_part_is_that_part() -> None:
    picture = _picture(12, 16)
    np.testing.assert_array_equal(_resized(picture, (3.0, 2.0, 11.0, 10.0), 8), picture[2:10, 3:11])


def test_a_shift_moves_down_and_right_and_reflects_the_border() -> None:
    picture = _picture(6, 6)
    moved = _shifted(picture, 2, 1)
    np.testing.assert_array_equal(moved[2:, 1:], picture[:-2, :-1])
    np.testing.assert_array_equal(moved[2:, 0], picture[:-2, 1])
    np.testing.assert_array_equal(_shifted(picture, 0, 0), picture)
    np.testing.assert_array_equal(_shifted(picture, -1, 0)[:-1], picture[1:])


@pytest.mark.parametrize("border", ["reflected", "black"])
def test_each_shift_between_its_limits_is_as_likely(border: Border) -> None:
    picture = _picture(9, 9)
    config = AugmentConfig(**PLAIN, shift=2, border=border)
    for step, draw in enumerate([0.0, 0.19, 0.2, 0.39, 0.4, 0.59, 0.6, 0.79, 0.8, 0.999]):
        down, right = step // 2 - 2, 2 - step // 2
        moved = augment(picture, 9, config, [*HALVES[:6], draw, 0.999 - draw, *HALVES[8:]])
        np.testing.assert_array_equal(moved, _shifted(picture, down, right, border))


@pytest.mark.parametrize(("down", "right"), [(2, 1), (-2, 0), (0, -1), (1, -2)])
def test_a_black_shift_is_the_random_crop_of_a_picture_padded_with_zeros(
    down: int, right: int
) -> None:
    picture = _picture(6, 6)
    padded = np.zeros((10, 10, 3), dtype=np.uint8)
    padded[2:8, 2:8] = picture
    cropped = padded[2 - down : 8 - down, 2 - right : 8 - right]
    np.testing.assert_array_equal(_shifted(picture, down, right, "black"), cropped)


def test_a_rotation_leaves_black_corners_only_if_the_border_is_black() -> None:
    white = np.full((20, 20, 3), 255, dtype=np.uint8)
    assert _rotated(white, 45.0).min() == 255
    turned = _rotated(white, 45.0, "black")
    assert turned[0, 0].max() == 0
    assert turned[10, 10].min() == 255
    config = AugmentConfig(**PLAIN, rotate=90.0, border="black")
    np.testing.assert_array_equal(
        augment(white, 20, config, [*HALVES[:8], 0.75, *HALVES[9:]]), turned
    )


def test_the_rotation_spans_its_range_both_ways() -> None:
    picture = _picture(20, 20)
    config = AugmentConfig(**PLAIN, rotate=90.0)
    left = augment(picture, 20, config, [*HALVES[:8], 1.0, *HALVES[9:]])
    right = augment(picture, 20, config, [*HALVES[:8], 0.0, *HALVES[9:]])
    np.testing.assert_array_equal(augment(picture, 20, config, HALVES), picture)
    np.testing.assert_array_equal(left, np.rot90(picture))
    np.testing.assert_array_equal(right, np.rot90(picture, -1))


def test_brightness_contrast_and_saturation_are_scaled() -> None:
    grey = np.full((4, 4, 3), 100, dtype=np.uint8)
    assert _recoloured(grey, [1.5, 1.0, 1.0]).mean() == pytest.approx(150, abs=1)
    picture = _picture(10, 10)
    assert _recoloured(picture, [1.0, 0.5, 1.0]).std() < 0.6 * picture.std()
    flat = _recoloured(picture, [1.0, 1.0, 0.0])
    assert (flat[..., 0] == flat[..., 1]).all()
    np.testing.assert_array_equal(_recoloured(picture, [1.0, 1.0, 1.0]), picture)


def test_colour_changes_are_centred_on_no_change() -> None:
    picture = _picture(8, 8)
    config = AugmentConfig(**PLAIN, colour=0.5)
    np.testing.assert_array_equal(augment(picture, 8, config, HALVES), picture)
    dark = augment(picture, 8, config, [*HALVES[:9], 0.0, *HALVES[10:]])
    assert dark.mean() == pytest.approx(picture.mean() / 2, abs=1.5)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=DRAWS, max_size=DRAWS))
def test_any_draw_gives_a_picture_of_the_requested_size(draws: list[float]) -> None:
    config = AugmentConfig(
        min_area=0.1, max_stretch=2.0, flip_vertical=0.5, shift=9, rotate=180.0, colour=0.9
    )
    view = augment(_picture(9, 14), 7, config, draws)
    assert view.shape == (7, 7, 3)
    assert view.dtype == np.uint8


def _mixed(size: int, alpha: float, *seed: int) -> tuple[float, torch.Tensor]:
    """The share of each picture itself and the partners, from pictures that show their number."""
    images, labels = torch.eye(size), torch.arange(size)
    images, targets = mixed(images, labels, alpha, classes=size, seed=seed)
    assert torch.equal(images, targets)  # in the same shares
    assert torch.allclose(targets.sum(1), torch.ones(size))
    rest = targets - torch.eye(size) * targets.diagonal().min()
    return float(targets.diagonal().min()), rest.argmax(1)


def test_a_batch_is_mixed_alike_whenever_it_comes() -> None:
    one, again = (_mixed(8, 0.4, 3, 1, 5) for _ in range(2))
    assert one[0] == again[0]
    assert torch.equal(one[1], again[1])
    others = [_mixed(8, 0.4, *place)[0] for place in ((4, 1, 5), (3, 2, 5), (3, 1, 6))]
    assert one[0] not in others


def test_partners_are_each_picture_once() -> None:
    assert sorted(_mixed(9, 1.0, 0, 0, 0)[1].tolist()) == list(range(9))


def test_shares_are_those_of_the_beta_distribution() -> None:
    pair, labels, shares = torch.zeros(2, 1), torch.tensor([0, 1]), list[float]()
    for batch in range(4000):
        _, targets = mixed(pair, labels, 0.4, classes=2, seed=(0, 0, batch))
        if targets[0, 0] < 1 or targets[1, 0] > 0:  # partners of each other, not of themselves
            shares.append(float(targets[0, 0]))
    assert len(shares) > 1500
    assert abs(np.mean(shares) - 0.5) < 0.03
    assert abs(np.var(shares) - 1 / (4 * (2 * 0.4 + 1))) < 0.01  # of Beta(a, a)


def test_pictures_are_mixed_as_numbers_beyond_a_byte() -> None:
    images, labels = torch.tensor([[200], [250]], dtype=torch.uint8), torch.tensor([0, 1])
    images, targets = mixed(images, labels, 5.0, classes=2, seed=(0, 0, 1))
    assert images[:, 0].tolist() == pytest.approx((targets @ torch.tensor([200.0, 250.0])).tolist())


def test_randaugment_depends_on_its_number_alone() -> None:
    picture, config = _picture(24, 24), AugmentConfig(**PLAIN, randaugment=2, magnitude=20)

    def view(number: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return augment(picture, 24, config, [*HALVES[:13], number])

    state = torch.get_rng_state()
    views = [view(number / 8) for number in range(8)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all((view(number / 8) == each).all() for number, each in enumerate(views))
    assert len({each.tobytes() for each in views}) > 4
    assert {each.shape for each in views} == {(24, 24, 3)}


def test_cutmix_teaches_each_picture_by_its_share() -> None:
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 16, 12, 3).contiguous()
    labels = torch.tensor([0, 1, 2, 3])
    shares = set()
    for number in range(6):
        mixed, targets = cut_mixed(images, labels, 1.0, classes=5, seed=(0, 0, number))
        assert mixed.shape == images.shape
        for row in range(4):
            own = float((mixed[row, :, :, 0] == row).float().mean())
            partner = float((mixed[row, :, :, 0] == (row - 1) % 4).float().mean())
            assert own + partner == pytest.approx(1)
            assert float(targets[row, row]) == pytest.approx(own)
            assert float(targets[row, (row - 1) % 4]) == pytest.approx(partner)
        shares.add(float(targets[0, 0]))
        again, _ = cut_mixed(images, labels, 1.0, classes=5, seed=(0, 0, number))
        assert torch.equal(again, mixed)
    assert len(shares) > 3

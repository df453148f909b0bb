"""Simple rules recognise the traits in the pixels, without a network or training on labels."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.data.flora.posterior import HIDDEN, TRAITS
from florilege.data.flora.renderer import (
    BERRIES,
    CREAM,
    CRIMSON,
    GREEN,
    PETALS,
    RADII,
    SCALE,
    SIDE,
    SIZES,
    _bell_shape,
    _leaf_shapes,
    _petal_shapes,
    _trumpet_shape,
    draw,
    organ_places,
)

Picture = NDArray[np.uint8]
Mask = NDArray[np.bool_]
NONE = HIDDEN


def _draw(observed: Sequence[int], seed: int) -> Picture:
    return draw(observed, np.random.default_rng((9, seed)))


def _nearest(picture: Picture, palette: Sequence[tuple[int, int, int]]) -> NDArray[np.int64]:
    """Index of the nearest colour of each pixel, or -1 if none is near."""
    away = picture[:, :, None].astype(np.int64) - np.array(palette)
    squares = np.einsum("...c,...c", away, away)
    return np.where(squares.min(axis=-1) < 48**2, squares.argmin(axis=-1), -1)


def _organ(picture: Picture) -> Mask:
    """Pixels unlike the surroundings: far in colour from the picture's border."""
    border = np.concatenate([picture[0], picture[:-6, 0], picture[:-6, -1]]).astype(float)
    away = picture - np.median(border, axis=0)
    near = np.einsum("...c,...c", away, away) > 62**2
    # A pixel between green and cream can look like the surroundings: it belongs to the organ.
    return np.asarray(near | (_between(near) & _between(near.T).T))


def _between(mask: Mask) -> Mask:
    """Pixels between two pixels of the mask in their row."""
    before = np.maximum.accumulate(mask, axis=1)
    after = np.maximum.accumulate(mask[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(before & after)


def _shape(mask: Mask, rings: int = 6, turns: int = 32) -> NDArray[np.float64]:
    """A description of a shape that is invariant to place, size and rotation."""
    y, x = np.nonzero(mask)
    x0, y0 = x.mean(), y.mean()
    radius = np.quantile(np.hypot(x - x0, y - y0), 0.97)
    rho = (np.arange(rings) + 0.5)[:, None] / rings * radius * 1.05
    angle = np.arange(turns) * 2 * np.pi / turns
    px = np.clip(np.round(x0 + rho * np.cos(angle)), 0, SIDE - 1).astype(int)
    py = np.clip(np.round(y0 + rho * np.sin(angle)), 0, SIDE - 1).astype(int)
    waves = np.abs(np.fft.rfft(mask[py, px].astype(float), axis=1))
    return np.asarray(waves[:, :10].ravel() / turns)


@pytest.mark.parametrize("form", [*range(len(TRAITS["petal_form"])), NONE])
def test_the_colour_of_a_flower_or_berries_is_that_of_most_of_their_pixels(form: int) -> None:
    colours, organ, seeds = (BERRIES, "fruit", 40) if form == NONE else (PETALS, "flower", 12)
    palette = [colours[name] for name in TRAITS[organ]]
    for colour in range(len(palette)):
        flower, fruit = (NONE, colour) if form == NONE else (colour, NONE)
        observed = (form, flower, NONE, NONE, fruit)
        for seed in range(seeds):
            result = _nearest(_draw(observed, seed), palette)
            assert np.bincount(result[result >= 0]).argmax() == colour


@pytest.mark.parametrize("form", range(len(TRAITS["leaf_form"])))
def test_the_pattern_of_a_leaf_shows_in_its_colours(form: int) -> None:
    palette = [GREEN, CREAM, CRIMSON]
    for seed in range(25):
        pictures = (_draw((NONE, NONE, form, pattern, NONE), seed) for pattern in range(4))
        plain, margined, spotted, veined = (
            np.bincount(1 + _nearest(picture, palette).ravel(), minlength=4)[1:]
            for picture in pictures
        )
        assert plain[1] == plain[2] == margined[2] == spotted[2] == veined[1] == 0
        assert min(margined[1], spotted[1]) >= 4
        assert veined[2] >= 4


def _share_read(known: NDArray[np.float64], fresh: NDArray[np.float64]) -> float:
    """Share of the new shapes whose nearest known shape is of the same kind.

    Both have shape ``(kinds, drawings, features)``.
    """
    kinds, examples, _ = known.shape
    distance = np.linalg.norm(fresh[:, :, None] - known.reshape(kinds * examples, -1), axis=-1)
    read = distance.argmin(axis=-1) // examples
    return float((read == np.arange(kinds)[:, None]).mean())


def _shapes(organs: Sequence[Sequence[int]], seeds: range) -> NDArray[np.float64]:
    return np.array([[_shape(_organ(_draw(organ, seed))) for seed in seeds] for organ in organs])


@pytest.mark.parametrize("colour", range(0, len(TRAITS["flower"]), 2))
def test_the_form_of_petals_is_that_of_the_nearest_example(colour: int) -> None:
    organs = [(form, colour, NONE, NONE, NONE) for form in range(len(TRAITS["petal_form"]))]
    assert _share_read(_shapes(organs, range(40)), _shapes(organs, range(100, 115))) > 0.9


@pytest.mark.parametrize("pattern", range(len(TRAITS["leaf"])))
def test_the_form_of_a_leaf_is_that_of_the_nearest_example(pattern: int) -> None:
    organs = [(NONE, NONE, form, pattern, NONE) for form in range(len(TRAITS["leaf_form"]))]
    assert _share_read(_shapes(organs, range(40)), _shapes(organs, range(100, 115))) > 0.8


@pytest.mark.parametrize("form", range(len(TRAITS["leaf_form"])))
def test_a_pale_margin_and_pale_spots_are_told_apart(form: int) -> None:
    """Classify by the share of pale pixels with green on both sides, along a row or column."""

    def inside(pattern: int, seed: int) -> list[float]:
        result = _nearest(_draw((NONE, NONE, form, pattern, NONE), seed), [GREEN, CREAM])
        counts = []
        for view in (result, result.T):
            enclosed = (view == 1) & _between(view == 0)
            counts.append(float(enclosed.sum() / (view == 1).sum()))
        return counts

    reference = np.array([[inside(pattern, seed) for seed in range(40)] for pattern in (1, 2)])
    fresh = np.array([[inside(pattern, seed) for seed in range(100, 120)] for pattern in (1, 2)])
    assert _share_read(reference, fresh) > 0.9


def test_equal_traits_and_equal_chance_give_equal_pictures_and_chance_changes_them() -> None:
    first, again, other = (_draw((0, 1, 2, 3, 4), seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (np.abs(first.astype(int) - other).mean(axis=-1) > 10).mean() > 0.2


@pytest.mark.parametrize("visible", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]])
def test_organs_lie_inside_and_apart(visible: list[int]) -> None:
    chance = np.random.default_rng(4)
    places = np.array([organ_places(visible, chance) for _ in range(3000)]) / SCALE
    middles, radii = places[..., :2], places[..., 2]  # of each organ of each picture
    assert np.all(middles.min(axis=-1) >= radii)
    assert np.all(SIDE - middles.max(axis=-1) >= radii)
    assert np.all(radii >= [RADII[kind] * SIZES[len(visible)][0] for kind in visible])
    for one in range(len(visible)):
        for other in range(one):
            gaps = np.hypot(*(middles[:, one] - middles[:, other]).T)
            assert np.all(gaps > radii[:, one] + radii[:, other])


def test_every_outline_stays_in_its_circle() -> None:
    outlines = [petal for petal, _, _ in _petal_shapes().values()]
    outlines += [*_bell_shape()[:2], _trumpet_shape()[0]]
    for leaf in _leaf_shapes().values():
        outlines += [*leaf.blades, *leaf.veins, leaf.spots]
    assert max(np.hypot(*outline.T).max() for outline in outlines) < 1.04


def test_a_picture_without_organs_shows_no_organ() -> None:
    palette = [PETALS["red"], BERRIES["white"], CREAM, CRIMSON, PETALS["blue"]]
    for seed in range(30):
        assert np.all(_nearest(_draw((NONE,) * 5, seed), palette) < 0)

"""Drawings of the flora large enough for a page: the same organs at the same places.

The 48 pixels that the network sees are the large drawing, averaged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from florilege.data.flora.renderer import SCALE, SIDE, Brush, Colour, Points, background, draw_plant

SIDES = 720  # pixels of each side of a large drawing
_FINER = 2  # it is drawn this much larger, then averaged
_FACTOR = SIDES * _FINER / (SIDE * SCALE)
_BLUR = 0.06  # of the side: surroundings are out of focus
_VIGNETTE = 0.16  # how much darker the corners are
_THIN = 0.6  # veins as thick as in the small drawing would leave the leaf


@dataclass(frozen=True)
class _LargeBrush(Brush):
    """Draws what a brush draws, ``_FACTOR`` times larger."""

    def polygon(self, points: Points, fill: Colour, edge: Colour | None = None) -> None:
        outline = (points * _FACTOR).ravel().tolist()
        self.canvas.polygon(outline, fill=fill, outline=edge, width=round(0.7 * _FACTOR))

    def line(self, points: Points, fill: Colour, width: int) -> None:
        drawn = (points * _FACTOR).ravel().tolist()
        self.canvas.line(drawn, fill=fill, width=round(_THIN * width * _FACTOR), joint="curve")

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        super().disc(x * _FACTOR, y * _FACTOR, radius * _FACTOR, fill)


def large_drawing(observed: Sequence[int], seed: int) -> Image.Image:
    """The picture of visible traits, as `draw` of the flora makes it, in ``SIDES`` pixels."""
    chance = np.random.default_rng(seed)
    ground, large = background(chance), (SIDES * _FINER,) * 2
    picture = ground.resize(large, Image.Resampling.BICUBIC)
    picture = picture.filter(ImageFilter.GaussianBlur(_BLUR * SIDES))
    draw_plant(_LargeBrush(ImageDraw.Draw(picture), chance), observed, chance)
    return _under_light(picture.reduce(_FINER))


def _under_light(picture: Image.Image) -> Image.Image:
    """Darker towards the corners, as a lens makes it."""
    across = np.linspace(-1.0, 1.0, SIDES)
    distance = across[:, None] ** 2 + across**2
    lit = np.asarray(picture, dtype=np.float64) * (1 - _VIGNETTE * distance / 2)[..., None]
    return Image.fromarray(lit.clip(0, 255).astype(np.uint8))

"""Pictures like those of the flora, of organs that it does not have.

Ground, light, stems, places and noise are the flora's own; only the shape at the end of the
stems is new. So a network can tell by the organ alone.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import ImageDraw

from florilege.data.flora.renderer import (
    SCALE,
    Brush,
    background,
    draw_stems,
    organ_places,
    under_light,
)

Colour = tuple[int, int, int]
Draw = Callable[[Brush, float, float, float], None]

CAPS: tuple[Colour, ...] = ((176, 58, 40), (150, 104, 64), (214, 190, 150))
WINGS: tuple[Colour, ...] = ((232, 140, 40), (90, 150, 210), (240, 232, 210))


def mushroom(brush: Brush, x: float, y: float, radius: float) -> None:
    """A cap on a thick pale foot, with or without dots."""
    cap = CAPS[brush.chance.integers(len(CAPS))]
    foot = (236, 228, 206)
    brush.canvas.rectangle((x - radius / 5, y, x + radius / 5, y + radius), fill=foot)
    box = (x - radius, y - 0.8 * radius, x + radius, y + 0.8 * radius)
    brush.canvas.pieslice(box, 180, 360, fill=cap)
    if brush.chance.random() < 0.5:
        for dot in (-0.5, 0.0, 0.5):
            brush.disc(x + dot * radius, y - (0.5 - abs(dot) / 2) * radius, radius / 9, foot)


def cone(brush: Brush, x: float, y: float, radius: float) -> None:
    """The brown cone of a conifer, in rows of scales."""
    for row in np.linspace(-0.8, 0.8, 6):
        half = 0.55 * radius * np.sqrt(1 - 0.8 * row * row)
        for scale in np.linspace(-half, half, 3):
            brush.disc(x + scale, y + row * radius, 0.24 * radius, (92, 58, 34))
            brush.disc(x + scale, y + row * radius - 1, 0.16 * radius, (150, 104, 66))


def butterfly(brush: Brush, x: float, y: float, radius: float) -> None:
    """Four wings and a dark body."""
    wing = WINGS[brush.chance.integers(len(WINGS))]
    for across in (-1, 1):
        for down, size in ((-0.35, 0.55), (0.45, 0.38)):
            centre_x, centre_y = x + across * 0.5 * radius, y + down * radius
            brush.disc(centre_x, centre_y, size * radius, (40, 34, 30))
            brush.disc(centre_x, centre_y, (size - 0.12) * radius, wing)
    brush.canvas.ellipse(
        (x - 0.1 * radius, y - 0.8 * radius, x + 0.1 * radius, y + 0.8 * radius), fill=(30, 26, 24)
    )


STRANGERS: Mapping[str, Draw] = {"mushroom": mushroom, "cone": cone, "butterfly": butterfly}
"""What is drawn, by name."""


def stranger(kind: str, seed: int) -> NDArray[np.uint8]:
    """One picture with one to three such organs and nothing else.

    Args:
        kind: A name in :data:`STRANGERS`.
        seed: The picture's own, 0 or more.

    Returns:
        The picture, uint8, shape ``(48, 48, 3)``, RGB.
    """
    chance = np.random.default_rng((seed, list(STRANGERS).index(kind), 99))
    picture = background(chance)
    brush = Brush(ImageDraw.Draw(picture), chance)
    places = organ_places(range(int(chance.integers(1, 4))), chance)
    draw_stems(brush, places)
    for x, y, radius in places:
        STRANGERS[kind](brush, x, y, radius)
    return under_light(picture.reduce(SCALE), chance)

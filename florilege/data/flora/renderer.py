"""Draw one picture of the flora, 48 x 48, antialiased.

A picture depends only on the visible traits and chance, not on the species. Organs never touch
each other and stems pass behind them, so every visible trait is recognisable.
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from florilege.data.flora.organs import Brush, draw_flower, draw_fruit, draw_leaf
from florilege.data.flora.posterior import HIDDEN

SIDE = 48  # pixels
SCALE = 3  # pictures are drawn this much larger, then averaged
NOISE = 3.5  # standard deviation, of 255

RADII = (10.2, 10.2, 6.4)  # flower, leaf, fruit: pixels from the centre to the outermost point
# Range of sizes by the number of visible organs: fewer organs are larger.
SIZES = {1: (1.1, 1.6), 2: (0.95, 1.2), 3: (0.9, 1.05)}
_CORNERS = np.array([[12.0, 12.0], [36.0, 12.0], [12.0, 36.0], [36.0, 36.0]])

# Out-of-focus surroundings: muted and of medium lightness, so that white and black both contrast.
_GROUNDS = np.array(
    [[134, 156, 92], [184, 166, 116], [124, 156, 172], [160, 138, 114], [154, 176, 132]],
    dtype=np.float64,
)

_ACROSS = np.linspace(-1.0, 1.0, SIDE, dtype=np.float32)
_T = np.linspace(0.0, 1.0, 9)
_BEND = np.stack([(1 - _T) ** 2, 2 * _T * (1 - _T), _T**2], axis=1)  # quadratic Bezier, (9, 3)


def draw(observed: Sequence[int], rng: np.random.Generator) -> NDArray[np.uint8]:
    """The picture of visible traits, uint8, shape ``(48, 48, 3)``, RGB.

    ``observed`` holds five trait values as in `florilege.data.flora.posterior`, -1 where hidden;
    ``rng`` gives place, size, rotation, background, light and noise.
    """
    picture = background(rng)
    draw_plant(Brush(ImageDraw.Draw(picture), rng), observed, rng)
    return under_light(picture.reduce(SCALE), rng)


def draw_plant(brush: Brush, observed: Sequence[int], rng: np.random.Generator) -> None:
    """Draw stems and visible organs; ``observed`` and ``rng`` as for :func:`draw`."""
    petal_form, flower, leaf_form, leaf, fruit = observed
    visible = [kind for kind, value in enumerate((flower, leaf, fruit)) if value != HIDDEN]
    places = organ_places(visible, rng)
    draw_stems(brush, places)
    for kind, (x, y, radius) in zip(visible, places, strict=True):
        if kind == 0:
            draw_flower(brush, x, y, radius, petal_form, flower)
        elif kind == 1:
            draw_leaf(brush, x, y, radius, leaf_form, leaf)
        else:
            draw_fruit(brush, x, y, radius, fruit)


def background(rng: np.random.Generator) -> Image.Image:
    """Soft spots in the colours of the ground, ``SIDE * SCALE`` pixels square."""
    few = rng.dirichlet([0.6] * len(_GROUNDS))  # below 1, so that a few grounds dominate a picture
    mix = 0.6 * few + 0.4 * rng.dirichlet([1.0] * len(_GROUNDS), size=(3, 3))
    spots = mix @ _GROUNDS + rng.normal(0.0, 5.0, size=(3, 3, 1))
    small = Image.fromarray(spots.clip(0, 255).astype(np.uint8))
    fine = small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return fine.resize((SIDE * SCALE, SIDE * SCALE), Image.Resampling.NEAREST)


def organ_places(visible: Sequence[int], rng: np.random.Generator) -> list[list[float]]:
    """Centre and radius of each visible organ in enlarged pixels, without overlap."""
    if not visible:
        return []
    size = rng.uniform(*SIZES[len(visible)], size=len(visible))
    radii = np.array([RADII[kind] for kind in visible]) * size
    tries = rng.random((40, len(visible), 2))
    centres = radii[:, None] + 0.5 + tries * (SIDE - 1 - 2 * radii[:, None])  # (tries, organs, 2)
    apart = np.ones(len(tries), dtype=np.bool_)
    for one in range(len(visible)):
        for other in range(one):
            gap = np.hypot(*(centres[:, one] - centres[:, other]).T)
            apart &= gap > radii[one] + radii[other] + 0.5
    if apart.any():
        positions = centres[int(np.argmax(apart))]
    else:
        positions = _CORNERS[rng.permutation(4)[: len(visible)]]
        radii = np.minimum(radii, 11.5)
    placed: list[list[float]] = (SCALE * np.column_stack([positions, radii])).tolist()
    return placed


def draw_stems(brush: Brush, places: Sequence[Sequence[float]]) -> None:
    """Draw thin stems from the lower edge to each organ; without organs, a bare twig."""
    rng = brush.chance
    low = SIDE * SCALE
    foot = low * rng.uniform(0.3, 0.7)
    ends = [(x, y) for x, y, _ in places] or [
        (low * rng.uniform(0.2, 0.8), low * rng.uniform(0.1, 0.5)) for _ in range(2)
    ]
    shade = rng.uniform(0.85, 1.1)
    colour = (int(98 * shade), int(112 * shade), int(62 * shade))
    for x, y in ends:
        bend = (foot + 0.2 * (x - foot), y + 0.35 * (low - y))
        brush.line(_BEND @ np.array([(foot, low + 4.0), bend, (x, y)]), colour, 3)


def under_light(picture: Image.Image, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The picture under uneven, faintly tinted light, with noise."""
    slope = rng.uniform(-0.07, 0.07, size=2).astype(np.float32)
    shade = rng.uniform(0.92, 1.08) + slope[0] * _ACROSS[:, None] + slope[1] * _ACROSS
    tint = rng.uniform(0.96, 1.04, size=3).astype(np.float32)
    noise = rng.standard_normal((SIDE, SIDE, 3), dtype=np.float32)
    lit = np.asarray(picture, dtype=np.float32) * shade[..., None].astype(np.float32) * tint
    lit += NOISE * noise
    finished: NDArray[np.uint8] = lit.clip(0, 255).astype(np.uint8)
    return finished


_COLOUR = (8, 2, 0, 0, 0)  # bits a channel, RGB, deflate, filtered, not interlaced


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file that decodes to exactly ``picture``.

    Raises:
        ValueError: It is not uint8 of shape ``(height, width, 3)``, RGB, with at least one pixel.

    Example:
        >>> encode_png(np.zeros((2, 2, 3), dtype=np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(f"picture must have shape (height, width, 3), got {picture.shape}")
    if picture.dtype != np.uint8:
        raise ValueError(f"picture must be uint8, got {picture.dtype}")
    height, width, _ = picture.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # a leading 0 means unfiltered
    lines[:, 1:] = picture.reshape(height, -1)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">II5B", width, height, *_COLOUR)),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), level=0)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A PNG chunk: length, kind, content, checksum."""
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum

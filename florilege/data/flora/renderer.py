"""Draw one picture of the flora, 48 x 48, antialiased: flowers, leaves and fruits on stems.

Organs are polygons in a unit circle, rotated, scaled and coloured. A picture depends only on the
visible traits and chance, not on the species. Organs never touch each other and stems pass behind
them, so every visible trait is recognisable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from florilege.data.flora.posterior import HIDDEN, TRAITS

Colour = tuple[int, int, int]
Points = NDArray[np.float64]  # (points, 2): x to the right, y down

PETALS: dict[str, Colour] = {
    "white": (250, 249, 244),
    "yellow": (252, 216, 44),
    "red": (214, 30, 42),
    "pink": (246, 150, 192),
    "violet": (138, 66, 186),
    "blue": (66, 106, 226),
}
BERRIES: dict[str, Colour] = {
    "red": (206, 26, 34),
    "orange": (244, 132, 24),
    "yellow": (248, 222, 66),
    "black": (44, 32, 58),
    "white": (246, 244, 236),
}
GREEN: Colour = (62, 138, 46)
CREAM: Colour = (244, 238, 190)
CRIMSON: Colour = (186, 22, 58)
_GOLD: Colour = (232, 170, 36)
_BROWN: Colour = (122, 72, 30)
_EDGE = 0.72  # lightness of the edge of a petal


@dataclass(frozen=True)
class Brush:
    """Draws organs on an enlarged picture; ``chance`` gives rotation and jitter."""

    canvas: ImageDraw.ImageDraw
    chance: np.random.Generator

    def polygon(self, points: Points, fill: Colour, edge: Colour | None = None) -> None:
        self.canvas.polygon(points.ravel().tolist(), fill=fill, outline=edge)

    def line(self, points: Points, fill: Colour, width: int) -> None:
        """Draw a line through the points, ``width`` enlarged pixels wide."""
        self.canvas.line(points.ravel().tolist(), fill=fill, width=width, joint="curve")

    def disc(self, x: float, y: float, radius: float, fill: Colour) -> None:
        self.canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)


def _draw_flower(brush: Brush, x: float, y: float, radius: float, form: int, colour: int) -> None:
    """Draw a flower with this petal form and colour inside a circle."""
    name, fill = TRAITS["petal_form"][form], PETALS[TRAITS["flower"][colour]]
    if name == "bell":
        _bell(brush, x, y, radius, fill)
    elif name == "trumpet":
        _trumpet(brush, x, y, radius, fill)
    else:
        _petals(brush, x, y, radius, fill, name)


def _draw_leaf(brush: Brush, x: float, y: float, radius: float, form: int, pattern: int) -> None:
    """Draw a leaf with this form and pattern inside a circle."""
    turn = _turn(brush.chance.uniform(0, 2 * np.pi))
    green = _shade(GREEN, brush.chance.uniform(0.88, 1.12))
    name = TRAITS["leaf"][pattern]
    shape = _leaf_shapes()[TRAITS["leaf_form"][form]]
    place = _placing(x, y, turn * radius)
    for blade in shape.blades:
        if name == "margined":
            brush.polygon(place(blade), CREAM)
            centre = blade.mean(axis=0)
            brush.polygon(place(centre + shape.inner * (blade - centre)), green)
        else:
            brush.polygon(place(blade), green, _shade(green, 0.7))
    vein = CRIMSON if name == "red-veined" else _shade(green, 0.72)
    for line in shape.veins:
        brush.line(place(line), vein, 4 if name == "red-veined" else 2)
    if name == "spotted":
        for spot in place(shape.spots):
            brush.disc(spot[0], spot[1], 0.105 * radius, CREAM)


def _draw_fruit(brush: Brush, x: float, y: float, radius: float, colour: int) -> None:
    """Draw three berries in this colour inside a circle."""
    fill = BERRIES[TRAITS["fruit"][colour]]
    r, g, b = (int(channel + (255 - channel) * 0.75) for channel in fill)
    angles = brush.chance.uniform(0, 2 * np.pi) + 2 * np.pi / 3 * np.arange(3)
    centres = [(x + 0.5 * radius * np.cos(a), y + 0.5 * radius * np.sin(a)) for a in angles]
    for berry in centres:
        brush.line(np.array([[x, y - 0.1 * radius], berry]), _shade(GREEN, 0.6), 3)
    for bx, by in centres:
        brush.disc(bx, by, 0.48 * radius, _shade(fill, 0.6))
        brush.disc(bx, by, 0.42 * radius, fill)
        brush.disc(bx - 0.14 * radius, by - 0.16 * radius, 0.1 * radius, (r, g, b))


def _petals(brush: Brush, x: float, y: float, radius: float, fill: Colour, name: str) -> None:
    """Separate petals around a golden centre."""
    petal, count, eye = _petal_shapes()[name]
    start = brush.chance.uniform(0, 2 * np.pi)
    jitter = brush.chance.uniform(-1, 1, size=(count, 2))
    angles = start + (np.arange(count) + 0.12 * jitter[:, 0]) * (2 * np.pi / count)
    lengths = radius * (0.95 + 0.05 * jitter[:, 1])
    for angle, length in zip(angles, lengths, strict=True):
        brush.polygon(petal @ _turn(angle) * length + (x, y), fill, _shade(fill, _EDGE))
    brush.disc(x, y, eye * radius, _BROWN)
    brush.disc(x, y, 0.78 * eye * radius, _GOLD)


def _bell(brush: Brush, x: float, y: float, radius: float, fill: Colour) -> None:
    """A bell seen from the side, hanging straight or tilted."""
    place = _placing(x, y, _turn(brush.chance.uniform(-0.9, 0.9)) * radius)
    body, mouth, ribs, cap = _bell_shape()
    brush.polygon(place(mouth), _shade(fill, 0.62))
    brush.polygon(place(body), fill, _shade(fill, _EDGE))
    for rib in ribs:
        brush.line(place(rib), _shade(fill, _EDGE), 2)
    brush.polygon(place(cap), _shade(GREEN, 0.8))


def _trumpet(brush: Brush, x: float, y: float, radius: float, fill: Colour) -> None:
    """One wavy disc with a deep throat."""
    place = _placing(x, y, _turn(brush.chance.uniform(0, 2 * np.pi)) * radius)
    rim, rays = _trumpet_shape()
    brush.polygon(place(rim), fill, _shade(fill, _EDGE))
    for ray in rays:
        brush.line(place(ray), _shade(fill, _EDGE), 2)
    brush.disc(x, y, 0.36 * radius, _shade(fill, 0.42))
    brush.disc(x, y, 0.13 * radius, CREAM)


def _placing(x: float, y: float, matrix: Points) -> Callable[[Points], Points]:
    """The function that maps unit coordinates to picture coordinates."""
    return lambda points: points @ matrix + (x, y)


@cache
def _petal_shapes() -> dict[str, tuple[Points, int, float]]:
    """By petal form: a petal that points right, the number of petals, the radius of the centre."""
    t = np.linspace(0, 2 * np.pi, 21)[:-1]
    rosette = _points(0.6 + 0.4 * np.cos(t), 0.34 * np.sin(t))
    star = _blade(0.05, 1.0, 0.2, 0.9)
    daisy = _points(0.6 + 0.4 * np.cos(t[::2]), 0.105 * np.sin(t[::2]))
    notch = 1 - 0.3 * np.exp(-((t - np.pi) ** 2) * 5)  # in the middle of the outer edge
    cross = _points(0.56 - 0.44 * np.cos(t) * notch, (0.3 - 0.08 * np.cos(t)) * np.sin(t))
    return {
        "rosette": (rosette, 5, 0.22),
        "star": (star, 6, 0.14),
        "daisy": (daisy, 13, 0.36),
        "cross": (cross, 4, 0.13),
    }


@cache
def _trumpet_shape() -> tuple[Points, list[Points]]:
    """The rim in the unit circle, and the rays inside it."""
    angle = np.linspace(0, 2 * np.pi, 41)[:-1]
    rim = 0.92 + 0.08 * np.cos(5 * angle)
    outline = rim[:, None] * _points(np.cos(angle), np.sin(angle))
    notches = np.pi / 5 * np.array([1, 3, 5, 7, 9])
    return outline, [np.outer([0.25, 0.8], [np.cos(a), np.sin(a)]) for a in notches]


@cache
def _bell_shape() -> tuple[Points, Points, list[Points], Points]:
    """Body, mouth, ribs and cap of a bell that hangs down, in the unit circle."""
    y = np.linspace(-0.8, 0.66, 10)
    half = 0.2 + 0.32 * np.sqrt((y + 0.8) / 1.46) + 0.2 * ((y + 0.8) / 1.46) ** 6
    lip_x = np.linspace(half[-1], -half[-1], 13)
    lip_y = 0.72 + 0.16 * np.abs(np.sin(1.5 * np.pi * (lip_x / half[-1] + 1)))
    body = np.concatenate([_points(half, y), _points(lip_x, lip_y), _points(-half, y)[::-1]])
    t = np.linspace(0, 2 * np.pi, 17)[:-1]
    mouth = _points(0.66 * np.cos(t), 0.7 + 0.12 * np.sin(t))
    ribs = [np.array([[s * 0.1, -0.6], [s * 0.18, 0.1], [s * 0.24, 0.72]]) for s in (-1, 1)]
    cap = np.array([[-0.26, -0.66], [-0.14, -0.95], [0.14, -0.95], [0.26, -0.66], [0.0, -0.5]])
    return body, mouth, ribs, cap


@dataclass(frozen=True)
class _Leaf:
    """The outlines of a leaf that points right, in the unit circle."""

    blades: tuple[Points, ...]
    veins: tuple[Points, ...]
    spots: Points
    inner: float  # share of the blade inside a pale margin


@cache
def _leaf_shapes() -> dict[str, _Leaf]:
    """Leaves by the name of their form, in the unit circle."""
    return {
        "ovate": _simple(_blade(-0.75, 1.0, 0.46, 0.62), 0.46, 0.66),
        "lance": _simple(_blade(-0.8, 1.0, 0.23, 0.8), 0.23, 0.6),
        "heart": _heart(),
        "lobed": _lobed(),
        "pinnate": _pinnate(),
    }


def _simple(blade: Points, half: float, inner: float) -> _Leaf:
    """One blade with side veins and spots that fit its half width."""
    veins = [np.array([[-1.0, 0.0], [0.85, 0.0]])]
    veins += [
        np.array([[x, 0.0], [x + 0.28, s * 0.68 * half]])
        for x, s in product((-0.45, -0.1, 0.25), (-1, 1))
    ]
    spots = [[x, s * 0.48 * half] for x, s in product((-0.4, -0.05, 0.3), (-1, 1))]
    return _Leaf((blade,), tuple(veins), np.array([*spots, [0.62, 0.0]]), inner)


def _heart() -> _Leaf:
    t = np.linspace(0, 2 * np.pi, 33)[:-1]
    x = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    y = 16 * np.sin(t) ** 3
    blade = _points(-x / 18.5 + 0.05, y / 18.5)
    veins = [np.array([[-0.85, 0.0], [0.85, 0.0]])]
    ends = ((-0.35, 0.6), (0.25, 0.48))
    veins += [np.array([[-0.3, 0.0], [x, s * y]]) for (x, y), s in product(ends, (-1, 1))]
    spots = ((-0.45, 0.38), (-0.1, 0.6), (0.0, 0.24), (0.38, 0.26))
    spots_of_both_sides = np.array([[x, s * y] for (x, y), s in product(spots, (-1, 1))])
    return _Leaf((blade,), tuple(veins), spots_of_both_sides, 0.7)


def _lobed() -> _Leaf:
    t = np.linspace(-np.pi, np.pi, 71)[:-1]
    radius = 0.62 + 0.38 * np.cos(5.6 * t) * np.exp(-((t / 2.6) ** 4))
    radius *= 1 - 0.45 * np.exp(-((np.abs(t) - np.pi) ** 2) * 6)
    blade = _points(radius * np.cos(t), radius * np.sin(t))
    lobes = 2 * np.pi / 5.6 * np.array([-2, -1, 0, 1, 2])
    veins = [np.outer([-0.1, 0.82], [np.cos(a), np.sin(a)]) for a in lobes]
    spots = [*_points(0.6 * np.cos(lobes), 0.6 * np.sin(lobes)), [-0.12, 0.2], [-0.12, -0.2]]
    return _Leaf((blade,), (np.array([[-1.0, 0.0], [0.0, 0.0]]), *veins), np.array(spots), 0.7)


def _pinnate() -> _Leaf:
    leaflet = _blade(0.0, 0.62, 0.19, 0.8)
    blades, middles = [leaflet @ _turn(0.0) + (0.38, 0.0)], [[0.62, 0.0]]
    veins = [np.array([[-1.0, 0.0], [0.85, 0.0]])]
    for x, angle in product((-0.55, -0.1, 0.35), (-1.05, 1.05)):
        c, s = np.cos(angle), np.sin(angle)
        blades.append(leaflet @ _turn(angle) + (x, 0.0))
        middles.append([x + 0.36 * c, 0.36 * s])
        veins.append(np.array([[x, 0.0], [x + 0.45 * c, 0.45 * s]]))
    return _Leaf(tuple(blades), tuple(veins), np.array(middles), 0.6)


def _blade(start: float, end: float, half: float, skew: float) -> Points:
    """A blade along x with a pointed tip; ``skew`` below 1 puts the widest part near the base."""
    u = np.linspace(0, 1, 12)
    upper = _points(start + (end - start) * u, half * np.sin(np.pi * u**skew))
    return np.concatenate([upper, upper[::-1] * (1, -1)])


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> Points:
    return np.stack([x, y], axis=1)


def _turn(angle: float) -> Points:
    """Matrix that rotates row vectors by ``angle`` from x towards y."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, s], [-s, c]])


def _shade(colour: Colour, factor: float) -> Colour:
    r, g, b = (min(255, int(channel * factor)) for channel in colour)
    return r, g, b


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
            _draw_flower(brush, x, y, radius, petal_form, flower)
        elif kind == 1:
            _draw_leaf(brush, x, y, radius, leaf_form, leaf)
        else:
            _draw_fruit(brush, x, y, radius, fruit)


def background(rng: np.random.Generator) -> Image.Image:
    """Soft spots in the colours of the ground, ``SIDE * SCALE`` pixels square."""
    # Below 1, so that a few grounds dominate a picture.
    few = rng.dirichlet([0.6] * len(_GROUNDS))
    mix = 0.6 * few + 0.4 * rng.dirichlet([1.0] * len(_GROUNDS), size=(3, 3))
    spots = mix @ _GROUNDS + rng.normal(0.0, 5.0, size=(3, 3, 1))
    small = Image.fromarray(spots.clip(0, 255).astype(np.uint8))
    fine = small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    # By whole pixels, which the average over `SCALE` pixels at the end gives back as they are.
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
        # The corners are 24 pixels apart and 12 from the edges: at this radius nothing touches.
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

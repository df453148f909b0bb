"""A contact sheet of the flora: its species genus by genus, and pictures with their true sets.

Run ``python -m benchmarks.figures.flora_sheet --out docs/images/flora-contact-sheet.png`` to draw
it anew.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from florilege.data.flora import Flora
from florilege.data.flora.posterior import (
    TRAITS,
    bayes_threshold,
    flora_classes,
    posterior_of,
    prior,
    species_traits,
)
from florilege.data.flora.renderer import SIDE, draw

ZOOM = 2
CELL = SIDE * ZOOM
MARGIN = 8
LABEL = 30  # height of the two lines of text under a picture
BLOCK = CELL + LABEL + 20  # height of a genus
LIST = 72  # height of a list of species
COLUMNS = 11  # pictures a line in the upper part: two genera, a large and a small one
SETS = 9  # pictures a line in the lower part
PAPER, INK, PALE = (252, 251, 247), (40, 46, 40), (120, 126, 118)
SHOWN_K = 3.0

Picture = NDArray[np.uint8]


def contact_sheet(flora: Flora, *, lines: int = 2) -> Image.Image:
    """Draw the sheet.

    The upper part shows every species with all its organs and its frequency; the lower part shows
    pictures of the test split, from clear to ambiguous, each with the set of the best rule of 3
    species on average: the posterior of each species in it, the true one marked with a star.

    Args:
        flora: Where the pictures of the lower part come from.
        lines: Lines of the lower part.
    """
    upper, lower = _species_part(flora), _sets_part(flora, lines)
    sheet = Image.new("RGB", (upper.width, upper.height + lower.height), PAPER)
    sheet.paste(upper, (0, 0))
    sheet.paste(lower, (0, upper.height))
    return sheet


def main(
    out: Annotated[Path, typer.Option(help="PNG file to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the flora.")] = 0,
) -> None:
    """Draw the contact sheet of the flora."""
    sheet = contact_sheet(Flora(seed))
    colours = sheet.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
    colours.save(out, optimize=True)
    typer.echo(f"{out}: {sheet.width} x {sheet.height}")


def _species_part(flora: Flora) -> Image.Image:
    """Two genera a line: from the front of the list on the left, from its end on the right."""
    sizes = np.bincount(species_traits()["genus"]).tolist()
    lines = len(sizes) // 2
    canvas, pen = _canvas(26 + lines * BLOCK)
    _text(pen, 0, 4, "85 invented species in 16 invented genera; share of the pictures", 14, INK)
    for index, size in enumerate(sizes):
        left = index < lines
        line = index if left else len(sizes) - 1 - index
        column = 0 if left else COLUMNS - size
        _genus(canvas, pen, flora, index, column * (CELL + MARGIN), 28 + line * BLOCK)
    return canvas


def _genus(
    canvas: Image.Image, pen: ImageDraw.ImageDraw, flora: Flora, index: int, x: int, y: int
) -> None:
    rows = np.flatnonzero(species_traits()["genus"] == index).tolist()
    traits = [species_traits()[name] for name in TRAITS]
    petal_form, _, leaf_form, *_ = (
        values[column[rows[0]]] for values, column in zip(TRAITS.values(), traits, strict=True)
    )
    name = flora_classes()[rows[0]].genus
    _text(pen, x, y, f"{name}: {petal_form} flowers, {leaf_form} leaves", 12, INK)
    for species in rows:
        organs = [int(column[species]) for column in traits]
        _paste(canvas, draw(organs, np.random.default_rng((flora.seed, species))), x, y + 16)
        epithet = flora_classes()[species].scientific_name.split()[1]
        _text(pen, x, y + 17 + CELL, epithet, 11, INK)
        _text(pen, x, y + 30 + CELL, f"{prior()[species]:.1%}", 10, PALE)
        x += CELL + MARGIN


def _sets_part(flora: Flora, lines: int) -> Image.Image:
    canvas, pen = _canvas(32 + lines * (CELL + LIST))
    title = (
        f"What a picture can tell: the best sets of {SHOWN_K:g} species on average, with the true "
        "P(species | picture); a star marks the species it is"
    )
    _text(pen, 0, 8, title, 14, INK)
    pitch = (canvas.width - MARGIN) // SETS
    for place, row in enumerate(_clear_to_ambiguous(flora, SETS * lines)):
        x, y = (place % SETS) * pitch, 32 + (place // SETS) * (CELL + LIST)
        _paste(canvas, flora.picture("test", row), x, y)
        for line, (text, colour) in enumerate(set_lines(flora, row)):
            _text(pen, x, y + CELL + 2 + 12 * line, text, 10, colour)
    return canvas


def _clear_to_ambiguous(flora: Flora, pictures: int) -> list[int]:
    """Rows of test, evenly spaced by the size of their sets."""
    sizes = (posterior_of(flora.observed("test")[:400]) >= bayes_threshold(SHOWN_K)).sum(axis=1)
    order = np.argsort(sizes, kind="stable")
    return [int(order[i]) for i in np.linspace(0, len(order) - 1, pictures).astype(int)]


def set_lines(flora: Flora, row: int, most: int = 4) -> Sequence[tuple[str, tuple[int, int, int]]]:
    """The set of one picture: a line a species, best first, then how many more."""
    posterior = posterior_of(flora.observed("test")[row : row + 1])[0]
    truth = int(flora.labels("test")[row])
    order = np.argsort(-posterior, kind="stable")
    inside = [int(s) for s in order if posterior[s] >= bayes_threshold(SHOWN_K)]
    lines = []
    for species in inside[:most]:
        genus, epithet = flora_classes()[species].scientific_name.split()
        mark = " *" if species == truth else ""
        text = f"{posterior[species]:.2f} {genus[:4]}. {epithet}{mark}"
        lines.append((text, INK if species == truth else PALE))
    if len(inside) > most:
        lines.append((f"and {len(inside) - most} more", PALE))
    return lines


def _canvas(height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    width = 2 * MARGIN + COLUMNS * (CELL + MARGIN) - MARGIN
    canvas = Image.new("RGB", (width, height), PAPER)
    return canvas, ImageDraw.Draw(canvas)


def _paste(canvas: Image.Image, picture: Picture, x: int, y: int) -> None:
    large = Image.fromarray(picture).resize((CELL, CELL), Image.Resampling.NEAREST)
    canvas.paste(large, (MARGIN + x, y))


def _text(
    pen: ImageDraw.ImageDraw, x: int, y: int, text: str, size: int, colour: tuple[int, int, int]
) -> None:
    pen.text((MARGIN + x, y), text, fill=colour, font=_font(size))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)  # Pillow's own, so that every machine draws the same


if __name__ == "__main__":
    typer.run(main)

"""The set of one ambiguous photo as K grows.

``python -m benchmarks.figures.set_growth BUNDLE SETS/grocery-plants/photos.csv`` draws
``docs/images/set-grows.svg`` with the bundle that ``benchmarks.figures.headline`` makes.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.figures.scored_photos import ScoredPhotos
from benchmarks.figures.svg import Svg

FILE = Path(__file__).parents[2] / "docs" / "images" / "set-grows.svg"
PHOTO = "test/Royal-Gala/Royal-Gala_010.jpg"
KS = (1.0, 2.0, 3.0, 5.0)
SIDE, LINE, TOP = 150, 66, 232
NAMES, COLUMNS, STEP = 96, 340, 62


def picture(photos: ScoredPhotos, name: str) -> str:
    """The photo, the classes of its largest set, and a column for each K."""
    row = photos.row(name)
    scores, truth = photos.scores[row], int(photos.labels[row])
    members = [photos.sets(k)[row] for k in KS]
    order = np.argsort(-scores)[: int(members[-1].sum())].tolist()
    svg = Svg()
    _heading(svg, photos, row)
    for place, label in enumerate(order):
        y = TOP + place * LINE
        svg.photo(24, y + 4, LINE - 8, photos.clearest(label))
        svg.text(NAMES, y + 30, photos.name(label), bold=label == truth)
        svg.text(NAMES, y + 53, f"{scores[label]:.3f}", size=17, colour="grey")
    bottom = TOP + len(order) * LINE
    for column, (k, inside) in enumerate(zip(KS, members, strict=True)):
        x, size = COLUMNS + column * STEP, int(inside.sum())
        svg.text(x + 25, TOP - 14, f"K = {k:g}", size=17, bold=True, anchor="middle")
        svg.rect(x, TOP + 4, 50, len(order) * LINE - 8, "grid", opacity=0.5)
        svg.rect(x, TOP + 4, 50, size * LINE - 8, "green", opacity=0.85)
        if inside[truth]:
            svg.check(x + 18, TOP + order.index(truth) * LINE + LINE / 2, "paper")
        svg.text(x + 25, bottom + 26, str(size), bold=True, anchor="middle")
        svg.text(x + 25, bottom + 56, f"{100 * photos.hit_rate(k):.0f} %", anchor="middle")
    svg.text(24, bottom + 26, "classes in this set")
    svg.text(24, bottom + 56, f"right sets, {len(photos.labels):,} photos")
    return svg.document(bottom + 80, "A larger K only adds classes to the set of a photo")


def _heading(svg: Svg, photos: ScoredPhotos, row: int) -> None:
    first, truth = (photos.name(int(n)) for n in (photos.scores[row].argmax(), photos.labels[row]))
    svg.photo(24, 24, SIDE, photos.split.read(row))
    svg.text(198, 66, "Which fruit is it?", size=21, bold=True)
    svg.text(198, 100, f"The first guess, {first}, is wrong.")
    svg.text(198, 128, f"It is a {truth}. The set has it")
    held = next(k for k in KS if photos.sets(k)[row, photos.labels[row]])
    svg.text(198, 156, f"from K = {held:g} on. A larger K only adds.")


def main(words: Sequence[str]) -> None:
    """Draw it."""
    bundle, data = map(Path, words)
    FILE.write_text(picture(ScoredPhotos.of(bundle, data), PHOTO), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

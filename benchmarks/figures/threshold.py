"""What the threshold does: scores of three photos, the cut, and the sizes of all sets.

``python -m benchmarks.figures.threshold BUNDLE SETS/grocery-plants/photos.csv`` draws
``docs/images/threshold.svg`` with the bundle that ``benchmarks.figures.headline`` makes.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.figures.scored_photos import ScoredPhotos
from benchmarks.figures.svg import WIDTH, Svg

FILE = Path(__file__).parents[2] / "docs" / "images" / "threshold.svg"
K = 3.0
PHOTOS = {
    "test/Pineapple/Pineapple_002.jpg": "a clear photo",
    "test/Satsumas/Satsumas_063.jpg": "look-alikes",
    "test/Conference/Conference_030.jpg": "a blurred photo",
}
SIDE, LINE, LEAST = 132, 29, 0.005  # scores below are drawn there
NAMES, AXIS, END = 184, 356, 512
BARS = 130  # height of the histogram


def picture(photos: ScoredPhotos, examples: dict[str, str]) -> str:
    """Each photo with its best classes, and how many sets have which size."""
    svg, cut = Svg(), photos.cut(K)
    svg.text(24, 40, f"One cut for all photos, K = {K:g}", size=21, bold=True)
    svg.text(WIDTH - 24, 40, "scores, log scale", size=17, colour="grey", anchor="end")
    top, y = 96.0, 96.0
    for name, words in examples.items():
        y = _photo(svg, photos, photos.row(name), words, y) + 26
    x = _at(cut)
    svg.path(f"M{x:g} {top - 12}V{y - 30}", "rust", width=3, dash="1 7")
    svg.text(
        x, top - 22, f"the cut: a score of {cut:.3f}", colour="rust", anchor="middle", bold=True
    )
    y = _sizes(svg, photos, y + 12)
    return svg.document(y, "A class is in the set of a photo if its score is above the cut")


def _at(score: float) -> float:
    """Where a score is on the axis, which is logarithmic."""
    return float(AXIS + (END - AXIS) * np.log(max(score, LEAST) / LEAST) / np.log(1 / LEAST))


def _photo(svg: Svg, photos: ScoredPhotos, row: int, words: str, y: float) -> float:
    """One photo with the classes of its set and the next below the cut; where it ends."""
    inside, scores = photos.sets(K)[row], photos.scores[row]
    size = int(inside.sum())
    shown = np.argsort(-scores)[: max(size + 2, 6)]
    svg.photo(24, y, SIDE, photos.split.read(row))
    svg.text(24, y + SIDE + 24, f"a set of {size}", size=20, bold=True, colour="green")
    svg.text(24, y + SIDE + 46, words, size=17, colour="grey")
    for place, label in enumerate(shown.tolist()):
        member, at, middle = bool(inside[label]), _at(scores[label]), y + 15 + place * LINE
        colour = "green" if member else "grey"
        svg.text(NAMES, middle + 6, photos.name(label), bold=member, colour=colour, size=17)
        svg.path(f"M{AXIS} {middle}H{at:g}", colour)
        svg.circle(at, middle, 6, colour)
        svg.text(
            WIDTH - 24, middle + 6, f"{scores[label]:.3f}", size=17, colour=colour, anchor="end"
        )
        if label == photos.labels[row]:
            svg.check(NAMES - 21, middle, "green")
    return y + max(SIDE + 50, len(shown) * LINE)


def _sizes(svg: Svg, photos: ScoredPhotos, y: float) -> float:
    """How many sets have which size; where it ends."""
    sizes = photos.sets(K).sum(axis=1)
    counts = np.bincount(sizes)[1:]
    rows, mean, hits = len(sizes), sizes.mean(), 100 * photos.hit_rate(K)
    svg.text(
        24, y + 8, f"The sets of {rows:,} photos: {mean:.2f} classes on average", bold=True, size=20
    )
    svg.text(24, y + 34, f"{hits:.1f} % of them hold the right one (marked above)")
    base, step = y + 76 + BARS, (WIDTH - 48) / len(counts)
    for size, count in enumerate(counts.tolist(), start=1):
        high, x = BARS * count / counts.max(), 24 + (size - 1) * step
        svg.rect(x + 4, base - high, step - 8, high, "green", radius=4, opacity=0.75)
        svg.text(x + step / 2, base - high - 7, str(count), size=17, anchor="middle", colour="grey")
        svg.text(x + step / 2, base + 24, str(size), anchor="middle")
    svg.text(WIDTH / 2, base + 50, "classes in the set", anchor="middle", colour="grey", size=17)
    return base + 68


def main(words: Sequence[str]) -> None:
    """Draw it."""
    bundle, data = map(Path, words)
    FILE.write_text(picture(ScoredPhotos.of(bundle, data), PHOTOS), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Hits on photos against hits on species, a line for each mean size, as a PNG.

``python -m benchmarks.figures.common_and_rare_curves FILE.png`` draws
``benchmarks/rules/common_and_rare.csv``.
"""

import csv
import sys
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.rules.common_and_rare import KS, OUT
from florilege.calibration.report.html_page import BLUE, GREEN, OCHRE, RUST, STYLE

COLOURS = dict(zip(KS, (RUST, OCHRE, BLUE, GREEN), strict=True))
NAMED = ("0", "0.5", "0.9", "1")  # weights that are written beside a line of each panel


def draw(axes: Axes, name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """One world."""
    for k, colour in COLOURS.items():
        of = [row for row in rows if float(row["K"]) == k and row["macro_weight"]]
        micro, macro = ([100 * float(row[each]) for row in of] for each in ("micro", "macro"))
        axes.plot(micro, macro, color=colour, marker="o", markersize=4, label=f"K = {k:g}")
        if k == KS[0]:
            for row, x, y in zip(of, micro, macro, strict=True):
                if row["macro_weight"] in NAMED:
                    axes.annotate(row["macro_weight"], (x, y), textcoords="offset points",
                                  xytext=(6, 3), fontsize=8, color=colour)  # fmt: skip
    axes.set_title(name, loc="left", fontsize=11)
    axes.set_xlabel("hit rate over photos (micro), %")


@mpl.rc_context(STYLE)
def picture(rows: Sequence[Mapping[str, str]]) -> Figure:
    """Both worlds side by side."""
    worlds = list(dict.fromkeys(row["species"] for row in rows))
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, len(worlds), squeeze=False)[0]
    for axes, name in zip(panels, worlds, strict=True):
        draw(axes, name, [row for row in rows if row["species"] == name])
    panels[0].set_ylabel("mean over species (macro), %")
    panels[-1].legend(loc="lower left", fontsize=9)
    return figure


if __name__ == "__main__":
    with OUT.open(newline="") as content:
        measured = list(csv.DictReader(content))
    picture(measured).savefig(sys.argv[1], dpi=90, facecolor="white")

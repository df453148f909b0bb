"""Macro coverage over the mean size of sets, a line for each rule or loss, as a PNG.

``python -m benchmarks.figures.front_curves FILE.png`` draws ``benchmarks/rules/front.csv``.
"""

import csv
import sys
from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.rules.front import EXACT, OURS, RESULT, Row
from benchmarks.rules.front_scores import INVENTED, LOSSES
from florilege.calibration.report.html_page import BLUE, GREEN, GREY, INK, OCHRE, RUST, STYLE

RULES: Final = {
    OURS: (GREEN, "-", "o"),
    "balanced_coverage": (GREEN, "--", "s"),
    "Interp-Q": (RUST, "-", "^"),
    "fuzzy, rarity": (OCHRE, "-", "v"),
    "fuzzy, genus": (OCHRE, "--", "D"),
    "fuzzy, class means": (OCHRE, ":", "P"),
    "MAPIE aps": (BLUE, "", "X"),
    "TorchCP rc3p": (BLUE, "", "*"),
    "TorchCP saps": (BLUE, "", "d"),
    "TorchCP raps": (BLUE, "", ">"),
    "coverage": (INK, "", "o"),
}
COLOURS: Final = dict(zip(LOSSES, (INK, OCHRE, BLUE, GREY, GREEN), strict=True))
WIDEST: Final = 16  # classes a set


def line(axes: Axes, rows: Sequence[Row], name: str, style: tuple[str, str, str]) -> None:
    """One rule, from small to large sets."""
    points = sorted((float(row["size"]), 100 * float(row["macro"])) for row in rows)
    if points:
        colour, stroke, marker = style
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=stroke, marker=marker,
                  markersize=4.5, linewidth=1.3, label=name)  # fmt: skip


def panel(axes: Axes, title: str, shown: Sequence[Row]) -> None:
    """Title and axes."""
    axes.set_title(title, fontsize=11)
    axes.set_xscale("log")
    sizes = [float(row["size"]) for row in shown if float(row["size"]) <= WIDEST]
    heights = [100 * float(row["macro"]) for row in shown if float(row["size"]) <= WIDEST]
    ticks = [tick for tick in (1, 1.5, 2, 3, 5, 8, 12) if min(sizes) * 0.9 <= tick <= max(sizes)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(min(sizes) * 0.93, max(sizes) * 1.05)
    axes.set_ylim(min(heights) - 1, max(heights) + 1)


@mpl.rc_context(STYLE)
def picture(rows: Sequence[Row]) -> Figure:
    """Rules above, with one loss; losses below, with two rules."""
    rows = [row for row in rows if row["part"] == "test" and row["coverage"] == "0.9"]
    figure = Figure(figsize=(11, 9), layout="constrained")
    panels = figure.subplots(2, 3)
    for axes, data in zip(panels[0], (INVENTED, "flora", "grocery-plants"), strict=True):
        loss = EXACT if data == "flora" else LOSSES[0]
        shown = [row for row in rows if (row["data"], row["loss"]) == (data, loss)]
        for name, style in RULES.items():
            line(axes, [row for row in shown if row["rule"] == name], name, style)
        panel(axes, f"{data}, {loss}", [row for row in shown if row["rule"] in RULES])
    for axes, data in zip(panels[1], (INVENTED, "caltech101-96", "grocery-plants"), strict=True):
        shown = [row for row in rows if row["data"] == data and row["loss"] in LOSSES]
        shown = [row for row in shown if row["rule"] in (OURS, "Interp-Q")]
        for loss, colour in COLOURS.items():
            for rule, stroke in ((OURS, "-"), ("Interp-Q", ":")):
                of = [row for row in shown if (row["loss"], row["rule"]) == (loss, rule)]
                line(axes, of, f"{loss}, {rule}", (colour, stroke, "o" if stroke == "-" else "^"))
        panel(axes, f"{data}, all losses", shown)
        axes.set_xlabel("classes in a set, mean")
    for axes in panels[:, 0]:
        axes.set_ylabel("macro coverage, %")
    places: tuple[Any, ...] = ("outside upper left", "outside lower left")
    for row, place in zip(panels, places, strict=True):
        pairs = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in row]
        by_name = {name: handle for each in pairs for handle, name in each}
        figure.legend(list(by_name.values()), list(by_name), loc=place, ncols=5, fontsize=8)
    return figure


if __name__ == "__main__":
    with RESULT.open(newline="") as content:
        measured = list(csv.DictReader(content))
    picture(measured).savefig(sys.argv[1], dpi=90, facecolor="white")

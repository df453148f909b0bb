"""Average-3 accuracy over the rate of label noise, a line for each method.

    python -m benchmarks.figures.noise_curves FILE.png heads.csv

Methods of ``NAMED`` have colours and labels, the others are thin and grey; sharpness is chosen on
val for all.
"""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from florilege.calibration.report.plot_style import BLUE, GREEN, INK, OCHRE, RUST, STYLE

NAMED: Final = {
    "blend": (INK, "-", "v"),
    "generalised_cross_entropy+lda": (GREEN, "-", "o"),
    "generalised_cross_entropy": (GREEN, "--", "o"),
    "cross_entropy+lda": (BLUE, "-", "s"),
    "cross_entropy": (BLUE, "--", "s"),
    "assume_negative": (OCHRE, "-.", "^"),
    "two_head_average_k": (RUST, ":", "D"),
}


def draw(axes: Axes, name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """One data set."""
    of = dict[str, dict[float, list[float]]]()
    for row in rows:
        by_noise = of.setdefault(row["method"], {})
        by_noise.setdefault(float(row["noise"]), []).append(float(row["average_3"]))
    lines = {
        method: [(noise, float(np.mean(by_noise[noise]))) for noise in sorted(by_noise)]
        for method, by_noise in of.items()
    }
    for method, points in lines.items():
        if method in NAMED:
            colour, line, marker = NAMED[method]
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, marker=marker,
                      label=method, markersize=4, zorder=3)  # fmt: skip
        else:
            axes.plot(*zip(*points, strict=True), color="#b9c2bd", linewidth=0.8, zorder=1)
    heights = [height for method in NAMED for _, height in lines.get(method, [])]
    room = 0.12 * (max(heights) - min(heights))
    axes.set_ylim(min(heights) - room, max(heights) + room)
    axes.set_title(name, loc="left", fontsize=11)
    axes.set_xlabel("noise rate within groups")
    axes.set_xticks(sorted({float(row["noise"]) for row in rows}))


@mpl.rc_context(STYLE)
def picture(rows: Sequence[Mapping[str, str]]) -> Figure:
    """All data sets side by side."""
    rows = [row for row in rows if (row["decays"], row["sharpened"]) == ("1", "1")]
    sets = list(dict.fromkeys(row["data"] for row in rows))
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False)[0]
    for axes, name in zip(panels, sets, strict=True):
        draw(axes, name, [row for row in rows if row["data"] == name])
    panels[0].set_ylabel("average-3 accuracy on clean test photos, %")
    handles, labels = panels[0].get_legend_handles_labels()
    order = [labels.index(name) for name in NAMED if name in labels]
    figure.legend([handles[i] for i in order], [labels[i] for i in order],
                  loc="outside upper left", ncols=3, fontsize=9)  # fmt: skip
    return figure


if __name__ == "__main__":
    file, table = sys.argv[1:]
    with Path(table).open(newline="") as content:
        measured = list(csv.DictReader(content))
    picture(measured).savefig(file, dpi=110, facecolor="white")

"""Average-3 accuracy over the rate of label noise, a line for each loss, from ``benchmarks.heads``.

    python -m benchmarks.noise_picture FILE.png NAME=FOLDER [NAME=FOLDER ...]

FOLDER is what ``benchmarks.heads --out`` filled. Losses of ``NAMED`` have colours and labels, the
others are thin and grey.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibration.offline.drawing import BLUE, GREEN, INK, OCHRE, RUST, STYLE

NAMED: Final = {
    "blend": (INK, "-", "v"),
    "generalised_cross_entropy+lda": (GREEN, "-", "o"),
    "generalised_cross_entropy": (GREEN, "--", "o"),
    "cross_entropy+lda": (BLUE, "-", "s"),
    "cross_entropy": (BLUE, "--", "s"),
    "assume_negative": (OCHRE, "-.", "^"),
    "two_head_average_k": (RUST, ":", "D"),
}
AT: Final = 2  # the place of K = 3 in the figures


def draw(axes: Axes, name: str, rows: list[dict[str, Any]]) -> None:
    """One data set."""
    for loss in dict.fromkeys(row["loss"] for row in rows):
        points = sorted(
            (row["noise"], float(np.mean(row["average_k"], axis=0)[AT]))
            for row in rows
            if row["loss"] == loss
        )
        noise, accuracy = zip(*points, strict=True)
        if loss in NAMED:
            colour, line, marker = NAMED[loss]
            axes.plot(noise, accuracy, color=colour, linestyle=line, marker=marker, label=loss,
                      markersize=4, zorder=3)  # fmt: skip
        elif len(points) > 1:
            axes.plot(noise, accuracy, color="#b9c2bd", linewidth=0.8, zorder=1)
    best = max(float(np.mean(row["average_k"], axis=0)[AT]) for row in rows)
    low = min(float(np.mean(r["average_k"], axis=0)[AT]) for r in rows if r["loss"] in NAMED)
    axes.set_ylim(low - 0.15 * (best - low), best + 0.1 * (best - low))
    axes.set_title(name, loc="left", fontsize=11)
    axes.set_xlabel("noise rate within groups")
    axes.set_xticks(sorted({row["noise"] for row in rows}))


@mpl.rc_context(STYLE)
def picture(sets: dict[str, Path]) -> Figure:
    """All data sets side by side."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False)[0]
    for axes, (name, folder) in zip(panels, sets.items(), strict=True):
        lines = (folder / "results.jsonl").read_text().splitlines()
        draw(axes, name, [json.loads(line) for line in lines])
    panels[0].set_ylabel("average-3 accuracy on clean test photos, %")
    handles, labels = panels[0].get_legend_handles_labels()
    order = [labels.index(name) for name in NAMED if name in labels]
    figure.legend([handles[i] for i in order], [labels[i] for i in order],
                  loc="outside upper left", ncols=3, fontsize=9)  # fmt: skip
    return figure


if __name__ == "__main__":
    file, *given = sys.argv[1:]
    picture({name: Path(folder) for name, folder in (item.split("=") for item in given)}).savefig(
        file, dpi=110, facecolor="white"
    )

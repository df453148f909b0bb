"""The style of plots; needs matplotlib, the extra ``report``."""

from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS: Final = {
    "green": ("#1b6e53", "#63c6a1"),
    "rust": ("#b5542a", "#f2925f"),
    "blue": ("#4a5fa5", "#9fb2ff"),
    "ochre": ("#8a6d1f", "#dcbc5c"),
    "grey": ("#6b7671", "#9aa6a0"),
    "ink": ("#1d2a24", "#e4ebe7"),
    "grid": ("#d9e0dc", "#35423b"),
    "paper": ("#ffffff", "#141a17"),
}
"""Each colour on a light and on a dark page, by the name of its CSS variable."""
GREEN, RUST, BLUE, OCHRE, GREY, INK, GRID, PAPER = (light for light, _ in COLOURS.values())

STYLE: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlepad": 10,
    "axes.labelcolor": INK,
    "font.size": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "florilege",
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def panel(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """An empty plot for a page; call it, and draw into it, under :data:`STYLE`."""
    figure = Figure(figsize=(4.7, 3.2), layout="constrained")  # inches: legible on a phone
    axes = figure.subplots()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes

"""The style of plots, and plots as SVG for a page; needs matplotlib, the extra ``report``."""

import io
import re
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

GREEN: Final = "#1b6e53"
RUST: Final = "#b5542a"
BLUE: Final = "#4a5fa5"
OCHRE: Final = "#8a6d1f"
GREY: Final = "#6b7671"
INK: Final = "#1d2a24"
GRID: Final = "#d9e0dc"
PAPER: Final = "#ffffff"

ON_DARK: Final = {
    GREEN: "#63c6a1",
    RUST: "#f2925f",
    BLUE: "#9fb2ff",
    OCHRE: "#dcbc5c",
    GREY: "#9aa6a0",
    INK: "#e4ebe7",
    GRID: "#35423b",
    PAPER: "#141a17",
}
"""The replacement of each colour on a dark page."""

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
_PANEL: Final = (4.7, 3.2)  # inches: the width of a phone, so that text stays legible there


def panel(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """An empty plot for a page; call it, and draw into it, under :data:`STYLE`."""
    figure = Figure(figsize=_PANEL, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def inline(figure: Figure) -> str:
    """SVG to insert into a page, with text as text and the colours of :func:`variables`."""
    text = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.fonttype": "none"}):
        metadata = {"Date": None, "Creator": None}
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    svg = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])  # ids repeat in every plot
    for colour in ON_DARK:
        svg = svg.replace(colour, f"var({_variable(colour)})")
    return svg


def variables(*, dark: bool) -> str:
    """The colours as CSS variables."""
    return "".join(f"{_variable(name)}:{ON_DARK[name] if dark else name};" for name in ON_DARK)


def _variable(colour: str) -> str:
    names = {GREEN: "green", RUST: "rust", BLUE: "blue", OCHRE: "ochre", GREY: "grey", INK: "ink"}
    return f"--{ {**names, GRID: 'grid', PAPER: 'paper'}[colour] }"

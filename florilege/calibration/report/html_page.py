"""A report as one HTML file: sections of text, tables and plots, and the style of all plots.

The file loads nothing, runs no script, and follows the reader's light or dark colour scheme. Text
is escaped here; markup has the type :class:`Markup`.
"""

import html
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NewType

import matplotlib as mpl
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
    # Without it the ids inside a plot are random, and equal figures would give different files.
    "svg.hashsalt": "florilege",
    "text.color": INK,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def panel(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """An empty plot for a page; call it, and draw into it, under :data:`STYLE`."""
    figure = Figure(figsize=(4.7, 3.2), layout="constrained")  # inches: legible on a phone
    axes = figure.subplots()
    # Or the numbers depend on the room for them, and this on their width.
    axes.locator_params(axis="y", nbins=8)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


_PAD: Final = 4  # pixels around labels
Markup = NewType("Markup", str)  # HTML that is safe to insert into a page without escaping

_STYLE: Final = """
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 64rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .5rem; }
p { max-width: 44rem; margin: .5rem 0; }
small, figcaption, .quiet { color: var(--grey); font-size: .875rem; }
.side { display: grid; gap: 1rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: .8rem 0 0; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .94rem; margin: .6rem 0; }
td, th { padding: .3rem 0 .3rem clamp(.4rem, 2vw, 1.3rem); text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; }
td { white-space: nowrap; } th { font-weight: 600; vertical-align: bottom; }
td:first-child, th:first-child { padding-left: 0; text-align: left; white-space: normal; }
tr { border-bottom: 1px solid var(--grid); }
@media (max-width: 40rem) { table { font-size: .8rem; } }
pre { border: 1px solid var(--grid); border-radius: 6px; padding: 1rem; overflow-x: auto;
  font-size: .85rem; }
.photos { display: grid; gap: 1.2rem; margin: .8rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.photo { display: grid; grid-template-columns: 6.5rem 1fr; gap: .8rem; font-size: .875rem;
  line-height: 1.4; }
.photo > div { min-width: 0; overflow-wrap: anywhere; }
.photo img, .photo .missing { width: 6.5rem; height: 6.5rem; border-radius: 6px; }
.missing { border: 1px solid var(--grid); color: var(--grey); display: grid; place-items: center; }
.photo ol { margin: .2rem 0; padding-left: 1.3rem; }
"""


def page(title: str, sections: Iterable[Markup]) -> str:
    """The whole file."""
    heading = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>:root{{color-scheme:light dark;{_variables(dark=False)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(dark=True)}}}}}"
        f"{_STYLE}</style></head>\n<body><h1>{heading}</h1>\n{''.join(sections)}</body></html>\n"
    )


def section(title: str, *parts: Markup) -> Markup:
    """A heading and its content."""
    return Markup(f"<section><h2>{html.escape(title)}</h2>\n{''.join(parts)}</section>\n")


def words(text: str) -> Markup:
    """A paragraph."""
    return Markup(f"<p>{_text(text)}</p>\n")


def drawing(figure: Figure, caption: str) -> Markup:
    """A plot with its caption."""
    return Markup(
        f'<figure><div aria-hidden="true">{_svg(figure)}</div>'
        f"<figcaption>{_text(caption)}</figcaption></figure>\n"
    )


def side_by_side(*parts: Markup) -> Markup:
    """Parts beside each other if there is room, else below each other."""
    return Markup(f'<div class="side">{"".join(parts)}</div>\n')


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table with text in the first column and numbers in the others."""
    first = "".join(f"<th>{_text(cell)}</th>" for cell in head)
    cells = ("".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>\n" for row in cells)
    return Markup(f'<div class="wide"><table><tr>{first}</tr>\n{body}</table></div>\n')


def preformatted(text: str) -> Markup:
    """Preformatted lines, such as settings."""
    return Markup(f"<pre>{html.escape(text)}</pre>\n")


def percent(share: float | None) -> str:
    """A share for people, such as ``93.1 %``; a dash for None."""
    return "-" if share is None else f"{share * 100:.1f} %"


def interval(low: float | None, high: float | None) -> str:
    """The interval of a share, such as ``92.0-94.1 %``; a dash for None."""
    return "-" if low is None else f"{low * 100:.1f}-{percent(high)}"


def _svg(figure: Figure) -> str:
    """SVG to insert into a page, with text as text and the colours of :func:`_variables`."""
    text = io.StringIO()
    with mpl.rc_context({**STYLE, "svg.fonttype": "none"}):
        _fit(figure)
        metadata = {"Date": None, "Creator": None}
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    svg = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    # The ids repeat in every plot, and a page must not have one twice.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
    for name, (colour, _) in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _fit(figure: Figure) -> None:
    """Make room for labels and legend.

    A constrained layout would measure every text four times, and draw the figure twice.
    """
    figure.set_layout_engine(None)
    [axes] = figure.axes
    inner, (width, height), labels = axes.bbox, figure.bbox.size, axes.yaxis.get_tightbbox()
    assert labels is not None
    above = sum(legend.get_window_extent().height for legend in figure.legends)
    above += max(0.0, labels.y1 - inner.y1)  # half a number, or the power of ten of all
    figure.subplots_adjust(
        left=(inner.x0 - labels.x0 + _PAD) / width,
        bottom=50 / height,  # two lines, the numbers and what they are of
        right=1 - 2 * _PAD / width,  # half a number
        top=1 - (above + 2 * _PAD) / height,
    )


def _variables(*, dark: bool) -> str:
    """The colours as CSS variables."""
    return "".join(f"--{name}:{shades[dark]};" for name, shades in COLOURS.items())


def _text(text: str) -> str:
    """Escape text, with non-breaking spaces between a number and its unit or name."""
    return html.escape(text).replace(" %", "&nbsp;%").replace(" = ", "&nbsp;=&nbsp;")

"""Drawings of what the sets of a bundle do on a split; needs matplotlib, the extra ``report``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from florilege.calibration.intervals import effective_by, wilson
from florilege.calibration.measurement import Bools, Ints
from florilege.calibration.record.schema import Row
from florilege.calibration.report.diagnostics import Reliability
from florilege.calibration.report.plot_style import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    PAPER,
    RUST,
    STYLE,
    panel,
)

MOST_BARS = 16
"""Sets larger than the largest of 99 in 100, and in any case than this, share the last bar."""
_LINES: Final = ((RUST, "o", "-"), (BLUE, "s", "--"), (GREEN, "^", "-."))


class _Bars(NamedTuple):
    """Bars of set sizes: which bar each set belongs to, and what the bars are called."""

    places: Ints  # bar of each set, (rows,)
    names: tuple[str, ...]


@mpl.rc_context(STYLE)
def accuracy_over_k(
    average_k: Sequence[Row], top_k: Sequence[Row], baselines: Mapping[str, Sequence[float]]
) -> Figure:
    """Hit rates over K: with 95 % intervals those of sets, dotted those of no network at all.

    A baseline has a hit rate for each K of ``top_k``.
    """
    figure, axes = panel("K, classes in a set", "sets with the right class")
    ks = [row.value for row in average_k]
    axes.fill_between(ks, _of(average_k, "hit_low"), _of(average_k, "hit_high"),
                      color=GREEN, alpha=0.2, linewidth=0)  # fmt: skip
    axes.plot(ks, _of(average_k, "hit_rate"), color=GREEN, label="K on average")
    fixed = [row.value for row in top_k]
    rates = _of(top_k, "hit_rate")
    errors = np.array([rates - _of(top_k, "hit_low"), _of(top_k, "hit_high") - rates])
    axes.errorbar(fixed, rates, errors, fmt="o", color=BLUE, markersize=4, capsize=2,
                  linewidth=1, label="exactly K, the K best")  # fmt: skip
    for (name, values), style in zip(baselines.items(), ("--", ":"), strict=False):
        axes.plot(fixed, values, color=GREY, linestyle=style, label=name)
    _shares(axes)
    _over_k(axes, ks)
    _legend(figure)
    return figure


@mpl.rc_context(STYLE)
def sizes_achieved(average_k: Sequence[Row]) -> Figure:
    """How much larger or smaller than K the sets are on these photos, with 95 % intervals."""
    figure, axes = panel("K asked for", "mean set size, compared with K")
    ks = np.array([row.value for row in average_k])
    change = {name: _of(average_k, name) / ks - 1 for name in ("size", "size_low", "size_high")}
    axes.fill_between(ks, change["size_low"], change["size_high"], color=GREEN, alpha=0.2,
                      linewidth=0)  # fmt: skip
    axes.plot(ks, change["size"], color=GREEN)
    axes.axhline(0, color=INK, linewidth=1)
    axes.yaxis.set_major_formatter(lambda change, _: f"{change * 100:+.4g} %" if change else "0 %")
    _over_k(axes, ks.tolist())
    return figure


def size_bars(sizes: Ints) -> _Bars:
    """A bar for each size there is, and one for all sizes beyond those of 99 photos in 100.

    Example:
        >>> size_bars(np.array([1, 1, 3])).names
        ('1', '2', '3')
    """
    first = int(min(1, sizes.min()))
    last = int(min(np.quantile(sizes, 0.99, method="inverted_cdf"), first + MOST_BARS - 1))
    names = [str(size) for size in range(first, last + 1)]
    if sizes.max() > last:
        names.append(f"> {last}")
    return _Bars(np.minimum(sizes, last + 1) - first, tuple(names))


@mpl.rc_context(STYLE)
def sizes_of_hits(bars: _Bars, hits: Bools) -> Figure:
    """How many photos have sets of each size, right ones below, wrong ones on top."""
    figure, axes = panel("classes in the set", "share of photos")
    right, wrong = (_counts(bars, among) / len(hits) for among in (hits, ~hits))
    across = np.arange(len(bars.names))
    axes.bar(across, right, 0.8, color=GREEN, label="the right class is in the set")
    axes.bar(across, wrong, 0.8, bottom=right, color=PAPER, edgecolor=RUST, hatch="////",
             linewidth=0.8, label="it is not")  # fmt: skip
    _name_bars(axes, bars)
    _shares(axes)
    _legend(figure)
    return figure


@mpl.rc_context(STYLE)
def hits_of_sizes(bars: _Bars, hits: Bools, plants: Ints | None = None) -> Figure:
    """Share of sets of each size that hold the truth, with 95 % intervals."""
    figure, axes = panel("classes in the set", "sets with the right class")
    hit_counts, photos = _counts(bars, hits), _counts(bars, np.ones_like(hits))
    worth = effective_by(bars.places, hits, plants, groups=len(bars.names))
    _with_intervals(axes, np.arange(len(bars.names)), hit_counts, photos, worth)
    axes.axhline(hits.mean(), color=INK, linewidth=1, linestyle=":", label="all photos")
    _name_bars(axes, bars)
    axes.set_ylim(0, 1.05)
    _shares(axes)
    _legend(figure)
    return figure


@mpl.rc_context(STYLE)
def sizes_of_groups(bars: _Bars, groups: Mapping[str, Bools]) -> Figure:
    """How the sizes of each group of sets are distributed: up to three masks, ``(rows,)``."""
    figure, axes = panel("classes in the set", "share of photos")
    for (name, among), (colour, marker, line) in zip(groups.items(), _LINES, strict=False):
        shares = _counts(bars, among) / among.sum()
        axes.plot(shares, color=colour, marker=marker, markersize=4, linestyle=line, label=name)
    _name_bars(axes, bars)
    axes.set_ylim(bottom=0)
    _shares(axes)
    _legend(figure, columns=3)
    return figure


@mpl.rc_context(STYLE)
def reliability(best: Reliability, every: Reliability) -> Figure:
    """How often a score of each height is of the true class, with 95 % intervals.

    Bars say how many photos have a best score of each height.
    """
    figure, axes = panel("score", "of the right class")
    width = 1 / len(best.counts)
    axes.bar(np.arange(len(best.counts)) * width, best.counts / best.counts.sum(), 0.9 * width,
             align="edge", color=GRID, label="share of photos")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="as sure as they are right")
    filled = every.counts > 0
    axes.plot(every.mean_scores[filled], every.hits[filled] / every.counts[filled], color=BLUE,
              linestyle="none", marker="s", fillstyle="none", markersize=8,
              label="scores of all classes")  # fmt: skip
    worth = best.counts.astype(np.float64) if best.effective is None else best.effective
    _with_intervals(axes, best.mean_scores, best.hits, best.counts, worth,
                    label="best score of a photo")  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.05, 1.05)
    _shares(axes)
    _legend(figure)
    return figure


def _with_intervals(
    axes: Axes,
    across: NDArray[Any],
    hits: Ints,
    counts: Ints,
    worth: NDArray[np.float64],
    *,
    label: str | None = None,
) -> None:
    """Shares with their 95 % intervals; nothing where there is nothing to count.

    ``worth`` is how many independent rows the ``counts`` are worth.
    """
    filled = counts > 0
    rates = hits[filled] / counts[filled]
    shares = zip(
        hits[filled].tolist(), counts[filled].tolist(), worth[filled].tolist(), strict=True
    )
    intervals = [wilson(hit, count, effective=rows) for hit, count, rows in shares]
    ends = np.array(intervals).reshape(-1, 2)
    errors = np.abs(ends.T - rates)
    axes.errorbar(across[filled], rates, errors, color=GREEN, marker="o", markersize=4,
                  capsize=2, elinewidth=1, linewidth=1.2, label=label)  # fmt: skip


def _counts(bars: _Bars, among: Bools) -> Ints:
    return np.bincount(bars.places[among], minlength=len(bars.names))


def _name_bars(axes: Axes, bars: _Bars) -> None:
    step = 1 if len(bars.names) <= 12 else 2
    ticks = [*range(0, len(bars.names), step)]
    if ticks[-1] != len(bars.names) - 1:  # the last one says how large the others may be
        ticks = [*ticks[:-1], len(bars.names) - 1]
    axes.set_xticks(ticks, [bars.names[place] for place in ticks])
    axes.set_xlim(-0.6, len(bars.names) - 0.4)
    axes.grid(visible=False, axis="x")


def _over_k(axes: Axes, ks: Sequence[float]) -> None:
    margin = 0.02 * (ks[-1] - ks[0]) or 0.5
    axes.set_xlim(ks[0] - margin, ks[-1] + margin)
    if ks[-1] > 10:
        axes.set_xticks([1, *range(5, int(ks[-1]) + 1, 5)])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))


def _shares(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.05), min(high, 1.05))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.4g} %")


def _legend(figure: Figure, *, columns: int = 2) -> None:
    """Above the axes, where it hides nothing."""
    figure.legend(loc="outside upper left", ncols=columns, fontsize=9, borderaxespad=0.2)


def _of(rows: Sequence[Row], name: str) -> NDArray[np.float64]:
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)

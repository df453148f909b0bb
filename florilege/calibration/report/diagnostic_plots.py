"""Plots of the sets of a bundle on a split; needs matplotlib, the extra ``report``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from florilege.calibration.intervals import effective_by, wilson
from florilege.calibration.record import Row
from florilege.calibration.report.diagnostics import Reliability
from florilege.calibration.report.html_page import (
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
from florilege.calibration.sets import Bools, Floats, Ints

MOST_BARS = 16  # of exact sizes; sizes beyond these, or beyond the 99th percentile, share a bar
_LINES: Final = ((RUST, "o", "-"), (BLUE, "s", "--"), (GREEN, "^", "-."))


class _Bars(NamedTuple):
    places: Ints  # the bar of each set, (rows,)
    names: tuple[str, ...]  # the label of each bar


@mpl.rc_context(STYLE)
def accuracy_over_k(
    average_k: Sequence[Row], top_k: Sequence[Row], baselines: Mapping[str, Sequence[float]]
) -> Figure:
    """Hit rates over K with 95 % intervals; grey ``baselines`` without a network, by ``top_k``."""
    figure, axes = panel("K, classes in a set", "sets with the right class")
    ks = [row.value for row in average_k]
    axes.fill_between(ks, _column(average_k, "hit_low"), _column(average_k, "hit_high"),
                      color=GREEN, alpha=0.2, linewidth=0)  # fmt: skip
    axes.plot(ks, _column(average_k, "hit_rate"), color=GREEN, label="K on average")
    fixed = [row.value for row in top_k]
    rates = _column(top_k, "hit_rate")
    errors = np.array([rates - _column(top_k, "hit_low"), _column(top_k, "hit_high") - rates])
    axes.errorbar(fixed, rates, errors, fmt="o", color=BLUE, markersize=4, capsize=2,
                  linewidth=1, label="exactly K, the K best")  # fmt: skip
    for (name, values), style in zip(baselines.items(), ("--", ":"), strict=False):
        axes.plot(fixed, values, color=GREY, linestyle=style, label=name)
    _k_axis(axes, ks)
    return _finish(figure, axes)


@mpl.rc_context(STYLE)
def sizes_achieved(average_k: Sequence[Row]) -> Figure:
    """Relative difference between the mean set size on these photos and K, with 95 % intervals."""
    figure, axes = panel("K asked for", "mean set size, compared with K")
    ks = np.array([row.value for row in average_k])
    change = {name: _column(average_k, name) / ks - 1 for name in ("size", "size_low", "size_high")}
    axes.fill_between(ks, change["size_low"], change["size_high"], color=GREEN, alpha=0.2,
                      linewidth=0)  # fmt: skip
    axes.plot(ks, change["size"], color=GREEN)
    axes.axhline(0, color=INK, linewidth=1)
    axes.yaxis.set_major_formatter(lambda change, _: f"{change * 100:+.4g} %" if change else "0 %")
    _k_axis(axes, ks.tolist())
    return figure


def _size_bars(sizes: Ints) -> _Bars:
    """A bar for each size, and one for all sizes beyond the 99th percentile."""
    first = int(min(1, sizes.min()))
    # inverted_cdf gives a size that occurs, not a fraction between two.
    last = int(min(np.quantile(sizes, 0.99, method="inverted_cdf"), first + MOST_BARS - 1))
    names = [str(size) for size in range(first, last + 1)]
    if sizes.max() > last:
        names.append(f"> {last}")
    return _Bars(np.minimum(sizes, last + 1) - first, tuple(names))


@mpl.rc_context(STYLE)
def sizes_of_hits(sizes: Ints, hits: Bools) -> Figure:
    """Share of photos with each set size: hits at the bottom, misses on top."""
    figure, axes = panel("classes in the set", "share of photos")
    bars = _size_bars(sizes)
    right, wrong = (_counts(bars, among) / len(hits) for among in (hits, ~hits))
    positions = np.arange(len(bars.names))
    axes.bar(positions, right, 0.8, color=GREEN, label="the right class is in the set")
    axes.bar(positions, wrong, 0.8, bottom=right, color=PAPER, edgecolor=RUST, hatch="////",
             linewidth=0.8, label="it is not")  # fmt: skip
    _name_bars(axes, bars)
    return _finish(figure, axes)


@mpl.rc_context(STYLE)
def hits_of_sizes(sizes: Ints, hits: Bools, observations: Ints | None = None) -> Figure:
    """Hit rate of sets of each size, with 95 % intervals."""
    figure, axes = panel("classes in the set", "sets with the right class")
    bars = _size_bars(sizes)
    hit_counts, photos = _counts(bars, hits), _counts(bars, np.ones_like(hits))
    effective = effective_by(bars.places, hits, observations, groups=len(bars.names))
    _plot_rates(axes, np.arange(len(bars.names)), hit_counts, photos, effective)
    axes.axhline(hits.mean(), color=INK, linewidth=1, linestyle=":", label="all photos")
    _name_bars(axes, bars)
    axes.set_ylim(0, 1.05)
    return _finish(figure, axes)


@mpl.rc_context(STYLE)
def sizes_of_groups(sizes: Ints, groups: Mapping[str, Bools]) -> Figure:
    """Distribution of the set sizes of up to three groups, given by masks ``(rows,)``."""
    figure, axes = panel("classes in the set", "share of photos")
    bars = _size_bars(sizes)
    for (name, among), (colour, marker, line) in zip(groups.items(), _LINES, strict=False):
        shares = _counts(bars, among) / among.sum()
        axes.plot(shares, color=colour, marker=marker, markersize=4, linestyle=line, label=name)
    _name_bars(axes, bars)
    axes.set_ylim(bottom=0)
    return _finish(figure, axes, columns=3)


@mpl.rc_context(STYLE)
def reliability(best: Reliability, every: Reliability) -> Figure:
    """Reliability diagram: share of true classes by score, with 95 % intervals.

    Bars show the share of photos by their best score.
    """
    figure, axes = panel("score", "of the right class")
    width = 1 / len(best.counts)
    axes.bar(np.arange(len(best.counts)) * width, best.counts / best.counts.sum(), 0.9 * width,
             align="edge", color=GRID, label="share of photos")  # fmt: skip
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="perfectly calibrated")
    filled = every.counts > 0
    axes.plot(every.mean_scores[filled], every.hits[filled] / every.counts[filled], color=BLUE,
              linestyle="none", marker="s", fillstyle="none", markersize=8,
              label="scores of all classes")  # fmt: skip
    _plot_rates(axes, best.mean_scores, best.hits, best.counts, best.effective,
                label="best score of a photo")  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.05, 1.05)
    return _finish(figure, axes)


def _plot_rates(
    axes: Axes,
    positions: NDArray[Any],
    hits: Ints,
    counts: Ints,
    effective: Floats,
    *,
    label: str | None = None,
) -> None:
    """Hit rates with 95 % intervals where ``counts`` of ``effective`` sizes are above 0."""
    filled = counts > 0
    rates = hits[filled] / counts[filled]
    columns = (values[filled].tolist() for values in (hits, counts, effective))
    ends = [wilson(hit, count, effective=rows) for hit, count, rows in zip(*columns, strict=True)]
    errors = np.abs(np.array(ends).reshape(-1, 2).T - rates)
    axes.errorbar(positions[filled], rates, errors, color=GREEN, marker="o", markersize=4,
                  capsize=2, elinewidth=1, linewidth=1.2, label=label)  # fmt: skip


def _counts(bars: _Bars, among: Bools) -> Ints:
    return np.bincount(bars.places[among], minlength=len(bars.names))


def _name_bars(axes: Axes, bars: _Bars) -> None:
    step = 1 if len(bars.names) <= 12 else 2
    ticks = [*range(0, len(bars.names), step)]
    if ticks[-1] != len(bars.names) - 1:  # always label the last bar
        ticks = [*ticks[:-1], len(bars.names) - 1]
    axes.set_xticks(ticks, [bars.names[place] for place in ticks])
    axes.set_xlim(-0.6, len(bars.names) - 0.4)
    axes.grid(visible=False, axis="x")


def _k_axis(axes: Axes, ks: Sequence[float]) -> None:
    margin = 0.02 * (ks[-1] - ks[0]) or 0.5
    axes.set_xlim(ks[0] - margin, ks[-1] + margin)
    if ks[-1] > 10:
        axes.set_xticks([1, *range(5, int(ks[-1]) + 1, 5)])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))


def _finish(figure: Figure, axes: Axes, *, columns: int = 2) -> Figure:
    """The figure with an axis in per cent, and a legend above the axes, where it hides nothing."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.05), min(high, 1.05))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(lambda share, _: f"{share * 100:.4g} %")
    figure.legend(loc="outside upper left", ncols=columns, fontsize=9, borderaxespad=0.2)
    return figure


def _column(rows: Sequence[Row], name: str) -> Floats:
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)

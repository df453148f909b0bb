"""Pictures of a calibration; needs matplotlib, the extra ``report``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from florilege.calibration.calibrate.plot_style import BLUE, GREEN, GREY, INK, OCHRE, RUST, STYLE
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.schema import Columns
from florilege.calibration.record.shot_groups import ShotGroup

FORMATS: Final = ("png", "svg")


def lambda_over_k(record: CalibrationRecord) -> Figure:
    """The threshold that each mean set size needs, on a logarithmic scale."""
    with _over_k(record, "Threshold for each mean set size", "upper right") as (figure, axes):
        for rule, colour, label in (
            ("average_k", GREEN, "one threshold for all classes"),
            ("balanced_average_k", RUST, "scores weighted for rare classes"),
        ):
            columns = _columns(record, rule)
            pairs = zip(columns.value, columns.lambda_val, strict=True) if columns else ()
            known = [(k, value) for k, value in pairs if value is not None and value > 0]
            if known:
                axes.plot(*zip(*known, strict=True), color=colour, label=label)
        axes.set_yscale("log")
        axes.set_ylabel("lambda")
    return figure


def hit_rate_over_k(record: CalibrationRecord) -> Figure:
    """The share of sets with the truth for each mean set size, with 95 % intervals."""
    with _over_k(record, "Sets that hold the right species", "lower right") as (figure, axes):
        for rule, colour, label in (
            ("average_k", GREEN, "K on average"),
            ("balanced_average_k", RUST, "K on average, weighted for rare classes"),
        ):
            if columns := _columns(record, rule):
                rates, low, high = _hits(columns)
                axes.fill_between(columns.value, low, high, color=colour, alpha=0.18)
                axes.plot(columns.value, rates, color=colour, label=label)
        if columns := _columns(record, "top_k"):
            rates, low, high = _hits(columns)
            errors = [rates - low, high - rates]
            axes.errorbar(columns.value, rates, errors, fmt="o", color=BLUE, markersize=4,
                          capsize=2, linewidth=1, label="exactly K, the K best")  # fmt: skip
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylim(top=1.0)
        axes.set_ylabel("hit rate, with 95 % interval")
    return figure


def size_histogram(record: CalibrationRecord, *, k: float | None = None) -> Figure:
    """How many classes the sets of ``average_k`` hold, at one K.

    Raises:
        NotCalibrated: The record has no threshold for this K.
    """
    point, columns = record.point("average_k", k=k), _columns(record, "average_k")
    assert point.k is not None  # a rule by size
    assert columns is not None  # every record has it
    counts = np.array(columns.row(columns.value.index(point.k)).size_histogram)
    edges = np.array([*record.size_bins, record.classes + 1])[: counts.size + 1]
    with mpl.rc_context(STYLE):
        figure, axes = _axes(f"Classes in a set at K = {point.k:g}", record)
        shares = counts / counts.sum() / np.diff(edges)  # of one size, where a bin has several
        axes.bar(edges[:-1] - 0.5, shares, np.diff(edges), align="edge", color=GREEN, ec="white")
        size = point.expected_size.value
        axes.axvline(size, color=RUST, linestyle="--", label=f"mean size {size:.2f}")
        axes.set_xlim(-0.75 if counts[0] else 0.25, edges[-1] - 0.25)
        axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("classes in the set")
        axes.set_ylabel("share of photos, for each size")
        axes.legend(loc="upper right")
    return figure


def by_shots(groups: Sequence[ShotGroup], record: CalibrationRecord) -> Figure:
    """Set size and hit rate of species with few, a medium number and many training images.

    There is at least one group; they are measured at the default K of ``average_k``.
    """
    k = record.default_k
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        figure.suptitle(f"Species by training images at K = {k:g}", x=0.01, ha="left", fontsize=12)
        _bars(left, groups, lambda group: (group.mean_size, *group.size_ci95), GREEN)
        left.set_ylabel("mean set size")
        left.axhline(k, color=RUST, linestyle="--", linewidth=1)
        left.annotate(f"K = {k:g}", (0.99, k), xycoords=("axes fraction", "data"),
                      ha="right", va="bottom", color=RUST)  # fmt: skip
        _bars(right, groups, lambda group: (group.hit_rate, *group.hit_ci95), BLUE)
        right.set_ylabel("hit rate")
        right.set_ylim(0, 1)
        right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def write_pictures(record: CalibrationRecord, folder: str | Path) -> list[Path]:
    """Write every picture as png and svg; equal records give equal bytes.

    There is no picture of hit rates after a calibration from traffic, nor one by training images
    where their numbers are unknown. The folder is made if it does not exist.

    Raises:
        OSError: A file cannot be written.
    """
    figures: dict[str, Callable[[], Figure]] = {
        "lambda_over_k": lambda: lambda_over_k(record),
        "set_size_histogram": lambda: size_histogram(record),
    }
    if record.point("average_k").hit_rate is not None:
        figures["hit_rate_over_k"] = lambda: hit_rate_over_k(record)
    if record.shots:
        figures["by_shots"] = lambda: by_shots(record.shots, record)
    target, written = Path(folder), []
    target.mkdir(parents=True, exist_ok=True)
    for name, draw in figures.items():
        for suffix in FORMATS:
            path, figure = target / f"{name}.{suffix}", draw()  # afresh: saving moves the layout
            with mpl.rc_context(STYLE):
                figure.savefig(path, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
            written.append(path)
    return written


@contextmanager
def _over_k(
    record: CalibrationRecord, title: str, legend: Literal["upper right", "lower right"]
) -> Iterator[tuple[Figure, Axes]]:
    """A figure over the mean set size, with the default K marked."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes(title, record)
        yield figure, axes
        axes.axvline(record.default_k, color=OCHRE, linestyle=":", linewidth=1.2)
        axes.annotate(
            f" default K = {record.default_k:g}", (record.default_k, 0.02),
            xycoords=("data", "axes fraction"), color=OCHRE, va="bottom",
        )  # fmt: skip
        ks = record.ks("average_k")
        margin = 0.02 * (ks[-1] - ks[0]) or 0.5
        axes.set_xlim(ks[0] - margin, ks[-1] + margin)
        axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
        axes.set_xlabel("mean set size K")
        axes.legend(loc=legend)


def _axes(title: str, record: CalibrationRecord) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes, measured = figure.subplots(), record.measured
    axes.set_title(title)
    axes.set_title(
        f"{measured.rows:,} photos of {measured.split}, {record.classes:,} classes",
        loc="right", fontsize=9, color=GREY,
    )  # fmt: skip
    return figure, axes


def _columns(record: CalibrationRecord, rule: str) -> Columns | None:
    """The figures of a served rule for single photos; None if the record lacks it."""
    wanted = (rule, record.head, record.score_kind, record.temperature, 1)
    for table in record.tables:
        served = (table.rule, table.head, table.score_kind, table.temperature, table.images)
        if served == wanted:
            return table.columns
    return None


def _hits(columns: Columns) -> NDArray[np.float64]:
    """Hit rate and both ends of its interval, ``(3, thresholds)``; NaN where not measured."""
    return np.array([columns.hit_rate, columns.hit_low, columns.hit_high], dtype=np.float64)


def _bars(
    axes: Axes,
    groups: Sequence[ShotGroup],
    figures: Callable[[ShotGroup], tuple[float, float, float]],
    colour: str,
) -> None:
    names = {"few": "few (< 20)", "medium": "20 to 100", "many": "many (> 100)"}
    values, lows, highs = np.array([figures(group) for group in groups]).T
    labels = [f"{names[g.name]}\n{g.classes:,} species\n{g.rows:,} photos" for g in groups]
    axes.bar(labels, values, 0.6, color=colour, yerr=[values - lows, highs - values], capsize=4,
             error_kw={"ecolor": INK, "elinewidth": 1})  # fmt: skip
    axes.grid(visible=False, axis="x")

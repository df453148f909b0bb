"""``report.html``: the curves and settings of a run in one file that opens anywhere."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from florilege.calibration.report import html_page as html
from florilege.calibration.report.html_page import BLUE, GREEN, OCHRE, RUST, STYLE, panel
from florilege.training.config import Metric, TrainConfig
from florilege.training.configuration import RunFolder, to_yaml, write
from florilege.training.loop.evaluation import Row, merit

_LINES: Final = ((GREEN, "-", "o"), (RUST, "--", "s"), (BLUE, "-.", "^"), (OCHRE, ":", "D"))
_HEADS: Final = ("linear", "cosine", "multi_label", "sccp")
_ACCURACY: Final = re.compile(r"val_average_(?P<k>[\d.]+)_(?P<choice>\w+)")


def write_report(folder: RunFolder, config: TrainConfig, history: Sequence[Row]) -> None:
    """Write ``report.html``, from one row per epoch as in ``metrics.csv``."""
    write(folder.report, _report_html(folder.path.name, config, history).encode())


def _report_html(name: str, config: TrainConfig, history: Sequence[Row]) -> str:
    sections = [html.section("Settings", html.preformatted(to_yaml(config)))]
    if history:
        sections = [
            html.section("In short", *_summary(history)),
            html.section(
                "Sets with the right class, of K classes on average",
                _table(max(history, key=merit)),
            ),
            html.section("Curves", html.side_by_side(*_curves(history))),
            *sections,
        ]
    else:
        sections.insert(0, html.words("No epoch was trained."))
    return html.page(f"Training run {name}", sections)


def _summary(history: Sequence[Row]) -> Iterator[html.Markup]:
    best = max(history, key=merit)
    minutes, seconds = divmod(round(float(history[-1]["seconds"])), 60)
    choice = f"Best of {len(history)} epochs: epoch {best['epoch']}"
    if "weight_decay" in best:
        choice = f"Chosen of {len(history)} weight decays: {best['weight_decay']:g}"
    yield html.words(
        f"{choice}, where "
        f"{html.percent(float(best['val_score']))} of the sets on validation hold the right class "
        f"(set size {Metric.of(best).sets}), with the {_words(best['val_best_head'])} head and "
        f"{best['val_best_score_kind']} scores. Trained for {minutes} min {seconds} s."
    )
    yield html.words(
        "The thresholds were set on the same validation pictures. For a fair figure, and a page "
        "like this one, run florilege evaluate on the test split."
    )


def _choice(column: str) -> str:
    """A head, or a head and a score, in words."""
    head = next((name for name in _HEADS if column.startswith(name)), column)
    kind = column.removeprefix(head).removeprefix("_")
    return ", ".join(filter(None, (_words(head), kind)))


def _table(row: Row) -> html.Markup:
    columns = dict[str, dict[float, str]]()  # of average-K accuracy, by head and score, then by K
    for match in filter(None, map(_ACCURACY.fullmatch, row)):
        columns.setdefault(_choice(match["choice"]), {})[float(match["k"])] = match[0]
    sizes = sorted({k for by_k in columns.values() for k in by_k})
    return html.table(
        ("head, score", *(f"K = {k:g}" for k in sizes)),
        (
            (choice, *(html.percent(float(row[by_k[k]])) for k in sizes))
            for choice, by_k in columns.items()
        ),
    )


def _column(history: Sequence[Row], name: str) -> list[float]:
    return [float(row.get(name, "nan")) for row in history]


def _curves(history: Sequence[Row]) -> Iterator[html.Markup]:
    """Over what the rows differ by: the weight decay of a head that is solved for, or the epoch."""
    x = "weight_decay" if "weight_decay" in history[0] else "epoch"
    history = sorted(history, key=lambda row: float(row[x]))
    column, metric = partial(_column, history), Metric.of(history[-1])
    accuracy = {
        _choice(name.removeprefix(metric.prefix)): [100 * share for share in column(name)]
        for name in history[0]
        if name.startswith(metric.prefix)
    }
    losses = [name for name in history[0] if name.startswith("val_log_loss_")]
    log_loss = {_words(name.removeprefix("val_log_loss_")): column(name) for name in losses}
    taught = "The label and its pseudo-labels, mean over the pictures of each epoch."
    for y_label, curves, caption in (
        (
            "sets with the right class, %",
            accuracy,
            f"On validation, by head and kind of score; set size {metric.sets}.",
        ),
        ("training loss", {"": column("train_loss")}, "Mean over the training pictures."),
        ("log-loss", log_loss, "On validation: minus the log of the true class's softmax."),
        ("learning rate", {"": column("learning_rate")}, "At the end of each epoch."),
        ("classes taught per picture", {"": column("train_set_size")}, taught),
    ):
        if np.isfinite([*curves.values()]).any():
            yield html.drawing(_drawn((x.replace("_", " "), y_label), column(x), curves), caption)


@mpl.rc_context(STYLE)
def _drawn(
    names: tuple[str, str], x: Sequence[float], curves: Mapping[str, Sequence[float]]
) -> Figure:
    figure, axes = panel(*names)
    for (colour, line, marker), (label, values) in zip(
        itertools.cycle(_LINES), curves.items(), strict=False
    ):
        axes.plot(x, values, color=colour, linestyle=line, label=label,
                  marker=marker if len(x) <= 20 else None, markersize=4)  # fmt: skip
    if names[0] == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    elif min(x) > 0:
        axes.set_xscale("log")
    axes.ticklabel_format(axis="y", useOffset=False)
    if len(curves) > 1:
        figure.legend(loc="outside upper left", ncols=2, fontsize=9, borderaxespad=0.2)
    return figure


def _words(name: object) -> str:
    return {"multi_label": "multi-label", "sccp": "SCCP"}.get(str(name), str(name))

"""``report.html``: the curves and settings of a run in one file that opens anywhere."""

import html
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from training.checkpoint import write
from training.config import TrainConfig
from training.history import Row
from training.metric import metric_of
from training.run_folder import RunFolder
from training.settings import to_yaml

_COLOURS: Final = ("#1b6e53", "#b5542a", "#4a5fa5", "#8a6d1f")
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2a24; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; }
td + td, th + th { text-align: right; font-variant-numeric: tabular-nums; }
tr { border-bottom: 1px solid #d9e0dc; }
pre { background: #f3f6f4; padding: 1rem; overflow-x: auto; font-size: .85rem; }
"""


def write_report(folder: RunFolder, config: TrainConfig, history: Sequence[Row]) -> None:
    """Write ``report.html`` into the run folder."""
    write(folder.report, report_html(folder.path.name, config, history).encode())


def report_html(name: str, config: TrainConfig, history: Sequence[Row]) -> str:
    """The page: summary, table of the best epoch, curves, settings.

    Args:
        name: Name of the run.
        config: Its settings.
        history: One row per epoch, as in ``metrics.csv``; may be empty.
    """
    title = html.escape(f"Training run {name}")
    settings = html.escape(to_yaml(config))
    results = _results(history) if history else "<p>No epoch was trained.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{results}\n<h2>Settings</h2>\n<pre>{settings}</pre></body></html>\n"
    )


def _results(history: Sequence[Row]) -> str:
    best = max(history, key=lambda row: float(row["val_score"]))
    minutes, seconds = divmod(round(float(history[-1]["seconds"])), 60)
    return (
        f"<p>Best of {len(history)} epochs: <b>epoch {best['epoch']}</b>, "
        f"{metric_of(best)} on validation "
        f"<b>{float(best['val_score']) * 100:.2f} %</b> with the {_words(best['val_best_head'])} "
        f"head and {best['val_best_score_kind']} scores. Trained for {minutes} min {seconds} s.</p>"
        "<p>The thresholds were set on the same validation pictures; "
        "<code>florilege evaluate</code> on the test split gives the fair figure.</p>"
        f"<h2>Average-K accuracy at the best epoch, %</h2>{_table(best)}"
        f"<h2>Curves</h2>{_curves(history)}"
    )


_HEADS: Final = ("linear", "cosine", "multi_label", "sccp")
_ACCURACY: Final = re.compile(
    rf"val_average_(?P<k>[\d.]+)_(?P<head>{'|'.join(_HEADS)})_(?P<kind>\w+)"
)


def _accuracies(row: Row) -> dict[str, dict[float, str]]:
    """The columns of average-K accuracy, by head and score in words, then by K."""
    found = dict[str, dict[float, str]]()
    for match in filter(None, map(_ACCURACY.fullmatch, row)):
        choice = f"{_words(match['head'])}, {match['kind']}"
        found.setdefault(choice, {})[float(match["k"])] = match[0]
    return found


def _choice(column: str) -> str:
    """A head, or a head and a score, in words."""
    head = next((name for name in _HEADS if column.startswith(name)), column)
    kind = column.removeprefix(head).removeprefix("_")
    return ", ".join(filter(None, (_words(head), kind)))


def _table(row: Row) -> str:
    found = _accuracies(row)
    sizes = sorted({k for columns in found.values() for k in columns})
    head = "".join(f"<th>K = {k:g}</th>" for k in sizes)
    lines = []
    for choice, columns in found.items():
        cells = "".join(f"<td>{float(row[columns[k]]) * 100:.2f}</td>" for k in sizes)
        lines.append(f"<tr><td>{choice}</td>{cells}</tr>")
    return f"<table><tr><th>head, score</th>{head}</tr>{''.join(lines)}</table>"


def _curves(history: Sequence[Row]) -> str:
    def column(name: str, factor: float = 1.0) -> list[float]:
        return [float(row[name]) * factor for row in history]

    metric = metric_of(history[-1])
    choices = [name for name in history[0] if name.startswith(metric.prefix)]
    accuracy = {_choice(name.removeprefix(metric.prefix)): column(name, 100) for name in choices}
    losses = [name for name in history[0] if name.startswith("val_log_loss_")]
    log_loss = {_words(name.removeprefix("val_log_loss_")): column(name) for name in losses}
    figure = Figure(figsize=(9.5, 6.4), layout="constrained")
    (loss, right), (below, rate) = figure.subplots(2, 2)
    epochs = column("epoch")
    _draw(loss, "Training loss", epochs, {"training": column("train_loss")})
    _draw(right, f"Validation {metric}, %", epochs, accuracy)
    _draw(below, "Validation log-loss", epochs, log_loss)
    _draw(rate, "Learning rate", epochs, {"rate": column("learning_rate")})
    return _svg(figure)


def _draw(
    axes: Axes, title: str, epochs: Sequence[float], curves: Mapping[str, Sequence[float]]
) -> None:
    for colour, (label, values) in zip(itertools.cycle(_COLOURS), curves.items(), strict=False):
        axes.plot(epochs, values, color=colour, marker=".", label=label)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e8e5")
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=9)


def _svg(figure: Figure) -> str:
    """Inline SVG, without the date and the links that Matplotlib puts in."""
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "florilege"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    return svg[svg.index("<svg") :]


def _words(name: object) -> str:
    return {"multi_label": "multi-label", "sccp": "SCCP"}.get(str(name), str(name))

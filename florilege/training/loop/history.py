"""The record of each epoch: ``metrics.csv``, TensorBoard events and a line of text."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch.utils.tensorboard import SummaryWriter

from florilege.errors import BundleError
from florilege.training.config import metric_of
from florilege.training.loop.checkpoint import Position
from florilege.training.loop.evaluation import Validation
from florilege.training.run_folder import RunFolder, write

Row = dict[str, float | str]
CHOICE: Final = "chosen"
"""Column of the rows of heads: 1 for the weight decay that is taken, 0 for others."""


def epoch_row(position: Position, validation: Validation, **how: float) -> Row:
    """The figures of the epoch that just ended, by column name.

    ``how`` it was trained is a column too: ``learning_rate``; or ``weight_decay``, for the solution
    of a head, which counts as an epoch, and what chooses among these.
    """
    row: Row = {
        "epoch": position.epoch,
        "step": position.step,
        "seconds": round(position.seconds, 3),
        **how,
        "train_loss": position.loss_sum / max(1, position.examples),
        validation.metric.column: validation.metric.k,
        "val_score": validation.score,
        "val_best_head": validation.best.head,
        "val_best_score_kind": validation.best.score_kind,
    }
    if position.classes_taught:
        row["train_set_size"] = position.classes_taught / max(1, position.examples)
    for head in validation.log_loss:
        row[f"val_log_loss_{head}"] = validation.log_loss[head]
        row[f"val_top_1_{head}"] = validation.top_1[head]
    for choice, by_k in validation.accuracy.items():
        for k, value in by_k.items():
            row[f"val_average_{k:g}_{choice.head}_{choice.score_kind}"] = value
    for choice, value in validation.values.items():
        row[validation.metric.column_of(choice.head, choice.score_kind)] = value
    return row


def write_metrics(folder: RunFolder, history: Sequence[Row]) -> None:
    """Write all rows to ``metrics.csv``: the whole file, so that it is never half written."""
    text = io.StringIO()
    names = dict.fromkeys(name for row in history for name in row)
    table = csv.DictWriter(text, fieldnames=list(names), lineterminator="\n")
    table.writeheader()
    table.writerows(history)
    write(folder.metrics, text.getvalue().encode())


def merit(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """What orders the rows of a run: the weights of the best are kept, the first of several.

    Its value of the metric is the largest; in a tie, as where all of few photos are right, its
    log-loss is the smallest. A row may be marked as chosen by more than that.
    """
    log_loss = row.get(f"val_log_loss_{row.get('val_best_head')}", 0.0)
    return float(row.get(CHOICE, 0)), float(row["val_score"]), -float(log_loss)


def best_row(folder: RunFolder) -> dict[str, Any]:
    """The figures of the best epoch by column, if there is one; ``BundleError`` if damaged."""
    if not folder.metrics.is_file():
        return {}
    try:
        with folder.metrics.open(encoding="utf-8", newline="") as file:
            rows = [
                {key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)
            ]
        return max(rows, key=merit) if rows else {}
    except (OSError, csv.Error, KeyError, ValueError, TypeError) as error:
        raise BundleError(f"{folder.metrics} cannot be read: {error!r}") from error


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@contextmanager
def events(folder: RunFolder, epoch: int) -> Iterator[Callable[[Row], None]]:
    """Open the TensorBoard events; yields a function that appends an epoch.

    Events of epochs after ``epoch``, from before a resume, are discarded.
    """
    with SummaryWriter(str(folder.events), purge_step=epoch + 1) as writer:

        def append(row: Row) -> None:
            for name, value in row.items():
                if isinstance(value, int | float) and name not in ("epoch", "step"):
                    tag = re.sub("^(train|val)_", r"\1/", name)
                    writer.add_scalar(tag, value, int(row["epoch"]))
            writer.flush()

        yield append


def epoch_line(row: Row, *, epochs: int, better: bool) -> str:
    """The line shown to the user after an epoch."""
    mark = "  best so far" if better else ""
    name = f"epoch {row['epoch']}/{epochs}"
    if "weight_decay" in row:
        name = f"weight decay {row['weight_decay']:<4g}"
    return (
        f"{name}  loss {row['train_loss']:.4f}  "
        f"{float(row['val_score']) * 100:.2f} % of sets right on val (size {metric_of(row).sets})  "
        f"{row['seconds']:.0f} s{mark}"
    )

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from florilege.errors import BundleError
from florilege.training.configuration import RunFolder
from florilege.training.loop.evaluation import epoch_line, events
from florilege.training.run_export import _best_row
from tests.training.small import metrics_row


def test_a_row_names_each_figure() -> None:
    row = metrics_row(3, 0.7)
    assert row["train_loss"] == 1.5
    assert (row["val_score"], row["val_best_head"]) == (0.7, "sccp")
    assert row["val_average_1_multi_label_softmax"] == 0.1
    assert row["val_average_2_sccp_softmax"] == 0.7
    assert (row["val_top_1_sccp"], row["val_log_loss_multi_label"]) == (0.6, 2.5)
    assert "train_set_size" not in row  # of a loss that does not report it


def test_metrics_are_read_back_exactly_and_the_best_epoch_found(tmp_path: Path) -> None:
    rows = [metrics_row(1, 0.7), metrics_row(2, 0.1 + 0.7), metrics_row(3, 0.1 + 0.7)]
    RunFolder(tmp_path).write_metrics(rows)
    assert _best_row(RunFolder(tmp_path)) == rows[1]  # in a tie the first, as in the loop


def test_a_column_that_older_rows_lack_is_left_empty_there(tmp_path: Path) -> None:
    rows = [metrics_row(1, 0.7), {**metrics_row(2, 0.8), "train_set_size": 4.5}]
    RunFolder(tmp_path).write_metrics(rows)
    assert _best_row(RunFolder(tmp_path)) == rows[1]
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.rpartition(",")[2] for line in lines] == ["train_set_size", "", "4.5"]


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch\n1\n")
    with pytest.raises(BundleError, match="metrics"):
        _best_row(RunFolder(tmp_path))


def test_tensorboard_reads_the_events_and_those_of_an_epoch_again_after_a_crash_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    clock = itertools.count(1_000_000_000)  # the names of the files count seconds
    writer = "tensorboard.summary.writer.event_file_writer.time"
    monkeypatch.setattr(writer, SimpleNamespace(time=lambda: next(clock)))
    with events(folder.events, 0) as append:
        append(metrics_row(1, 0.25))
        append(metrics_row(2, 0.5))
    with events(folder.events, 1) as append:
        append(metrics_row(2, 0.75))
    result = EventAccumulator(str(folder.events))
    result.Reload()
    curve = [(event.step, event.value) for event in result.Scalars("val/score")]
    assert curve == [(1, 0.25), (2, 0.75)]
    assert "train/loss" in result.Tags()["scalars"]


def test_the_line_for_people_says_how_many_sets_are_right() -> None:
    line = epoch_line(metrics_row(3, 0.7), epochs=9, better=True)
    assert line == (
        "epoch 3/9  loss 1.5000  70.00 % of sets right on val (size 2 on average)  3 s  best so far"
    )

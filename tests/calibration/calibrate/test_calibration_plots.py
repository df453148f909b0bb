"""Pictures of a calibration show its very figures."""

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from florilege.calibration.calibrate.calibration_plots import (
    by_shots,
    hit_rate_over_k,
    lambda_over_k,
    size_histogram,
    write_pictures,
)
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.shot_groups import measure_by_shots
from florilege.calibration.scores import scores
from tests.calibration.estimates import hits_of
from tests.calibration.record.test_record import COUNTS, make_record, sample_logits


@pytest.fixture(scope="module")
def record() -> CalibrationRecord:
    return make_record()


def line(figure: Figure, label: str) -> tuple[list[float], list[float]]:
    (found,) = (line for line in figure.axes[0].lines if line.get_label() == label)
    across, up = (np.asarray(data).tolist() for data in found.get_data())
    return across, up


def bars(figure: Figure, axes: int = 0) -> BarContainer:
    (found,) = (c for c in figure.axes[axes].containers if isinstance(c, BarContainer))
    return found


def test_lambda_is_drawn_for_every_k(record: CalibrationRecord) -> None:
    figure = lambda_over_k(record)
    ks = record.ks("average_k")
    thresholds = [record.point("average_k", k=k).lambda_val for k in ks]
    assert line(figure, "one threshold for all classes") == (ks, thresholds)
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_xlabel() == "mean set size K"


def test_hit_rates_are_drawn_with_their_intervals(record: CalibrationRecord) -> None:
    figure = hit_rate_over_k(record)
    ks = record.ks("average_k")
    points = [record.point("average_k", k=k) for k in ks]
    assert line(figure, "K on average") == (ks, [hits_of(point).value for point in points])
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    drawn = {(float(x), float(y)) for x, y in np.asarray(band)}
    for k, point in zip(ks, points, strict=True):
        assert {(k, hits_of(point).ci95[0]), (k, hits_of(point).ci95[1])} <= drawn
    (fixed,) = (c for c in figure.axes[0].containers if isinstance(c, ErrorbarContainer))
    assert np.asarray(fixed.lines[0].get_xdata()).tolist() == record.ks("top_k")
    (segments,) = fixed.lines[2]
    for k, segment in zip(record.ks("top_k"), segments.get_segments(), strict=True):
        ends = hits_of(record.point("top_k", k=k)).ci95
        assert np.asarray(segment)[:, 1] == pytest.approx(ends)


@pytest.mark.parametrize("k", [1.0, 3.0, 12.0])
def test_the_histogram_adds_up_and_its_mean_is_the_size(
    record: CalibrationRecord, k: float
) -> None:
    figure = size_histogram(record, k=k)
    patches = bars(figure).patches
    areas = np.array([bar.get_height() * bar.get_width() for bar in patches])
    centres = np.array([bar.get_x() + bar.get_width() / 2 for bar in patches])
    assert areas.sum() == pytest.approx(1)
    assert (areas * centres).sum() == pytest.approx(k, abs=0.15 if k > 10 else 0.01)
    assert f"K = {k:g}" in figure.axes[0].get_title(loc="left")


def test_groups_by_training_images_are_bars_with_intervals(record: CalibrationRecord) -> None:
    logits, labels = sample_logits()
    sets = record.point("average_k", k=3).sets(scores(logits, record.score_kind))
    hits = sets[np.arange(len(labels)), labels]
    groups = measure_by_shots(sets.sum(axis=1), hits, labels, COUNTS)
    figure = by_shots(groups, record)
    for axes, wanted in enumerate(("mean_size", "hit_rate")):
        heights = [bar.get_height() for bar in bars(figure, axes).patches]
        assert heights == [getattr(group, wanted) for group in groups]
        assert bars(figure, axes).errorbar is not None
    labels_below = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels_below[0].startswith("few (< 20)\n19 species\n")


def test_files_are_written_and_equal_records_give_equal_bytes(
    record: CalibrationRecord, tmp_path: Path
) -> None:
    before = dict(mpl.rcParams)
    first = write_pictures(record, tmp_path / "new" / "first")
    assert dict(mpl.rcParams) == before
    assert [path.name for path in first] == [
        f"{name}.{suffix}"
        for name in ("lambda_over_k", "set_size_histogram", "hit_rate_over_k", "by_shots")
        for suffix in ("png", "svg")
    ]
    second = write_pictures(record, tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert all(path.stat().st_size < 200_000 for path in first)
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in first[1].read_text()
    without_groups = write_pictures(replace(record, shots=()), tmp_path)
    assert [path.name for path in without_groups] == [path.name for path in first[:-2]]


def test_a_record_of_few_classes_and_one_k_is_drawn_too(tmp_path: Path) -> None:
    small = make_record(ks=(1.0,), min_size=0)
    assert all(path.stat().st_size for path in write_pictures(small, tmp_path))
    figure = size_histogram(small, k=1)
    assert bars(figure).patches[0].get_x() == -0.5  # empty sets are shown

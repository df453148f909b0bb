"""Drawings show the figures that they are given, each of them once and none of them hidden."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from florilege.calibration.report import diagnostic_plots as charts
from florilege.calibration.report.diagnostic_plots import MOST_BARS
from florilege.calibration.report.diagnostics import Diagnostics, Reliability
from tests.calibration.record.test_record import sample_logits


def line(figure: Figure, label: str) -> tuple[list[float], list[float]]:
    (result,) = (line for line in figure.axes[0].lines if line.get_label() == label)
    across, up = (np.asarray(data).tolist() for data in result.get_data())
    return across, up


def errorbar(figure: Figure) -> tuple[list[float], list[float]]:
    (result,) = (c for c in figure.axes[0].containers if isinstance(c, ErrorbarContainer))
    across, up = (np.asarray(data).tolist() for data in result.lines[0].get_data())
    return across, up


def test_accuracy_is_drawn_over_k_beside_what_no_network_reaches(findings: Diagnostics) -> None:
    fixed = [row.value for row in findings.top_k]
    figure = charts.accuracy_over_k(findings.average_k, findings.top_k, {"at random": fixed})
    rows = findings.average_k
    assert line(figure, "K on average") == ([r.value for r in rows], [r.hit_rate for r in rows])
    assert line(figure, "at random") == (fixed, fixed)
    assert errorbar(figure) == (fixed, [row.hit_rate for row in findings.top_k])
    assert figure.axes[0].get_xlabel() == "K, classes in a set"


def test_sizes_are_drawn_as_a_share_more_or_less_than_asked(findings: Diagnostics) -> None:
    (curve, _) = charts.sizes_achieved(findings.average_k).axes[0].lines
    expected = [row.size / row.value - 1 for row in findings.average_k]
    assert np.asarray(curve.get_ydata()).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ([1] * 50 + [2] * 49 + [9], ["1", "2", "> 2"]),
        ([0, 1, 4], ["0", "1", "2", "3", "4"]),
        ([1], ["1"]),
        (list(range(1, MOST_BARS + 1)), [str(size) for size in range(1, MOST_BARS + 1)]),
        (list(range(1, 60)), [*map(str, range(1, MOST_BARS + 1)), f"> {MOST_BARS}"]),
    ],
)
def test_rare_large_sizes_share_the_last_bar(sizes: list[int], names: list[str]) -> None:
    bars = charts._size_bars(np.array(sizes))
    assert list(bars.names) == names
    for size, place in zip(sizes, bars.places, strict=True):
        assert names[place] in (str(size), names[-1])
        assert names[place] == str(size) or size > int(names[-1].removeprefix("> "))


def test_the_bars_of_right_and_wrong_sets_add_up_to_all_photos(findings: Diagnostics) -> None:
    figure = charts.sizes_of_hits(findings.sizes, findings.hits)
    right, wrong = (c for c in figure.axes[0].containers if isinstance(c, BarContainer))
    assert sum(bar.get_height() for bar in right) == pytest.approx(findings.hits.mean())
    assert sum(bar.get_height() for bar in wrong) == pytest.approx(1 - findings.hits.mean())
    ends = [bar.get_y() for bar in wrong]
    assert ends == [bar.get_height() for bar in right]
    of_two = (findings.sizes == 2) & findings.hits
    assert right[charts._size_bars(findings.sizes).names.index("2")].get_height() == pytest.approx(
        of_two.mean()
    )


def test_hit_rates_are_drawn_for_the_sizes_there_are() -> None:
    sizes, hits = np.array([1, 1, 4, 4]), np.array([True, False, True, True])
    figure = charts.hits_of_sizes(sizes, hits)
    assert errorbar(figure) == ([0, 3], [0.5, 1.0])


def test_each_group_has_a_line_that_adds_up_to_one(findings: Diagnostics) -> None:
    few = sample_logits()[1] > 15
    bars = charts._size_bars(findings.sizes)
    figure = charts.sizes_of_groups(findings.sizes, {"few": few, "many": ~few})
    for name, among in (("few", few), ("many", ~few)):
        _, shares = line(figure, name)
        assert sum(shares) == pytest.approx(1)
        of_one = (findings.sizes[among] == 1).mean()
        assert shares[bars.names.index("1")] == pytest.approx(of_one)


def test_reliability_is_drawn_where_there_are_scores() -> None:
    result = Reliability(
        counts=np.array([0, 4, 10]),
        mean_scores=np.array([np.nan, 0.5, 0.9]),
        hits=np.array([0, 1, 9]),
        effective=np.array([0.0, 4.0, 10.0]),
    )
    figure = charts.reliability(result, result)
    assert errorbar(figure) == ([0.5, 0.9], [0.25, 0.9])
    assert line(figure, "scores of all classes") == ([0.5, 0.9], [0.25, 0.9])
    (bars,) = (c for c in figure.axes[0].containers if isinstance(c, BarContainer))
    assert [bar.get_height() for bar in bars] == pytest.approx([0, 4 / 14, 10 / 14])


def test_drawing_changes_no_setting_of_matplotlib(findings: Diagnostics) -> None:
    before = dict(mpl.rcParams)
    charts.sizes_achieved(findings.average_k)
    assert dict(mpl.rcParams) == before

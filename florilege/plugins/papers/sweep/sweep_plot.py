"""The curves of a sweep; needs matplotlib, the extra ``report``."""

from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from florilege.calibration.report.html_page import BLUE, GREEN, STYLE, panel
from florilege.plugins.papers.sweep.sweep_record import Mean


@mpl.rc_context(STYLE)
def accuracy_over_k(tested: Mapping[str, Mapping[float, Mapping[str, Mean]]], title: str) -> Figure:
    """Average-K and top-K accuracy on test over K, means over seeds with 95 % intervals.

    ``tested`` is that of a `Record`: means by rule, K and figure.
    """
    figure, axes = panel("K", "sets of test photos with the truth")
    for rule, colour, form, label in (
        ("average_k", GREEN, "o-", "K on average"),
        ("top_k", BLUE, "s--", "exactly K, the K best"),
    ):
        by_k = tested.get(rule, {})
        means = [figures["hit_rate"] for figures in by_k.values()]
        values, halves = [mean.mean for mean in means], [mean.half or 0.0 for mean in means]
        axes.errorbar(
            *(list(by_k), values, halves),
            fmt=form, color=colour, markersize=4, capsize=3, label=label,
        )  # fmt: skip
    axes.set_xticks(sorted({k for by_k in tested.values() for k in by_k}))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title(title)
    axes.legend(loc="lower right", title="mean and 95 % interval" if any(halves) else None)
    return figure

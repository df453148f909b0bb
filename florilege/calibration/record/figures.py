"""The figures of a threshold, from what was counted of its sets."""

from dataclasses import dataclass
from itertools import zip_longest
from math import sqrt
from typing import Any, Literal

from florilege.calibration.intervals import Z95, mean_interval, wilson
from florilege.calibration.record.schema import Counts
from florilege.calibration.rules.label_noise import LabelNoise

Verb = Literal["calibrate", "evaluate"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One threshold and its figures.

    To add a figure, add it here, to :meth:`figures` and to :func:`row_of`; what it follows from
    must be in :class:`.schema.Counts`. The commands follow. For the server's answers, add it to
    ``OperatingPoint.estimates``, and to ``SetInfo`` and ``Point`` in the schemas of the server.
    """

    value: float  # the requested K or coverage
    lambda_val: float | None  # the threshold; None for ``top_k``
    size: float  # mean set size, with its 95 % interval
    size_low: float
    size_high: float
    size_deviation: float  # standard deviation of the set size
    empty_rate: float  # share of empty sets
    ties: int  # scores kept beyond the rank
    size_histogram: tuple[int, ...]  # sets in each bin of ``size_bins``, without trailing zeros
    hit_rate: float | None = None  # with its 95 % interval; None where the photos have no labels
    hit_low: float | None = None
    hit_high: float | None = None
    hit_rows: float | None = None  # independent rows that would give an interval as wide
    hit_histogram: tuple[int, ...] = ()  # how many sets of each bin hold the true class

    def figures(self, verb: Verb) -> dict[str, Any]:
        """The figures that a command prints, by name; intervals are named ``NAME_ci95``."""
        figures = {
            "mean_set_size": self.size,
            "mean_set_size_ci95": (self.size_low, self.size_high),
            "hit_rate": self.hit_rate,
            "hit_rate_ci95": None if self.hit_rate is None else (self.hit_low, self.hit_high),
            "empty_rate": self.empty_rate,
        }
        return figures | ({"ties": self.ties} if verb == "calibrate" else {})


def row_of(counts: Counts, rows: int, noise: LabelNoise | None, bounds: tuple[int, int]) -> Row:
    """The figures of one threshold.

    Args:
        counts: What was counted.
        rows: Photos, or groups of photos, that were counted.
        noise: The assumption about wrong labels; None where they are taken as they are.
        bounds: The smallest and the largest size that a set can have.
    """
    size, (fewest, most) = counts.size_sum / rows, bounds
    deviation = sqrt(max(0, rows * counts.size_squares - counts.size_sum**2)) / rows
    low, high = mean_interval(size, deviation, counts.size_rows, lowest=fewest, highest=most)
    return Row(
        value=counts.value,
        lambda_val=counts.lambda_val,
        size=size,
        size_low=low,
        size_high=high,
        size_deviation=deviation,
        empty_rate=counts.sizes[0] / rows,
        ties=counts.ties,
        size_histogram=counts.sizes,
        **({} if counts.hit_rows is None else _hits(counts, counts.hit_rows, noise)),
    )


def label_hits(counts: Counts) -> int:
    """How many sets hold the label, right or wrong."""
    return sum(counts.sizes) - sum(counts.misses)


def mean_chance(counts: Counts) -> float:
    """Where labels are wrong: the share of sets with a class drawn from the label's group."""
    return sum(counts.chance) / sum(counts.sizes)


def hit_rate(counts: Counts, noise: LabelNoise | None) -> float:
    """Share of sets with the true class."""
    share = label_hits(counts) / sum(counts.sizes)
    return share if noise is None else noise.corrected(share, mean_chance(counts))


def _hits(counts: Counts, effective: float, noise: LabelNoise | None) -> dict[str, Any]:
    """The fields of a row that need labels, corrected for wrong ones if there are any."""
    rate = hit_rate(counts, noise)
    low, high = wilson(label_hits(counts), sum(counts.sizes), effective=effective)
    pairs = zip_longest(counts.sizes, counts.misses, fillvalue=0)
    histogram = [sets - lack for sets, lack in pairs]
    if noise is not None:
        low, high = noise.interval(low, high, mean_chance(counts))
        low, high = min(low, rate), max(high, rate)
        if low < rate:  # Wilson's formula, solved for the rows
            effective = min(effective, Z95**2 * low * (1 - low) / (rate - low) ** 2)
        histogram = [
            min(max(0, round((hits - noise.rate * chance) / (1 - noise.rate))), sets)
            for sets, hits, chance in zip_longest(
                counts.sizes, histogram, counts.chance, fillvalue=0
            )
        ]
    while histogram and not histogram[-1]:
        histogram.pop()
    return {
        "hit_rate": rate, "hit_low": low, "hit_high": high,
        "hit_rows": effective, "hit_histogram": tuple(histogram),
    }  # fmt: skip

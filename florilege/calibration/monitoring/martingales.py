"""Two sequential tests without labels: they stay valid if you look after every photo.

Players bet against a null hypothesis. A player starts with a capital of 1 and bets on each new row
at odds that are fair, or worse than fair, under the hypothesis. The capital is then a non-negative
supermartingale, and by Ville's inequality the probability that it *ever* reaches ``1 / alpha`` is
at most ``alpha``, however long you watch and whenever you stop.

A plain product of gains shrinks as long as the hypothesis holds: after a year without change, a
change would take another year to detect. So a share ``1 / (k (k + 1))`` of the capital enters the
game at row ``k``. The shares sum to one, the guarantee still holds, and a change after ``n`` rows
costs only a factor of about ``n ** 2``.

References:
    Ville, "Étude critique de la notion de collectif", 1939. Waudby-Smith and Ramdas, "Estimating
    means of bounded random variables by betting", 2024. Shin, Ramdas and Rinaldo, "E-detectors",
    2023. For the ranks Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005,
    chapter 7.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.scores import check_histogram
from florilege.calibration.sets import Floats

_STAKES = np.array([0.9, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01, 0.005])
"""Shares of the largest stake that cannot lead to debt; large ones detect large changes quickly."""
_WAVES = np.arange(1, 5)
_SWINGS = np.array([0.9, 0.5, 0.2, 0.05])
ROWS_AT_ONCE = 1024
# A stake keeps at least a tenth at each row, so within a block running sums lie less than a factor
# of 10^130 apart: none underflows.
_BLOCK = 128


class _Capital:
    """The total capital of several players with different bets and equal starting capital.

    Rows may come in clusters of dependent rows, such as the photos of one observation. With
    clusters of up to ``cluster_size`` rows, each gain is replaced by its root of that degree: by
    Hölder's inequality the product of a cluster's roots is at most 1 on average if each gain is.

    ``rows`` were played so far, ``logs`` are of the capital of each player in the game.
    """

    def __init__(self, players: int, *, cluster_size: int = 1) -> None:
        self.rows, self.cluster_size = 0, cluster_size
        self.logs: Floats = np.full(players, -np.log(2.0))  # the share of row 1

    def play(self, log_gains: Floats) -> Floats:
        """Play some rows; returns the log of the capital after each, ``(rows,)``; it started at 0.

        ``log_gains`` are the logs of the factors by which each player's stake changes at each row,
        ``(rows, players)``. Under the hypothesis no factor may exceed 1 on average.
        """
        parts = [log_gains[start : start + _BLOCK] for start in range(0, len(log_gains), _BLOCK)]
        return np.concatenate([np.empty(0), *map(self._play_block, parts)])

    def _play_block(self, log_gains: Floats) -> Floats:
        count = self.rows + np.arange(1, len(log_gains) + 1)  # rows played after each
        entering = -np.log(count + 1.0) - np.log(count + 2.0)  # the share of the next row
        gains = np.cumsum(log_gains / self.cluster_size, axis=0)  # (rows, players)
        # A share that enters at a row grows by the gains of later rows alone. Divided by the gains
        # so far, the shares add up to a running sum: no loop over the rows.
        started = np.concatenate([self.logs[np.newaxis], entering[:, np.newaxis] - gains])
        top = started.max(axis=0)
        in_game = gains + top + np.log(np.exp(started - top).cumsum(axis=0)[1:])  # (rows, players)
        self.logs, self.rows = in_game[-1].copy(), int(count[-1])
        most = in_game.max(axis=1)
        mean = most + np.log(np.exp(in_game - most[:, np.newaxis]).mean(axis=1))
        # The shares 1 / (k (k + 1)) up to row k sum to 1 - 1 / (k + 1), so this is left of the
        # capital.
        held_back = -np.log(count + 2.0)
        return np.asarray(np.logaddexp(mean, held_back))

    def to_plain(self) -> dict[str, Any]:
        """The state as plain data, for :meth:`restore`."""
        return {"rows": self.rows, "logs": self.logs.tolist()}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`to_plain`; ValueError if it is of another test."""
        logs = np.asarray(plain["logs"], dtype=np.float64)
        if logs.shape != self.logs.shape or not np.isfinite(logs).all():
            raise ValueError(
                f"logs must be {self.logs.size} finite numbers, got shape {logs.shape}"
            )
        self.logs, self.rows = logs, int(plain["rows"])


class MeanTest(_Capital):
    """Bets against the hypothesis that each row's mean lies in ``[low, high]``.

    Promise: while the mean of every row, given the rows before it, lies in ``[low, high]``, the
    probability that the capital ever reaches ``1 / alpha`` is at most ``alpha``.

    Half of the players bet on a higher mean: each row multiplies their stakes by
    ``1 + s (x - high)``. The other half bet on a lower one: ``1 + s (low - x)``.

    Larger values than ``largest`` are clipped to it; ``cluster_size`` is that of :class:`_Capital`.

    Raises:
        ValueError: Not ``0 <= low <= high``, ``0 < high`` and ``low < largest``.
    """

    def __init__(self, *, low: float, high: float, largest: float, cluster_size: int = 1) -> None:
        if not (0 <= low <= high and high > 0 and low < largest < np.inf):
            raise ValueError(
                "a mean test needs 0 <= low <= high, 0 < high and low < largest, got "
                f"{low}, {high} and {largest}"
            )
        super().__init__(2 * _STAKES.size, cluster_size=cluster_size)
        self.low, self.high, self.largest = low, high, largest

    def update(self, values: ArrayLike) -> Floats:
        """Add values of at least 0; returns the log of the capital after each, ``(rows,)``."""
        rows = np.minimum(np.asarray(values, dtype=np.float64), self.largest)[:, np.newaxis]
        higher = np.log1p(_STAKES / self.high * (rows - self.high))  # (rows, stakes)
        lower = np.log1p(_STAKES / (self.largest - self.low) * (self.low - rows))
        return self.play(np.concatenate([higher, lower], axis=1))


class DistributionTest(_Capital):
    """Bets against the hypothesis that new values are drawn like those of a histogram.

    Promise: while the values of the histogram and the new ones are exchangeable, the probability
    that the capital ever reaches ``1 / alpha`` is at most ``alpha``. The test treats the histogram
    as a sample too, so it needs no tolerance.

    Under the hypothesis the rank of a value among all values before it, with ties broken at random,
    is uniform (a conformal p-value). Players bet on cosine waves of both signs in its density.

    ``edges`` are lower edges of the bins; lower values count for the first bin. ``counts`` are the
    values in each. ``seed`` is of the random numbers that break ties.

    Raises:
        ValueError: Edges do not ascend or do not match counts, or all counts are 0.
    """

    def __init__(
        self, edges: Sequence[float], counts: Sequence[int], *, seed: int = 0, cluster_size: int = 1
    ) -> None:
        super().__init__(2 * _WAVES.size * _SWINGS.size, cluster_size=cluster_size)
        check_histogram(edges, counts)
        self.edges = np.asarray(edges, dtype=np.float64)
        self.counts = np.asarray(counts, dtype=np.int64).copy()
        self.seed = seed

    def update(self, values: ArrayLike) -> Floats:
        """Add values; returns the log of the capital after each, shape ``(rows,)``."""
        rows = np.asarray(values, dtype=np.float64)
        evidence = [np.empty(0)]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            ranks = self.ranks(rows[start : start + ROWS_AT_ONCE])[:, np.newaxis]
            # A cosine of whole half-turns has the mean 0 over [0, 1], so a bet on a uniform rank is
            # fair.
            waves = np.repeat(np.cos(np.pi * _WAVES * ranks), _SWINGS.size, axis=1)
            bets = np.tile(_SWINGS, _WAVES.size) * waves
            evidence.append(self.play(np.log1p(np.concatenate([bets, -bets], axis=1))))
        return np.concatenate(evidence)

    def ranks(self, values: Floats) -> Floats:
        """Share of larger values among all so far, itself included; ties broken at random."""
        bins = np.maximum(np.searchsorted(self.edges, values, side="right") - 1, 0)
        rows = np.arange(len(values))
        counts = np.zeros((len(values), self.counts.size), dtype=np.int64)
        counts[rows, bins] = 1
        counts = counts.cumsum(axis=0) + self.counts  # after each value
        larger = counts[:, ::-1].cumsum(axis=1)[:, ::-1][rows, bins] - counts[rows, bins]
        stream = np.random.PCG64(self.seed)
        # A number depends only on the seed and the row, not on how the rows are split into batches.
        stream.advance(self.rows)
        tied = np.random.Generator(stream).random(len(values)) * counts[rows, bins]
        total = counts.sum(axis=1)
        self.counts = counts[-1].copy()
        return np.asarray((larger + tied) / total)

    def to_plain(self) -> dict[str, Any]:
        """The state with the counts."""
        return {**super().to_plain(), "counts": self.counts.tolist()}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`to_plain`; ValueError if it is of another test."""
        counts = np.asarray(plain["counts"], dtype=np.int64)
        if counts.shape != self.counts.shape:
            raise ValueError(f"counts must have {self.counts.size} bins, got {counts.size}")
        super().restore(plain)
        self.counts = counts

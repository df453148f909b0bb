"""Two tests without labels that may be looked at after every photo, for as long as you like.

Players bet against a claim. A player starts with a capital of 1 and bets on each new row at odds
that are fair, or worse than fair, while the claim holds. Then the capital is a non-negative
supermartingale, and by Ville's inequality the probability that it *ever* reaches ``1 / alpha`` is
at most ``alpha``, however long you watch and whenever you stop.

A plain product of gains would sink for as long as the claim holds, and a change after a quiet year
would take another year to be noticed. So the players hold money back and start afresh at every row:
the share ``1 / (k (k + 1))`` of the capital enters at row ``k``. The shares sum to one, the
guarantee still holds, and a change after ``n`` quiet rows costs only a factor of about ``n ** 2``.

References:
    Ville, "Étude critique de la notion de collectif", 1939. Waudby-Smith and Ramdas, "Estimating
    means of bounded random variables by betting", 2024. Shin, Ramdas and Rinaldo, "E-detectors",
    2023. For the ranks Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005,
    chapter 7.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

STAKES = np.array([0.9, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01, 0.005])
"""Shares of the largest stake that cannot lead to debt; large ones notice large changes quickly."""
WAVES = np.arange(1, 5)
SWINGS = np.array([0.9, 0.5, 0.2, 0.05])
ROWS_AT_ONCE = 1024


class Capital:
    """What several players own together, each with a bet of their own and an equal start.

    Rows may come in clusters that depend on one another, such as the photos of one plant. With
    clusters of up to ``cluster_size`` rows each gain counts by its root of that degree: by Hölder's
    inequality the product of a cluster's roots is at most 1 on average if each gain is.

    Attributes:
        rows: Rows played so far.
        logs: Log of what each player has in the game, shape ``(players,)``.
    """

    def __init__(self, players: int, *, cluster_size: int = 1) -> None:
        self.rows, self.cluster_size = 0, cluster_size
        self.logs: Floats = np.full(players, -np.log(2.0))  # the share of row 1

    def play(self, log_gains: Floats) -> Floats:
        """Play some rows.

        Args:
            log_gains: Log of the factor by which each player's stake changes at each row, shape
                ``(rows, players)``. While the claim holds no factor may exceed 1 on average.

        Returns:
            Log of the capital after each row, shape ``(rows,)``; it started at 0.
        """
        count = self.rows + np.arange(1, len(log_gains) + 1)  # rows played after each
        entering = -np.log(count + 1.0) - np.log(count + 2.0)  # the share of the row to come
        gains = np.cumsum(log_gains / self.cluster_size, axis=0)  # (rows, players)
        started = np.concatenate([self.logs[np.newaxis], entering[:, np.newaxis] - gains])
        in_game = gains + np.logaddexp.accumulate(started, axis=0)[1:]  # (rows, players)
        if len(in_game):
            self.logs, self.rows = in_game[-1].copy(), int(count[-1])
        mean = np.logaddexp.reduce(in_game, axis=1) - np.log(self.logs.size)
        held_back = -np.log(count + 2.0)
        return np.asarray(np.logaddexp(mean, held_back))

    def to_plain(self) -> dict[str, Any]:
        """The state to keep between two runs."""
        return {"rows": self.rows, "logs": self.logs.tolist()}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Continue from what :meth:`to_plain` gave.

        Raises:
            ValueError: The number of players differs, or a value is not finite.
        """
        logs = np.asarray(plain["logs"], dtype=np.float64)
        if logs.shape != self.logs.shape or not np.isfinite(logs).all():
            raise ValueError(
                f"logs must be {self.logs.size} finite numbers, got shape {logs.shape}"
            )
        self.logs, self.rows = logs, int(plain["rows"])


class MeanTest(Capital):
    """Bets against the claim that each row's mean lies in ``[low, high]``.

    Promise: while the mean of every row, given the rows before it, lies in ``[low, high]``, the
    probability that the capital ever reaches ``1 / alpha`` is at most ``alpha``.

    Half of the players bet on a higher mean: each row multiplies their stakes by
    ``1 + s (x - high)``. The other half bet on a lower one: ``1 + s (low - x)``.

    Args:
        low: Lower end of what is claimed, at least 0.
        high: Its upper end, above 0.
        largest: What larger values are cut down to; above ``low``.
        cluster_size: Largest number of rows that depend on one another, see :class:`Capital`.

    Raises:
        ValueError: One of the first three is out of range.
    """

    def __init__(self, *, low: float, high: float, largest: float, cluster_size: int = 1) -> None:
        if not (0 <= low <= high and high > 0 and low < largest < np.inf):
            raise ValueError(
                "a claim needs 0 <= low <= high, 0 < high and low < largest, got "
                f"{low}, {high} and {largest}"
            )
        super().__init__(2 * STAKES.size, cluster_size=cluster_size)
        self.low, self.high, self.largest = low, high, largest

    def update(self, values: ArrayLike) -> Floats:
        """Log of the capital after each of some more values, 0 or more, shape ``(rows,)``."""
        rows = np.minimum(np.asarray(values, dtype=np.float64), self.largest)[:, np.newaxis]
        higher = np.log1p(STAKES / self.high * (rows - self.high))  # (rows, stakes)
        lower = np.log1p(STAKES / (self.largest - self.low) * (self.low - rows))
        return self.play(np.concatenate([higher, lower], axis=1))


class DistributionTest(Capital):
    """Bets against the claim that new values are drawn like those counted in a histogram.

    Promise: while the counted values and the new ones are exchangeable, the probability that the
    capital ever reaches ``1 / alpha`` is at most ``alpha``. The claim takes into account that the
    histogram is itself a sample, so no tolerance is needed.

    The rank of a value among all values before it, ties broken at random, is uniform while the
    claim holds (a conformal p-value). Players bet on waves in its density, long and short.

    Args:
        edges: Lower edges of the bins, ascending; values below the first are counted with it.
        counts: Values counted in each bin, at least one in all.
        seed: For the random numbers that break ties.
        cluster_size: Largest number of values that depend on one another, see :class:`Capital`.

    Raises:
        ValueError: Edges and counts do not fit, or nothing was counted.
    """

    def __init__(
        self, edges: Sequence[float], counts: Sequence[int], *, seed: int = 0, cluster_size: int = 1
    ) -> None:
        super().__init__(2 * WAVES.size * SWINGS.size, cluster_size=cluster_size)
        self.edges = np.asarray(edges, dtype=np.float64)
        self.counts = np.asarray(counts, dtype=np.int64).copy()
        if self.edges.shape != self.counts.shape or self.counts.sum() < 1 or self.counts.min() < 0:
            raise ValueError("a histogram needs one count of at least 0 per edge, and some values")
        if (np.diff(self.edges) <= 0).any():
            raise ValueError("edges must ascend")
        self.seed = seed

    def update(self, values: ArrayLike) -> Floats:
        """Log of the capital after each of some more values, shape ``(rows,)``."""
        rows = np.asarray(values, dtype=np.float64)
        parts = [rows[at : at + ROWS_AT_ONCE] for at in range(0, len(rows), ROWS_AT_ONCE)]
        return np.concatenate([np.empty(0), *(self._bet(part) for part in parts)])

    def _bet(self, values: Floats) -> Floats:
        ranks = self.ranks(values)[:, np.newaxis]
        waves = np.repeat(np.cos(np.pi * WAVES * ranks), SWINGS.size, axis=1)
        bets = np.tile(SWINGS, WAVES.size) * waves
        return self.play(np.log1p(np.concatenate([bets, -bets], axis=1)))

    def ranks(self, values: Floats) -> Floats:
        """Share of all values so far, itself included, that are larger; ties broken at random."""
        bins = np.maximum(np.searchsorted(self.edges, values, side="right") - 1, 0)
        rows = np.arange(len(values))
        counts = np.zeros((len(values), self.counts.size), dtype=np.int64)
        counts[rows, bins] = 1
        counts = counts.cumsum(axis=0) + self.counts  # after each value
        larger = counts[:, ::-1].cumsum(axis=1)[:, ::-1][rows, bins] - counts[rows, bins]
        broken = self._chance(len(values)) * counts[rows, bins]
        total = counts.sum(axis=1)
        self.counts = counts[-1].copy()
        return np.asarray((larger + broken) / total)

    def _chance(self, rows: int) -> Floats:
        """One number per row, which depends on the seed and the row alone, not on the batches."""
        stream = np.random.PCG64(self.seed)
        stream.advance(self.rows)
        return np.random.Generator(stream).random(rows)

    def to_plain(self) -> dict[str, Any]:
        """The state to keep between two runs."""
        return {**super().to_plain(), "counts": self.counts.tolist()}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Continue from what :meth:`to_plain` gave; ValueError if that is of another test."""
        counts = np.asarray(plain["counts"], dtype=np.int64)
        if counts.shape != self.counts.shape:
            raise ValueError(f"counts must have {self.counts.size} bins, got {counts.size}")
        super().restore(plain)
        self.counts = counts

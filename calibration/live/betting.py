"""Capital of players who bet against a claim: the evidence that is valid at any time.

A player starts with a capital of 1 and bets on each new row at odds that are fair, or worse than
fair, while the claim holds. Then the capital is a non-negative supermartingale, and by Ville's
inequality the probability that it *ever* reaches ``1 / alpha`` is at most ``alpha``, however long
one watches and whenever one stops.

A plain product of gains would sink for as long as the claim holds, and a change after a quiet year
would take as long to be noticed. So the player holds money back and starts anew at every row: the
share ``1 / (k (k + 1))`` of the capital enters at row ``k``. The shares sum to one, the guarantee
stays what it was, and a change after ``n`` quiet rows costs a factor of about ``n ** 2`` only.

References:
    Ville, "Étude critique de la notion de collectif", 1939. Waudby-Smith and Ramdas, "Estimating
    means of bounded random variables by betting", 2024. Shin, Ramdas and Rinaldo, "E-detectors",
    2023.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Capital:
    """What some players own together, each with a bet of their own and an equal start.

    Attributes:
        rows: Rows played so far.
        logs: Log of what each player has in the game, shape ``(players,)``.
    """

    def __init__(self, players: int) -> None:
        self.rows = 0
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
        gains = np.cumsum(log_gains, axis=0)  # (rows, players)
        started = np.concatenate([self.logs[np.newaxis], entering[:, np.newaxis] - gains])
        in_game = gains + np.logaddexp.accumulate(started, axis=0)[1:]  # (rows, players)
        if len(in_game):
            self.logs, self.rows = in_game[-1].copy(), int(count[-1])
        held_back = -np.log(count + 2.0)
        return np.asarray(np.logaddexp(_log_mean(in_game), held_back))


def _log_mean(logs: Floats) -> Floats:
    """Log of the mean of ``exp`` over the players."""
    mean: Floats = np.logaddexp.reduce(logs, axis=1) - np.log(logs.shape[1])
    return mean

"""A threshold that follows the traffic, so that the mean set size stays at K whatever comes."""

from math import exp, isfinite, log

LOWEST_LAMBDA = 1e-6
STEP = 0.01


class SizeTracker:
    """Moves ``lambda_val`` up after each set larger than K, and down after each smaller one.

    Promise, for any stream of photos, even one made to defeat it, and for every number ``T`` of
    photos answered so far: the mean set size differs from K by at most ``bound``, that is
    ``(-log(lowest) + step max(classes - K, K - min_size)) / (step T)``. Each set must be the one
    that :attr:`lambda_val` gives at that moment. No labels are needed and nothing is said about
    the share of sets that hold the true class; on traffic like the validation photos the fixed
    threshold does better, since this one never comes to rest.

    With ``theta = log lambda_val`` the rule is ``theta += step (size - K)``. Above ``lambda_val =
    1`` sets have ``min_size`` classes and theta can only fall; at or below ``lowest`` all classes
    are taken and it can only rise. So theta stays in a band, and the sum of ``size - K`` is its
    change divided by ``step``.

    Args:
        average_k: Wanted mean size, ``min_size <= average_k <= classes``.
        classes: Number of classes.
        min_size: 1 where every set holds its best class, else 0.
        lambda_val: Where to start, such as the calibrated threshold; cut to ``[lowest, 1]``.
        step: How far one class too many moves ``log lambda_val``; above 0.
        lowest: At or below it all classes are taken; in (0, 1).

    Raises:
        ValueError: A value out of range.

    References:
        Gibbs and Candès, "Adaptive conformal inference under distribution shift", NeurIPS 2021;
        Angelopoulos, Candès and Tibshirani, "Conformal PID control for time series prediction",
        NeurIPS 2023.

    Example:
        >>> tracker = SizeTracker(average_k=2, classes=10, lambda_val=0.1, step=0.5)
        >>> tracker.update(4)
        >>> round(tracker.lambda_val, 3)
        0.272
    """

    def __init__(
        self,
        *,
        average_k: float,
        classes: int,
        min_size: int = 1,
        lambda_val: float = 0.1,
        step: float = STEP,
        lowest: float = LOWEST_LAMBDA,
    ) -> None:
        if min_size not in (0, 1) or not min_size <= average_k <= classes:
            raise ValueError(
                "min_size must be 0 or 1 and average_k in [min_size, classes], got "
                f"{min_size}, {average_k} and {classes} classes"
            )
        if not (0 < step < float("inf") and 0 < lowest < 1 and isfinite(lambda_val)):
            raise ValueError(
                "step must be above 0, lowest in (0, 1) and lambda_val finite, got "
                f"{step}, {lowest} and {lambda_val}"
            )
        self.average_k, self.classes, self.min_size = float(average_k), classes, min_size
        self.step, self.lowest = step, lowest
        self.rows, self.total = 0, 0
        self._theta = log(min(1.0, max(lowest, lambda_val)))

    @property
    def lambda_val(self) -> float:
        """The threshold for the next photo: 0 where all classes are taken, above 1 where none."""
        if self._theta <= log(self.lowest):
            return 0.0
        return exp(self._theta) if self._theta <= 0 else 1.0 + self._theta

    @property
    def mean_size(self) -> float | None:
        """Mean size of the sets so far; None before the first."""
        return self.total / self.rows if self.rows else None

    @property
    def bound(self) -> float:
        """How far the mean size can be from K now; infinite before the first photo."""
        reach = max(self.classes - self.average_k, self.average_k - self.min_size)
        span = -log(self.lowest) + self.step * reach
        return span / (self.step * self.rows) if self.rows else float("inf")

    def update(self, size: int) -> None:
        """Take note of the size of the set that :attr:`lambda_val` gave.

        Raises:
            ValueError: No set can have this size, at all or at this threshold.
        """
        fewest = self.classes if self.lambda_val == 0.0 else self.min_size
        most = self.min_size if self.lambda_val > 1 else self.classes
        if not fewest <= size <= most:
            raise ValueError(
                f"size must be in [{fewest}, {most}] at lambda_val {self.lambda_val:g}, got {size}"
            )
        self.rows, self.total = self.rows + 1, self.total + int(size)
        self._theta += self.step * (size - self.average_k)

    def to_plain(self) -> dict[str, float]:
        """What to keep between two runs, for json."""
        return {"theta": self._theta, "rows": self.rows, "total": self.total}

    def restore(self, plain: dict[str, float]) -> None:
        """Go on from what :meth:`to_plain` gave.

        Raises:
            ValueError: It is no number, or out of the band that these settings allow.
        """
        theta, rows, total = float(plain["theta"]), int(plain["rows"]), int(plain["total"])
        low = log(self.lowest) - self.step * (self.average_k - self.min_size)
        high = self.step * (self.classes - self.average_k)
        if not low <= theta <= high or rows < 0 or not 0 <= total <= rows * self.classes:
            raise ValueError(f"the tracker's state does not fit its settings: {plain}")
        self._theta, self.rows, self.total = theta, rows, total

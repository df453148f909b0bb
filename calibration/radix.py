"""The same threshold in a memory that does not grow with the photos either.

The bits of floating-point numbers of one sign, read as integers, sort like the numbers. So a
histogram of their first 16 bits tells which 65536th of the number line holds the score at a rank;
a second look at the data, at that part alone, tells the next 16 bits; and so on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from calibration.arrays import BLOCK, FloatArray, as_scores
from calibration.threshold import (
    RealNumber,
    Threshold,
    check_average_k,
    exact_rank,
    midpoint,
    next_above,
)

DIGIT_BITS = 16
DIGITS = 1 << DIGIT_BITS
UPWARDS = np.arange(DIGITS)
FIRST_DIGITS = np.concatenate([UPWARDS[: DIGITS // 2][::-1], UPWARDS[DIGITS // 2 :]])
"""First digits by falling score: the sign is the first bit, set for negative numbers."""
_UNSIGNED: Mapping[int, type[np.unsignedinteger[Any]]] = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class _Place(NamedTuple):
    """Where a score is looked for."""

    prefix: int  # the digits known so far
    rank: int  # among the scores with these digits, 1 for the largest
    alike: int  # how many scores have these digits


class RadixScores:
    """Thresholds for some mean set sizes, found in a fixed number of passes over the scores.

    One pass for float16, two for float32, four for float64; about half a megabyte for each mean
    set size, whatever the number of rows and classes. Unlike
    :class:`calibration.selection.TopScores` it needs no number of rows beforehand and has no
    largest ``K``. Exact: bit for bit :func:`calibration.threshold.average_k_threshold`.

    Args:
        average_ks: Wanted mean set sizes.
        dtype: float16, float32 or float64; scores of a lower precision are fine too.

    Raises:
        ValueError: Another dtype, or no mean set size.

    Example:
        >>> scores = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]])
        >>> radix = RadixScores([1.5])
        >>> while radix.unfinished:
        ...     for row in scores:
        ...         radix.update([row])
        ...     radix.finish_pass()
        >>> radix.threshold(1.5)
        Threshold(lambda_val=0.3, achieved=1.5, rows=2, ties=0)
    """

    def __init__(self, average_ks: Sequence[RealNumber], dtype: DTypeLike = np.float64) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float16, np.float32, np.float64):
            raise ValueError(f"dtype must be float16, float32 or float64, got {self.dtype}")
        if not average_ks:
            raise ValueError("average_ks must name at least one mean set size")
        self.average_ks = tuple(average_ks)
        self.rows = 0
        self._passes = self.dtype.itemsize * 8 // DIGIT_BITS
        self._pass = 0
        self._rows_of_pass = 0
        self._classes: int | None = None
        self._set_prefixes([0])
        self._finite = 0
        self._wanted: dict[int, _Place] = {}  # by rank, 1 for the largest score

    @property
    def unfinished(self) -> bool:
        """Whether another pass over all scores is needed."""
        return self._pass < self._passes

    def update(self, scores: ArrayLike) -> None:
        """Add some more rows of the present pass, shape ``(batch, classes)``.

        Raises:
            ValueError: A NaN or +inf, a higher precision than announced, another number of
                classes, or no pass is left.
        """
        if not self.unfinished:
            raise ValueError("all passes are finished: nothing is left to add")
        batch = as_scores(scores, first_row=self._rows_of_pass)
        if batch.dtype.itemsize > self.dtype.itemsize:
            raise ValueError(f"scores must be {self.dtype} or less precise, got {batch.dtype}")
        self._count_rows(*batch.shape)
        flat = batch.reshape(-1)
        for start in range(0, flat.size, BLOCK):
            self._count(bits_of(flat[start : start + BLOCK].astype(self.dtype)))

    def worker(self) -> "RadixScores":
        """An empty helper for the present pass, to be filled elsewhere and merged."""
        other = RadixScores(self.average_ks, self.dtype)
        other._pass = self._pass
        other._set_prefixes(self._prefixes.tolist())
        return other

    def merge(self, other: "RadixScores") -> None:
        """Add what a worker of the same pass counted; ``other`` stays as it is.

        Raises:
            ValueError: The worker belongs to another selection or pass.
        """
        alike = (other.dtype, other._pass) == (self.dtype, self._pass)
        if not alike or not np.array_equal(other._prefixes, self._prefixes):
            raise ValueError("merge needs a worker of the same selection and pass")
        if other._classes is None:
            return
        self._count_rows(other._rows_of_pass, other._classes)
        self._counts += other._counts

    def finish_pass(self) -> None:
        """Say that all rows were added once more.

        Raises:
            ValueError: No rows were added, or not as many as in the first pass.
        """
        if self._pass == 0:
            self._start_search()
        elif self._rows_of_pass != self.rows:
            raise ValueError(f"this pass saw {self._rows_of_pass} rows, the first {self.rows}")
        for rank, place in self._wanted.items():
            self._wanted[rank] = self._refined(place)
        self._pass += 1
        self._rows_of_pass = 0
        if self.unfinished:
            known = {place.prefix for place in self._wanted.values()}
            self._set_prefixes(sorted(known))

    def threshold(self, average_k: RealNumber) -> Threshold:
        """Threshold for one of the mean set sizes, after the last pass.

        Raises:
            ValueError: Passes are left, or ``average_k`` was not announced.
        """
        if self.unfinished:
            raise ValueError(f"{self._passes - self._pass} passes over the scores are left")
        if average_k not in self.average_ks:
            raise ValueError(f"average_k must be one of {self.average_ks}, got {average_k}")
        rank, rows = exact_rank(average_k, self.rows), self.rows
        if rank == 0:
            largest = self._score_at(1) if self._finite else -np.inf
            return Threshold(lambda_val=next_above(largest), achieved=0.0, rows=rows, ties=0)
        if rank >= self._finite:
            smallest = self._score_at(self._finite) + 0.0 if self._finite else next_above(-np.inf)
            return Threshold(lambda_val=smallest, achieved=self._finite / rows, rows=rows, ties=0)
        last_kept, first_cut = self._score_at(rank), self._score_at(rank + 1)
        ties = 0
        if last_kept == first_cut:
            place = self._wanted[rank]
            ties = place.alike - place.rank
        return Threshold(
            lambda_val=midpoint(last_kept, first_cut),
            achieved=(rank + ties) / rows,
            rows=rows,
            ties=ties,
        )

    def _count_rows(self, rows: int, classes: int) -> None:
        if self._classes not in (None, classes):
            raise ValueError(f"scores must have {self._classes} classes as before, got {classes}")
        self._classes = classes
        self._rows_of_pass += rows

    def _count(self, bits: NDArray[Any]) -> None:
        """Count the digit of this pass of the scores that begin with one of the prefixes."""
        first = bits >> bits.dtype.type(self._shift(0))
        if self._pass == 0:
            self._counts[0] += np.bincount(first.astype(np.intp), minlength=DIGITS)
            return
        bits = bits.compress(self._begun[first])
        prefixes = bits >> bits.dtype.type(self._shift(self._pass - 1))
        places = np.searchsorted(self._prefixes, prefixes)
        places[places == self._prefixes.size] = 0
        inside = self._prefixes[places] == prefixes
        digits = (bits >> bits.dtype.type(self._shift(self._pass))).astype(np.intp) % DIGITS
        np.add.at(self._counts, (places[inside], digits[inside]), 1)

    def _shift(self, digit: int) -> int:
        """How far a digit lies from the last bit; 0 is the first digit."""
        return self.dtype.itemsize * 8 - DIGIT_BITS * (digit + 1)

    def _set_prefixes(self, prefixes: list[int]) -> None:
        """What is known of the scores looked for, ascending; and nothing counted yet."""
        self._prefixes = np.array(prefixes, dtype=_UNSIGNED[self.dtype.itemsize])
        self._counts = np.zeros((len(prefixes), DIGITS), dtype=np.int64)
        self._begun = np.zeros(DIGITS, dtype=np.bool_)  # the first digits of the prefixes
        if self._pass:
            self._begun[[prefix >> DIGIT_BITS * (self._pass - 1) for prefix in prefixes]] = True

    def _start_search(self) -> None:
        if self._classes is None:
            raise ValueError("no rows were seen: call update first")
        self.rows = self._rows_of_pass
        counts = self._counts[0]
        infinite = int(bits_of(np.array([-np.inf], dtype=self.dtype))[0])
        excluded = int(counts[infinite >> self._shift(0)])  # -inf has its digit for itself
        self._finite = self.rows * self._classes - excluded
        for average_k in self.average_ks:
            check_average_k(average_k, lowest=0, classes=self._classes)
            rank = exact_rank(average_k, self.rows)
            for near in (rank, rank + 1):
                if inside := min(max(near, 1), self._finite):
                    self._wanted[inside] = _Place(prefix=0, rank=inside, alike=0)

    def _refined(self, place: "_Place") -> "_Place":
        """One more digit of the score at a rank among the scores with the same prefix."""
        row = int(np.searchsorted(self._prefixes, place.prefix)) if self._pass else 0
        falling = self._falling(place.prefix)
        above = np.cumsum(self._counts[row, falling])
        step = int(np.searchsorted(above, place.rank))
        before = int(above[step - 1]) if step else 0
        digit = int(falling[step])
        return _Place(
            prefix=(place.prefix << DIGIT_BITS) | digit,
            rank=place.rank - before,
            alike=int(self._counts[row, digit]),
        )

    def _falling(self, prefix: int) -> NDArray[np.intp]:
        """Digits of this pass from the largest score to the smallest."""
        if self._pass == 0:
            return FIRST_DIGITS
        negative = prefix >> (DIGIT_BITS * self._pass - 1)
        return UPWARDS if negative else UPWARDS[::-1]

    def _score_at(self, rank: int) -> float:
        """The score at a rank: 1 is the largest."""
        return score_of(self._wanted[rank].prefix, self.dtype)


def radix_thresholds(
    read: Callable[[], Iterable[ArrayLike]],
    average_ks: Sequence[RealNumber],
    dtype: DTypeLike = np.float64,
) -> list[Threshold]:
    """Thresholds for some mean set sizes from scores that can be read several times.

    Args:
        read: Gives all batches of scores, each ``(batch, classes)``, anew at every call.
        average_ks: Wanted mean set sizes.
        dtype: Precision of the scores.

    Raises:
        ValueError: As for :class:`RadixScores`.

    Example:
        >>> batches = [np.array([[0.7, 0.2, 0.1]]), np.array([[0.4, 0.35, 0.25]])]
        >>> [found.lambda_val for found in radix_thresholds(lambda: batches, [1, 1.5])]
        [0.375, 0.3]
    """
    radix = RadixScores(average_ks, dtype)
    while radix.unfinished:
        for batch in read():
            radix.update(batch)
        radix.finish_pass()
    return [radix.threshold(average_k) for average_k in average_ks]


def bits_of(values: FloatArray) -> NDArray[Any]:
    """The bits of the numbers as unsigned integers, those of 0.0 for -0.0."""
    return (values + values.dtype.type(0)).view(_UNSIGNED[values.dtype.itemsize])


def score_of(bits: int, dtype: np.dtype[Any]) -> float:
    """The number with these bits."""
    return float(np.array(bits, dtype=_UNSIGNED[dtype.itemsize]).view(dtype))

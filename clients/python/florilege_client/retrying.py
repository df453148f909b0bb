"""Whether and when a call is made again. Pure: the caller sends and waits."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, TypeVar

from florilege_client.calls import Call
from florilege_client.errors import NoAnswer, Unreachable
from florilege_client.reading import Reply, problem

T = TypeVar("T")
BUSY: Final = (429, 503)
"""Statuses after which the same call may succeed."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often and how patiently a call is made again.

    After a 429, a 503 or a connection that failed: every call can be repeated safely. A wait is as
    long as the server's `Retry-After`, plus a random part of a time that doubles with each try.

    Attributes:
        tries: Most times that a call is made, the first one included.
        first_s: That time after the first try, in seconds.
        longest_s: That time at most.
        total_s: Seconds for all tries and waits together. A wait that would go beyond is not begun.
    """

    tries: int = 4
    first_s: float = 0.5
    longest_s: float = 8.0
    total_s: float = 60.0

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ValueError(f"tries must be at least 1, got {self.tries}")
        if not self.total_s > 0:
            raise ValueError(f"total_s must be more than 0, got {self.total_s}")

    def backoff_s(self, tried: int, draw: float) -> float:
        """Seconds to wait after ``tried`` tries; ``draw`` is between 0 and 1."""
        # The exponent is bounded because 2.0 ** 1024 is an OverflowError.
        return draw * min(self.longest_s, self.first_s * 2.0 ** min(tried - 1, 60))


@dataclass(frozen=True)
class Send:
    """Make the call, waiting at most this long for the network."""

    timeout_s: float


@dataclass(frozen=True)
class Wait:
    """Do nothing for so long."""

    seconds: float


def conversation(
    call: Call[T],
    retries: Retries,
    timeout_s: float,
    *,
    now: Callable[[], float],
    today: Callable[[], float],
    draw: Callable[[], float],
) -> Generator[Send | Wait, Reply | Unreachable | None, T]:
    """Yield what to do next, take what came of it, and return the answer.

    Args:
        call: The call to make.
        retries: How patiently.
        timeout_s: Of one try.
        now: A monotonic clock, in seconds.
        today: Seconds of the epoch, for dates in `Retry-After`.
        draw: A random number between 0 and 1.

    Raises:
        NoAnswer: The last try failed, or one that is not worth repeating.
    """
    ends = now() + retries.total_s
    tried = 0
    while True:
        outcome = yield Send(min(timeout_s, max(0.001, ends - now())))
        tried += 1
        if isinstance(outcome, Reply) and 200 <= outcome.status < 300:
            return call.read(outcome)
        assert outcome is not None, "a try has an outcome"
        failure: NoAnswer
        wait_s = retries.backoff_s(tried, draw())
        if isinstance(outcome, Reply):
            failure = refusal = problem(outcome, today())
            wait_s += refusal.retry_after or 0.0
            passing = outcome.status in BUSY
        else:
            failure, passing = outcome, outcome.passing
        if not passing or tried == retries.tries or now() + wait_s >= ends:
            raise failure
        yield Wait(wait_s)

"""When a call is made again, by a clock that the test turns."""

import json
from collections.abc import Iterable
from itertools import repeat

import pytest

from florilege_client import Problem, Retries, StrangeAnswer, Unreachable, calls
from florilege_client.answers import ClassList
from florilege_client.reading import PROBLEM, Reply
from florilege_client.retrying import Send, Wait, conversation

FINE = Reply(200, {}, b'{"total": 0, "classes": []}')
BROKEN = Unreachable("the connection broke off", passing=True)
TODAY = 1_000_000.0


def refusal(status: int, code: str = "overloaded", after: str | None = None) -> Reply:
    fields = {"detail": "no", "code": code, "instance": "1", "retryable": status in (429, 503)}
    headers = {"content-type": PROBLEM} | ({} if after is None else {"retry-after": after})
    return Reply(status, headers, json.dumps(fields).encode())


class Played:
    """A conversation with replies known beforehand; each try takes ``takes_s`` seconds."""

    def __init__(
        self,
        *replies: Reply | Unreachable,
        retries: Retries | None = None,
        timeout_s: float = 30.0,
        takes_s: float = 0.0,
        draws: Iterable[float] = repeat(1.0),
    ) -> None:
        self.time = 5000.0
        self.timeouts: list[float] = []
        self.waits: list[float] = []
        self._takes_s, self._draws, self._replies = takes_s, iter(draws), list(replies)
        self._talk = conversation(
            calls.classes(q=None, limit=None, lang=None),
            retries or Retries(),
            timeout_s,
            now=lambda: self.time,
            today=lambda: TODAY,
            draw=lambda: next(self._draws),
        )

    def ends(self) -> ClassList:
        """The answer; what was raised instead passes through."""
        came: Reply | Unreachable | None = None
        try:
            while True:
                match self._talk.send(came):
                    case Send(timeout_s):
                        self.timeouts.append(timeout_s)
                        self.time += self._takes_s
                        came = self._replies.pop(0)
                    case Wait(seconds):
                        self.waits.append(seconds)
                        self.time += seconds
                        came = None
        except StopIteration as end:
            result: ClassList = end.value
            return result


@pytest.mark.parametrize("failure", [refusal(503), refusal(429), BROKEN])
def test_a_passing_failure_is_tried_again(failure: Reply | Unreachable) -> None:
    played = Played(failure, failure, FINE)
    assert played.ends().total == 0
    assert played.waits == [0.5, 1.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 413, 415, 422, 500, 502, 504])
def test_another_refusal_is_not(status: int) -> None:
    played = Played(refusal(status, "some_code"))
    with pytest.raises(Problem) as raised:
        played.ends()
    assert (raised.value.status, raised.value.code) == (status, "some_code")
    assert played.waits == []


def test_a_failure_that_will_not_pass_is_raised_as_it_is() -> None:
    wrong = Unreachable("no such protocol", passing=False)
    with pytest.raises(Unreachable) as raised:
        Played(wrong).ends()
    assert raised.value is wrong


def test_a_success_that_cannot_be_read_is_not_tried_again() -> None:
    with pytest.raises(StrangeAnswer):
        Played(Reply(200, {}, b"<html>")).ends()


def test_the_last_failure_is_raised_after_as_many_tries_as_there_are() -> None:
    played = Played(refusal(503), BROKEN, refusal(429, "rate_limited"), retries=Retries(tries=3))
    with pytest.raises(Problem) as raised:
        played.ends()
    assert raised.value.code == "rate_limited"
    assert len(played.timeouts) == 3
    once = Played(refusal(503), retries=Retries(tries=1))
    with pytest.raises(Problem):
        once.ends()
    assert once.waits == []


def test_waits_double_up_to_the_longest_and_are_drawn_from_nothing_to_all_of_it() -> None:
    retries = Retries(tries=9, first_s=1.0, longest_s=10.0, total_s=1000.0)
    played = Played(*[refusal(503)] * 8, FINE, retries=retries)
    played.ends()
    assert played.waits == [1, 2, 4, 8, 10, 10, 10, 10]
    sample = Played(*[refusal(503)] * 3, FINE, retries=retries, draws=[0.0, 0.25, 0.5, 0.5])
    sample.ends()
    assert sample.waits == [0.0, 0.5, 2.0]
    assert retries.backoff_s(10_000, 1.0) == 10.0


@pytest.mark.parametrize("after", ["7", "Mon, 12 Jan 1970 13:46:47 GMT"])  # TODAY and 7 seconds
def test_a_wait_that_the_server_asks_for_is_kept_and_a_bit_more(after: str) -> None:
    played = Played(refusal(503, after=after), FINE, draws=[0.4, 0.4])
    played.ends()
    assert played.waits == [pytest.approx(7.2)]


def test_a_wait_beyond_the_time_there_is_is_not_begun() -> None:
    played = Played(refusal(429, after="3600"), FINE)
    with pytest.raises(Problem) as raised:
        played.ends()
    assert raised.value.retry_after == 3600.0
    assert played.waits == []


def test_tries_and_waits_together_stay_within_the_time() -> None:
    retries = Retries(tries=100, first_s=2.0, longest_s=2.0, total_s=10.0)
    played = Played(*[BROKEN] * 100, retries=retries, takes_s=1.0, timeout_s=4.0)
    with pytest.raises(Unreachable):
        played.ends()
    assert played.timeouts == [4.0, 4.0, 4.0, 1.0]  # at 0, 3, 6 and 9 seconds
    assert played.time <= 5000.0 + 10.0


@pytest.mark.parametrize("wrong", [{"tries": 0}, {"total_s": 0.0}, {"total_s": float("nan")}])
def test_retries_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Retries(**wrong)  # type: ignore[arg-type]  # on purpose

"""A thread with a bounded queue refuses what is too much, and forgets nothing else."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from florilege.server.bounds import BoundedThread
from florilege.server.problems import Code, Problem
from tests.server.raised_problem import raises_problem


def run(check: Callable[[BoundedThread], Awaitable[None]], thread: BoundedThread) -> None:
    """Run a check in an event loop, and close the thread."""
    try:
        asyncio.run(asyncio.wait_for(check(thread), 20))
    finally:
        thread.close()


def thread(**options: object) -> BoundedThread:
    defaults = {"timeout_s": 10.0, "limit": 2}
    return BoundedThread("test", **{**defaults, **options})  # type: ignore[arg-type]  # any option


def test_calls_are_done_one_at_a_time_in_order() -> None:
    order = list[int]()

    async def check(one: BoundedThread) -> None:
        await asyncio.gather(*(one.run(order.append, number) for number in range(50)))
        assert order == list(range(50))
        assert one.depth == 0

    run(check, thread(limit=50))


def test_a_full_queue_refuses_and_has_room_again_later() -> None:
    gate = threading.Event()

    async def check(one: BoundedThread) -> None:
        waiting = [asyncio.ensure_future(one.run(gate.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0)
        with raises_problem(Code.OVERLOADED) as refused:
            await one.run(int)
        assert (refused.value.limit, refused.value.headers["Retry-After"]) == (2, "1")
        gate.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await one.run(int, "7") == 7

    run(check, thread())


def test_a_call_that_waits_too_long_is_refused_and_not_done() -> None:
    calls, gate = list[int](), threading.Event()

    async def check(one: BoundedThread) -> None:
        first = asyncio.ensure_future(one.run(gate.wait, 10))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(one.run(calls.append, 1))
        await asyncio.sleep(0.1)
        gate.set()
        assert await first
        with raises_problem(Code.QUEUE_TIMEOUT) as refused:
            await late
        assert refused.value.headers["Retry-After"] == "1"
        assert calls == []
        assert one.depth == 0

    run(check, thread(timeout_s=0.05))


@pytest.mark.parametrize("late", [False, True])
def test_a_refusal_may_have_its_own_code(late: bool) -> None:
    async def check(one: BoundedThread) -> None:
        with raises_problem(Code.FEEDBACK_NOT_STORED) as refused:
            await one.run(int)
        assert refused.value.headers["Retry-After"] == "10"

    refusal = {"refusal": Code.FEEDBACK_NOT_STORED, "retry_after": 10}
    run(check, thread(**refusal, **({"timeout_s": -1.0} if late else {"limit": 0})))


def test_errors_and_cancelled_calls_give_their_places_back() -> None:
    gate = threading.Event()

    async def check(one: BoundedThread) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await one.run(int, "x")
        waiting = [asyncio.ensure_future(one.run(gate.wait, 10)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:])
        assert one.depth == 1
        gate.set()
        assert await waiting[0]

    run(check, thread())


def test_a_closed_thread_refuses_as_draining() -> None:
    async def check(one: BoundedThread) -> None:
        one.close()
        with pytest.raises(Problem) as refused:
            await one.run(int)
        assert refused.value.code is Code.DRAINING
        assert one.depth == 0

    run(check, thread())

import os
import signal
import threading

import pytest

from training.interrupt import interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_request_sets_a_flag_and_the_second_stops(number: signal.Signals) -> None:
    seen: list[bool] = []
    with interruptible() as interruption:
        seen.append(interruption.requested)
        os.kill(os.getpid(), number)
        seen.append(interruption.requested)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert seen == [False, True]


def test_the_handlers_from_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="inside"), interruptible():
        raise ValueError("inside")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_thread_may_train_without_handlers() -> None:
    seen: list[bool] = []

    def work() -> None:
        with interruptible() as interruption:
            seen.append(interruption.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]

"""Listeners run after the answer, in order, and never delay it."""

import threading

import numpy as np
import pytest

from florilege.server.background import publisher as module
from florilege.server.background.publisher import Publisher
from florilege.server.prometheus import Metrics
from tests.server.metric_values import value
from tests.server.server_thread import wait_for


class Ear:
    """Remembers what it receives; one call may fail."""

    name = "ear"

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.heard: list[float] = []
        self.closed = False
        self.fails_at = fails_at
        self.reached, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def on_answer(self, logits: np.ndarray, *, restricted: bool) -> None:
        number = float(logits[0, 0])
        self.reached.set()
        assert self.gate.wait(15)
        if number == self.fails_at:
            raise RuntimeError("no space left")
        self.heard.append(number)

    def close(self) -> None:
        self.closed = True


def publish(publisher: Publisher, number: float) -> None:
    publisher.publish(np.full((1, 3), number, dtype=np.float32), restricted=False)


def dropped(metrics: Metrics) -> float:
    return value(metrics, "afterwards_dropped_total", listener="ear")


def test_every_published_request_is_processed_in_order_before_the_end() -> None:
    ears = [Ear(), Ear()]
    outcome = Publisher(ears, Metrics())
    for number in range(200):
        publish(outcome, number)
    outcome.close()
    for ear in ears:
        assert ear.heard == list(range(200))
        assert ear.closed


def test_a_listener_that_fails_loses_that_row_alone(caplog: pytest.LogCaptureFixture) -> None:
    failing, other, metrics = Ear(fails_at=2), Ear(), Metrics()
    outcome = Publisher([failing, other], metrics)
    for number in range(4):
        publish(outcome, number)
    outcome.close()
    assert failing.heard == [0, 1, 3]
    assert other.heard == [0, 1, 2, 3]
    assert dropped(metrics) == 1
    assert "no space left" in caplog.text


def test_a_slow_listener_loses_rows_and_delays_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 5)
    slow, metrics = Ear(), Metrics()
    slow.gate.clear()
    outcome = Publisher([slow], metrics)
    publish(outcome, -1)
    assert slow.reached.wait(15)
    missed = []
    for number in range(8):
        publish(outcome, number)  # returns at once, although nobody hears it yet
        missed.append(dropped(metrics))
    assert missed == [0, 0, 0, 0, 0, 1, 2, 3]
    slow.gate.set()
    outcome.close()
    assert slow.heard == [-1, 0, 1, 2, 3, 4]
    publish(outcome, 9)  # nobody is left to hear it


def test_without_listeners_no_thread_runs() -> None:
    before = threading.active_count()
    outcome = Publisher([], Metrics())
    publish(outcome, 1)
    assert threading.active_count() == before
    outcome.close()


def test_other_listeners_take_over_after_every_request_and_also_where_opening_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new = Ear(), Ear()
    outcome = Publisher([old], Metrics())
    publish(outcome, 1)
    outcome.replace_listeners(lambda: 1 / 0)  # type: ignore[arg-type,return-value]  # on purpose
    outcome.replace_listeners(lambda: [new])
    wait_for(lambda: outcome.listeners == [new])
    publish(outcome, 2)
    outcome.close()
    assert (old.heard, old.closed, new.heard, new.closed) == ([1], True, [2], True)
    assert "answers are no longer processed" in caplog.text

"""Listeners run after the answer, in order, and never delay it."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.calibration.monitoring.score_log import ScoreLogWriter, Scorer, open_score_log
from florilege.calibration.record.record_file import read_record
from florilege.errors import UsageError
from florilege.models.bundle import open_bundle
from florilege.server import publisher as module
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from florilege.server.app import create_app
from florilege.server.prometheus import Metrics
from florilege.server.publisher import Answered, Publisher, _ScoreLogListener
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.metric_values import value
from tests.server.server_thread import wait_for


class Ear:
    """Remembers what it receives; one call may fail."""

    name = "ear"

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.heard, self.portions = list[float](), list[int]()
        self.closed = False
        self.fails_at = fails_at
        self.reached, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def on_answers(self, requests: Sequence[Answered]) -> None:
        numbers = [float(request.logits[0, 0]) for request in requests]
        self.reached.set()
        assert self.gate.wait(15)
        if self.fails_at in numbers:
            raise RuntimeError("no space left")
        self.heard += numbers
        self.portions.append(len(numbers))

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


def test_requests_come_in_portions_and_the_last_without_more_traffic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that woke for each request would take its core from the photos."""
    monkeypatch.setattr(module, "MOST_WAIT_S", 60.0)
    ear, metrics = Ear(), Metrics()
    outcome = Publisher([ear], metrics)
    for number in range(63):
        publish(outcome, number)
    assert not ear.reached.wait(0.05)
    publish(outcome, 63)
    wait_for(lambda: ear.portions == [64])
    ear.reached.clear()
    publish(outcome, 64)
    assert not ear.reached.wait(0.05)
    ear.gate.clear()
    for number in range(65, 264):
        publish(outcome, number)
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.0)
    ear.gate.set()
    wait_for(lambda: len(ear.heard) == 264)
    assert max(ear.portions) == 64
    publish(outcome, 264)
    wait_for(lambda: ear.heard == list(range(265)))
    outcome.close()


def test_a_listener_that_fails_loses_that_portion_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PORTION", 1)
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
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.0)
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


@pytest.fixture
def scorer(bundle: Path) -> Scorer:
    opened = open_bundle(bundle)
    return Scorer.of(opened, read_record(opened))


def photos_counted(metrics: Metrics, outcome: str) -> float:
    return value(metrics, "score_log_photos_total", outcome=outcome)


def test_the_logits_of_every_photo_are_logged_bit_for_bit_whatever_was_asked(
    bundle: Path, scorer: Scorer, tmp_path: Path
) -> None:
    folder = tmp_path / "scores"
    groups = [[0], [5, 6], [9], [3]]
    queries: tuple[dict[str, Any], ...] = ({}, {}, {"rule": "top_k", "k": 5}, {"reject": "true"})
    with open_client(bundle, score_log=folder) as client:
        for group, query in zip(groups, queries, strict=True):
            files = [("images", ("p.png", garden.photo(index))) for index in group]
            assert client.post("/v1/identify", params=query, files=files).status_code == 200
        assert client.post("/v1/identify", content=b"no photo").status_code == 415
        metrics = client.app.state.engine.metrics  # type: ignore[attr-defined]  # a FastAPI
    assert photos_counted(metrics, "written") == 5
    pipeline = open_pipeline(bundle, device="cpu")
    expected = [
        pipeline([garden.photo(index) for index in group], IdentifyQuery(), "r").logits
        for group in groups
    ]
    with open_score_log(folder, scorer) as logged:
        for photos in (1, 2):
            (result,) = logged.blocks(photos=photos)  # (requests, photos, classes)
            assert np.array_equal(result, np.stack([one for one in expected if len(one) == photos]))


def test_the_log_is_bounded_as_the_settings_say(bundle: Path, tmp_path: Path) -> None:
    with open_client(bundle, score_log=tmp_path, score_log_max_bytes=1000) as client:
        for _ in range(20):
            client.post("/v1/identify", content=garden.photo(0))
    assert 500 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_without_the_setting_nothing_is_logged(bundle: Path) -> None:
    app = create_app(Settings(bundle=bundle))
    names = [listener.name for listener in app.state.engine.publisher.listeners]
    assert names == ["watch"]


def test_a_failing_disk_loses_rows_and_is_logged_once(
    scorer: Scorer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder was")
    log = _ScoreLogListener(ScoreLogWriter(blocked, scorer, max_bytes=2**30), metrics)
    logits = np.zeros((2, 12), dtype=np.float32)
    log.on_answers([Answered(logits, restricted=False)] * 3)
    assert photos_counted(metrics, "failed") == 6
    assert caplog.text.count("score log cannot be written") == 1
    blocked.unlink()
    log.on_answers([Answered(logits, restricted=False)])
    log.close()
    assert photos_counted(metrics, "written") == 2


@pytest.mark.parametrize("name", ["score_log", "feedback_store", "watch_state"])
def test_an_impossible_folder_is_a_usage_error_at_start(
    bundle: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "below" / "state"
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: .*cannot be created"):
        create_app(Settings(bundle=bundle, **{name: target}))  # type: ignore[arg-type]  # a path

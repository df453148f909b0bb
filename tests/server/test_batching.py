"""Dynamic batching, as on a GPU, tested on a CPU."""

import gc
import logging
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.cores import cores
from florilege.errors import BundleError
from florilege.models.bundle import open_bundle
from florilege.models.images import DamagedImage, load, read_header
from florilege.models.runtime import CPU, installed_wheels, open_graph
from florilege.models.session import FixedBatch, Session
from florilege.server.answers import pipeline as pipelines
from florilege.server.answers.pipeline import (
    BATCH_SIZES,
    LARGEST_BATCH,
    _BatchingSession,
    _in_batches,
    open_pipeline,
)
from florilege.server.answers.query import IdentifyQuery
from florilege.server.bounds import PixelBudget
from florilege.server.engine import Engine
from florilege.server.prometheus import Metrics
from florilege.server.serve import pipeline_of
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.server_thread import Running, wait_for
from tests.server.test_serve import ask

MOST = 1_000_000
PHOTOS = [read_header(garden.photo(number)) for number in range(8)]


@pytest.fixture
def session(bundle: Path) -> Session:
    return Session(open_bundle(bundle), device="cpu")


@pytest.fixture
def batches(session: Session) -> Iterator[_BatchingSession]:
    result = _BatchingSession(session, replayed=True)
    yield result
    result.close()


class Gate:
    """Holds every batch until it is opened, and counts their photos."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.reached, self.sizes = threading.Event(), threading.Event(), list[int]()
        run = FixedBatch.run

        def held(batch: FixedBatch, pictures: Sequence[Any]) -> Any:
            self.sizes.append(len(pictures))
            self.reached.set()
            assert self.open.wait(10)
            return run(batch, pictures)

        monkeypatch.setattr(FixedBatch, "run", held)


def gathered(batches: _BatchingSession, number: int) -> None:
    """Wait until this many decoded photos wait for the next batch."""
    wait_for(lambda: batches._decoded.qsize() >= number)


def batch_threads() -> list[str]:
    """The threads that decode photos for batches or run them."""
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith(("decode", "network"))]


@pytest.mark.parametrize("features", [False, True])
def test_a_photo_gets_what_the_session_says(
    session: Session, batches: _BatchingSession, features: bool
) -> None:
    assert (batches.provider, batches.dimensions) == (session.provider, session.dimensions)
    for photo in PHOTOS:
        (ours, seconds), (theirs, _) = (
            each.infer(photo, max_pixels=MOST, features=features) for each in (batches, session)
        )
        assert seconds > 0
        assert (ours.features is not None) is features
        if ours.features is not None and theirs.features is not None:
            np.testing.assert_allclose(ours.features, theirs.features, rtol=1e-5, atol=1e-5)
        for head, values in theirs.logits.items():
            np.testing.assert_allclose(ours.logits[head], values, rtol=1e-5, atol=1e-5)


def test_photos_decoded_during_a_batch_form_the_next_and_get_their_own_outputs(
    batches: _BatchingSession, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, number = Gate(monkeypatch), LARGEST_BATCH + 6
    with ThreadPoolExecutor(number) as pool:
        first = pool.submit(batches.infer, PHOTOS[0], max_pixels=MOST)
        assert gate.reached.wait(10)
        rest = [
            pool.submit(batches.infer, PHOTOS[each % len(PHOTOS)], max_pixels=MOST)
            for each in range(1, number)
        ]
        gathered(batches, number - 1)
        gate.open.set()
        results = [each.result()[0] for each in (first, *rest)]
    assert gate.sizes == [1, LARGEST_BATCH, 5]
    for each, ours in enumerate(results):
        theirs = session.infer(PHOTOS[each % len(PHOTOS)])[0].logits
        for head, values in theirs.items():
            np.testing.assert_allclose(ours.logits[head], values, rtol=1e-4, atol=1e-4)


def test_no_more_are_decoded_at_once_than_there_are_cores(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.server.answers.pipeline.cores", lambda: 2)
    at_once, most, lock = 0, 0, threading.Lock()

    def slow(*given: Any, **named: Any) -> Any:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        threading.Event().wait(0.02)
        with lock:
            at_once -= 1
        return load(*given, **named)

    monkeypatch.setattr("florilege.server.answers.pipeline.load", slow)
    batches = _BatchingSession(session, replayed=False)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda photo: batches.infer(photo, max_pixels=MOST), PHOTOS))
    batches.close()
    assert most == 2


# What goes wrong -------------------------------------------------------------------------------


def test_a_photo_that_cannot_be_used_is_refused_and_hurts_nobody(batches: _BatchingSession) -> None:
    whole = garden.encoded(garden.pixels(garden.COLOURS[0], side=200), "JPEG")
    with pytest.raises(DamagedImage, match="ends before its last row"):
        batches.infer(read_header(whole[:-1000]), max_pixels=MOST)
    assert batches.infer(PHOTOS[0], max_pixels=MOST)


def test_nan_outputs_fail_only_their_own_photo(
    batches: _BatchingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, run = Gate(monkeypatch), FixedBatch.run

    def broken(batch: FixedBatch, pictures: Sequence[Any]) -> Any:
        result = run(batch, pictures)
        if len(pictures) > 1:
            for values in result.values():
                values[1] = np.nan
        return result

    monkeypatch.setattr(FixedBatch, "run", broken)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(batches.infer, PHOTOS[0], max_pixels=MOST)
        assert gate.reached.wait(10)
        rest = [pool.submit(batches.infer, photo, max_pixels=MOST) for photo in PHOTOS[1:4]]
        gathered(batches, 3)
        gate.open.set()
        assert first.result()
    errors = [each.exception() for each in rest]
    assert sum(error is None for error in errors) == 2
    assert [type(error) for error in errors if error is not None] == [BundleError]


def test_a_batch_that_fails_neither_fails_the_next_nor_holds_its_photos_beyond_their_requests(
    batches: _BatchingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FixedBatch.run
    monkeypatch.setattr(FixedBatch, "run", lambda *_: 1 / 0)
    photos = [replace(PHOTOS[0]) for _ in range(2)]
    references = [weakref.ref(photo) for photo in photos]
    gc.collect()
    gc.disable()
    try:
        while photos:
            with suppress(ZeroDivisionError):
                pytest.fail(str(batches.infer(photos.pop(), max_pixels=MOST)))
        wait_for(lambda: not any(photo() for photo in references))
    finally:
        gc.enable()
    monkeypatch.setattr(FixedBatch, "run", run)
    assert batches.infer(PHOTOS[0], max_pixels=MOST)


def test_closing_ends_the_threads_after_the_last_photo(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open.set()
    batches = _BatchingSession(session, replayed=False)
    gate.open.clear()
    gate.reached.clear()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(batches.infer, PHOTOS[0], max_pixels=MOST)
        assert gate.reached.wait(10)
        second = pool.submit(batches.infer, PHOTOS[1], max_pixels=MOST)
        wait_for(lambda: batches._network._work_queue.qsize() == 1)
        closing = pool.submit(batches.close)
        gate.open.set()
        assert first.result()
        assert second.result()
        closing.result()
    assert not batch_threads()


# Where it is used ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["other numbers", "old pictures", "right"])
def test_batches_that_give_other_numbers_or_replay_old_pictures_are_not_used(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    run, first = FixedBatch.run, dict[int, Any]()

    def replay(batch: FixedBatch, pictures: Sequence[Any]) -> Any:
        result = run(batch, pictures)
        if kind == "other numbers":
            return {name: 1.01 * values for name, values in result.items()}
        return first.setdefault(batch.size, result) if kind == "old pictures" else result

    monkeypatch.setattr(FixedBatch, "run", replay)
    with caplog.at_level(logging.WARNING):
        assert (_in_batches(session) is session) is (kind != "right")
    kinds = [record.message.split(" cannot")[0] for record in caplog.records]
    assert kinds == ([] if kind == "right" else ["replayed batches", "batches"])
    assert kind == "right" or re.search(r"batches of 1 give logits .* away from", caplog.text)


def test_batches_run_without_replay_if_only_replay_fails(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[bool]()

    def refusing(*given: Any, replayed: bool, **named: Any) -> Any:
        opened.append(replayed)
        if replayed:
            raise RuntimeError("not all nodes are on the GPU")
        return open_graph(*given, replayed=replayed, **named)

    monkeypatch.setattr("florilege.server.answers.pipeline.open_graph", refusing)
    result = _in_batches(session)
    assert isinstance(result, _BatchingSession)
    result.close()
    assert opened == [True, False]


@pytest.mark.parametrize("batched", [False, True])
def test_only_a_gpu_is_served_in_batches_and_a_requested_number_of_threads_holds(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    if batched:
        monkeypatch.setattr(pipelines, "CUDA", CPU)
    settings = Settings(bundle=bundle, device="cpu", threads=3)
    engine = Engine(pipeline_of(settings, PixelBudget()), settings, Metrics())
    engine.close()
    session = engine.pipeline.session
    assert isinstance(session, _BatchingSession if batched else Session)
    assert session.concurrency == cores() + LARGEST_BATCH * batched
    assert engine.threads == 3


def test_a_server_on_a_gpu_answers_in_batches_and_as_the_processor_does(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_pipeline(bundle, device="cpu")
    monkeypatch.setattr(pipelines, "CUDA", CPU)
    monkeypatch.setattr("florilege.server.answers.pipeline.cores", lambda: 2)
    with Running(bundle, device="cpu") as running:
        engine = running.engine
        assert isinstance(engine.pipeline.session, _BatchingSession)
        assert engine.threads == cores() + LARGEST_BATCH
        assert isinstance(open_pipeline(bundle, device="cpu").session, Session)  # as predict does
        numbers = [number % 8 for number in range(64)]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda n: ask(running.port, body=garden.photo(n)), numbers))
    for number, (status, ours) in zip(numbers, answers, strict=True):
        assert status == 200
        theirs = expected([garden.photo(number)], IdentifyQuery(), "r").answer
        assert [each["class_id"] for each in ours["results"]] == [
            each.class_id for each in theirs.results
        ]
        assert [each["score"] for each in ours["results"]] == pytest.approx(
            [each.score for each in theirs.results], rel=1e-4
        )
    assert not batch_threads()


@pytest.mark.gpu
def test_a_gpu_replays_batches_that_agree_with_the_processor(
    bundle: Path, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    if "onnxruntime-gpu" not in installed_wheels():
        pytest.skip("onnxruntime-gpu is not installed")
    batches = _in_batches(Session(open_bundle(bundle), device="cuda"))
    assert isinstance(batches, _BatchingSession)
    assert not caplog.messages  # neither batches nor replay were refused
    with ThreadPoolExecutor(16) as pool:
        looks = [pool.submit(batches.infer, photo, max_pixels=MOST) for photo in 8 * PHOTOS]
        results = [each.result()[0].logits for each in looks]
    batches.close()
    for photo, ours in zip(8 * PHOTOS, results, strict=True):
        for head, values in session.infer(photo)[0].logits.items():
            np.testing.assert_allclose(ours[head], values, rtol=1e-3, atol=1e-3)


def test_sizes_ascend_so_that_every_number_of_photos_fits_one() -> None:
    assert list(BATCH_SIZES) == sorted(set(BATCH_SIZES))
    assert BATCH_SIZES[0] == 1

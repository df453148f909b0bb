"""No upload waits for the garbage collector, however its request ends.

A photo that is only freed by the collector is held beyond `max_held_bytes`: an exception that a
future keeps, for instance, holds the frames it went through, and one of them holds the future.
"""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server import garden
from tests.server.gate import Gate
from tests.server.http import test_multipart
from tests.server.metric_values import value
from tests.server.server_thread import Running, wait_for

LARGE = 300_000  # bytes: too many to be parsed on the event loop
PHOTO = garden.encoded(np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8), "PNG")
JUNK = b"no photo" * (LARGE // 8)
PATHS = ("/v1/identify", "/v2/identify/all")


def form(*photos: bytes, name: str = "images") -> bytes:
    return test_multipart.form(*((name, photo) for photo in photos))


@pytest.fixture
def running(bundle: Path) -> Iterator[Running]:
    gc.collect()
    gc.freeze()  # what earlier tests left is neither searched nor counted
    with Running(bundle, threads=1, plantnet=True, max_body_bytes=3_000_000) as running:
        yield running


@pytest.fixture
def held(running: Running) -> Iterator[Callable[[], int]]:
    """How many bytes, of what the server has done since, only the collector would free."""
    gc.collect()
    gc.disable()

    def count() -> int:
        wait_for(lambda: not running.engine.depth)
        wait_for(lambda: not running.app.state.upload_budget.now)
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            blocks = {id(one): one for thing in gc.garbage for one in gc.get_referents(thing)}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        return sum(len(one) for one in blocks.values() if _is_block(one))

    yield count
    gc.enable()


def post(running: Running, path: str, body: bytes, *, a_form: bool) -> int:
    headers = {"Content-Type": test_multipart.TYPE} if a_form else {}
    with closing(running.connection()) as connection:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status


def copies(content: bytes, *mine: bytes) -> int:
    """How many objects of this process hold it, besides ``mine``."""
    blocks = {id(one): one for thing in gc.get_objects() for one in gc.get_referents(thing)}
    own = {id(one) for one in (content, *mine)}
    return sum(_is_block(one) and content in one for key, one in blocks.items() if key not in own)


def _is_block(one: Any) -> bool:
    return issubclass(type(one), bytes | bytearray)  # `isinstance` would ask the objects of others


FORMS = (
    *[([PHOTO], 200), ([PHOTO, PHOTO], 200), ([JUNK], 415), ([PHOTO[:LARGE]], 422)],
    *[([PHOTO, JUNK], 415), ([PHOTO] * 6, 422), ([PHOTO] * 9, 413)],
)


@pytest.mark.parametrize(
    ("path", "body", "a_form", "status"),
    [
        *((path, form(*photos), True, status) for path in PATHS for photos, status in FORMS),
        *((PATHS[0], *each) for each in [(PHOTO, False, 200), (JUNK, False, 415)]),
        (PATHS[0], PHOTO[:LARGE], False, 422),
        (PATHS[0], form(PHOTO, name="photo"), True, 422),
        (PATHS[0], form(PHOTO)[:-20], True, 400),
    ],
)
def test_an_upload_is_freed_with_its_request(
    running: Running, held: Callable[[], int], path: str, body: bytes, a_form: bool, status: int
) -> None:
    assert post(running, path, body, a_form=a_form) == status
    assert held() < LARGE / 10


@pytest.mark.parametrize("path", PATHS)
def test_requests_that_time_out_or_exceed_the_queue_are_freed(
    running: Running, held: Callable[[], int], path: str
) -> None:
    gate = running.engine.pipeline = Gate(running.engine.pipeline)
    running.engine.queue_limit = 2
    running.engine.settings = running.engine.settings.model_copy(update={"queue_timeout_s": 0.4})
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(post, running, path, form(PHOTO), a_form=True) for _ in range(2)]
        wait_for(lambda: running.engine.depth == 2)
        assert post(running, path, form(PHOTO), a_form=True) == 503
        wait_for(lambda: len(gate.entered) == 1)
        gate.opened.wait(0.5)
        gate.opened.set()
        assert {one.result() for one in waiting} == {503}
    assert held() < LARGE / 10


def test_a_form_is_held_once_while_its_photos_wait(running: Running) -> None:
    gate, payload = Gate(running.engine.pipeline), form(PHOTO)
    running.engine.pipeline = gate
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, running, PATHS[0], payload, a_form=True)
        wait_for(lambda: len(gate.entered) == 1)
        assert copies(PHOTO, payload) == 1
        gate.opened.set()
        assert waiting.result() == 200


def test_the_photo_of_a_client_that_left_is_not_held_until_its_turn(running: Running) -> None:
    gate, metrics = Gate(running.engine.pipeline), running.engine.metrics
    running.engine.pipeline = gate
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, running, PATHS[0], JUNK, a_form=False)
        wait_for(lambda: len(gate.entered) == 1)
        with closing(running.connection()) as connection:
            connection.request("POST", PATHS[0], PHOTO)
            wait_for(lambda: running.engine.depth == 2)
            assert copies(PHOTO) == 1
        wait_for(lambda: value(metrics, "rejected_total", reason="client_left") == 1)
        assert copies(PHOTO) == 0
        assert running.engine.depth == 2  # it still has its place in the queue
        gate.opened.set()
        assert first.result() == 415

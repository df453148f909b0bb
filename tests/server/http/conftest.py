"""The pages of a running server in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.http.page_actions import DESKTOP, READY, Opened, wait_until
from tests.server.server_thread import Running

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request


@pytest.fixture
def opened(chromium: Any, running: Running) -> Iterator[Opened]:
    """Opens pages; any browser error fails the test, except for refused requests."""
    contexts, complaints = [], list[str]()

    def told(message: "ConsoleMessage") -> None:
        if message.type == "error" and "/v1/" not in message.location["url"]:
            complaints.append(message.text)

    def failed(request: "Request") -> None:
        aborted = request.failure == "net::ERR_ABORTED"  # it left the page before it was loaded
        if "/v1/" not in request.url and not aborted:
            complaints.append(f"failed: {request.url}")

    def open_page(path: str = "", url: str = running.url, **options: Any) -> "Page":
        usual = {"viewport": DESKTOP, "locale": "en-GB", "reduced_motion": "reduce"}
        # A service worker asks in place of the page: the tests could not change what it gets.
        options = {**usual, "service_workers": "block", **options}
        contexts.append(chromium.new_context(**options))
        page: Page = contexts[-1].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", told)
        page.on("requestfailed", failed)
        page.goto(f"{url}/{path}")
        wait_until(page, READY)
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:  # an answer that is still changed would fail the next test
            page.unroute_all(behavior="ignoreErrors")
        context.close()
    assert complaints == []


@pytest.fixture
def page(opened: Opened) -> "Page":
    """The page, freshly opened on a desktop."""
    return opened()


@pytest.fixture(scope="module")
def listening(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that accepts feedback."""
    folder = tmp_path_factory.mktemp("feedback")
    with Running(bundle, feedback_store=folder) as running:
        yield running

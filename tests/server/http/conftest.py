"""The pages of a running server in a browser."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.http.page_actions import DESKTOP, READY, Opened, wait_until
from tests.server.server_thread import Running

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

MOST_IDLE = 6  # pages that wait for a test: each is a process
LEAVES_NOTHING = re.compile(
    "check|click|dispatch_event|eval_on_selector(_all)?|evaluate(_handle)?|fill|focus|goto"
    "|expect_(download|request|response)|(get_attribute|input_value|inner_text|text_content|url)"
    "|is_(checked|disabled|hidden|visible)|keyboard|locator|mouse|press|query_selector_all"
    "|reload|(un)?route|unroute_all|select_option|set_(input_files|offline)|uncheck"
    "|wait_for_(selector|timeout)"
)
"""What a test may do with a page that another one opens again: `Tab.clear` takes it back."""


@dataclass(eq=False)
class Tab:
    """A page in a context of its own, and what happened there."""

    page: Any
    url: str
    options: str
    complaints: list[str] = field(default_factory=list)
    lasting: list[str] = field(default_factory=list)
    listeners: list[tuple[str, Any]] = field(default_factory=list)

    def watch(self) -> None:
        """Note any browser error, except for refused requests."""

        def told(message: "ConsoleMessage") -> None:
            if message.type == "error" and "/v1/" not in message.location["url"]:
                self.complaints.append(message.text)

        def failed(request: "Request") -> None:
            aborted = request.failure == "net::ERR_ABORTED"  # it left the page before it was loaded
            if "/v1/" not in request.url and not aborted:
                self.complaints.append(f"failed: {request.url}")

        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", told)
        self.page.on("requestfailed", failed)

    def clear(self) -> bool:
        """Take back what `LEAVES_NOTHING` names, as for a first visit; whether that worked."""
        from playwright.sync_api import Error

        for event, listener in self.listeners:
            self.page.remove_listener(event, listener)
        self.listeners.clear()
        self.page.context.set_offline(False)
        try:
            self.page.goto(f"{self.url}/icon.svg")  # nothing runs there that could store anything
        except Error:  # a server of that test alone
            return False
        self.page.mouse.move(0, 0)
        self.page.evaluate("sessionStorage.clear()")
        session = self.page.context.new_cdp_session(self.page)
        everything = {"origin": self.url, "storageTypes": "all"}
        session.send("Storage.clearDataForOrigin", everything)
        session.detach()
        return True


class Watched:
    """A page or its context, for one test; notes each use that could change another test."""

    def __init__(self, target: Any, tab: Tab) -> None:
        self._target, self._tab = target, tab

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name == "context":
            return Watched(value, self._tab)
        if LEAVES_NOTHING.fullmatch(name) is None:
            self._tab.lasting.append(name)
        return value

    def on(self, event: str, listener: Any) -> None:
        """Listen until the test ends."""
        self._target.on(event, listener)
        if self._target is self._tab.page:
            self._tab.listeners.append((event, listener))
        else:
            self._tab.lasting.append("on")

    def new_cdp_session(self, _: "Page") -> Any:
        """A session with the browser's own protocol, which can change anything."""
        self._tab.lasting.append("new_cdp_session")
        return self._target.new_cdp_session(self._tab.page)


@pytest.fixture(scope="module")
def idle(chromium: Any) -> Iterator[list[Tab]]:
    """Pages that tests have left, the latest last: to open one again is half the work."""
    tabs: list[Tab] = []
    yield tabs
    for tab in tabs:
        tab.page.context.close()


@pytest.fixture
def opened(
    chromium: Any, running: Running, idle: list[Tab], request: pytest.FixtureRequest
) -> Iterator[Opened]:
    """Opens pages; any browser error fails the test, except for refused requests."""
    tabs, failed_before = list[Tab](), request.session.testsfailed

    def open_page(path: str = "", url: str = running.url, **options: Any) -> Any:
        usual = {"viewport": DESKTOP, "locale": "en-GB", "reduced_motion": "reduce"}
        # A service worker asks in place of the page: the tests could not change what it gets.
        options = {**usual, "service_workers": "block", **options}
        alike = [tab for tab in idle if (tab.url, tab.options) == (url, repr(options))]
        if alike:
            idle.remove(tab := alike[-1])
        else:
            page = chromium.new_context(**options).new_page()
            tab = Tab(page, url, repr(options))
            tab.watch()
        tabs.append(tab)
        tab.page.goto(f"{url}/{path}")
        wait_until(tab.page, READY)
        return Watched(tab.page, tab)

    yield open_page
    failed = request.session.testsfailed > failed_before
    complaints = list[str]()
    for tab in tabs:
        for page in tab.page.context.pages:  # an answer that is still changed would fail the next
            page.unroute_all(behavior="ignoreErrors")
        complaints += tab.complaints
        if failed or tab.complaints or tab.lasting or not tab.clear() or tab.complaints:
            tab.page.context.close()
        else:
            idle.append(tab)
    while len(idle) > MOST_IDLE:
        idle.pop(0).page.context.close()
    assert complaints == []


@pytest.fixture
def page(opened: Opened) -> "Page":
    """The page, freshly opened on a desktop."""
    return opened()


@pytest.fixture
def modules(opened: Opened) -> "Page":
    """A page beside the program's modules that has loaded none of them."""
    return opened("icon.svg")


@pytest.fixture(scope="module")
def listening(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that accepts feedback."""
    folder = tmp_path_factory.mktemp("feedback")
    with Running(bundle, feedback_store=folder) as running:
        yield running

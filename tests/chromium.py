"""Debian's Chromium, driven by playwright; without it the tests of pages are skipped.

``chromium-headless-shell`` is the same engine without the windows, menus and extensions of a
desktop: a page costs it two fifths of the processor time.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def _first(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name)) is not None), None)


DESKTOP = _first("chromium", "chromium-browser")
CHROMIUM = _first("chromium-headless-shell") or DESKTOP
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@contextmanager
def launched() -> Iterator[Any]:
    """A browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium: install Debian's package chromium-headless-shell")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def desktop(browser: Any) -> Iterator[Any]:
    """The browser with its windows, which alone says whether a page can be installed."""
    if DESKTOP is None:
        pytest.skip("no whole Chromium: install Debian's package chromium")
    whole = browser.browser_type.launch(executable_path=DESKTOP, args=FLAGS)
    yield whole
    whole.close()

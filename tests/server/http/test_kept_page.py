"""The server's page without a network: a service worker keeps its shell."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.server import garden
from tests.server.http.page_actions import (
    PHOTO,
    Opened,
    browser,
    change_json,
    choose,
    show,
    wait_until,
)
from tests.server.server_thread import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEPT = """async () => {
    const registration = await navigator.serviceWorker.getRegistration();
    const isActive = registration?.active?.state === "activated";
    return isActive && navigator.serviceWorker.controller !== null;
}"""


def kept(opened: Opened, **options: Any) -> "Page":
    """The page once the browser keeps it."""
    page = opened(service_workers="allow", **options)
    wait_until(page, f"({KEPT})()")
    page.reload()  # through the service worker, which then knows the model
    page.wait_for_selector("text=species")
    return page


@browser
def test_the_page_opens_without_a_server_and_keeps_photos_for_it(
    opened: Opened, bundle: Path
) -> None:
    with Running(bundle) as running:
        page = kept(opened, url=running.url)
        show(page)
        model = page.inner_text("#model")
        page.wait_for_selector(".entry")  # the answer is stored
    page.reload()
    page.wait_for_selector(f"text={model}")
    page.click(".entry")
    page.wait_for_selector("#result:not([hidden])")
    choose(page, garden.photo(1))
    page.wait_for_selector("text=sent when there is a network")
    page.reload()
    page.wait_for_selector("text=A photo waits for a network")
    page.goto(page.url + "species.html")
    page.wait_for_selector("#problem:not([hidden])")


@browser
def test_photos_that_wait_go_out_after_the_next_answer(page: "Page") -> None:
    # as after a server was away: no event tells that there is a network again, and no time passes
    silence = "addEventListener('online', (event) => event.stopImmediatePropagation())"
    page.add_init_script(f"{silence}; window.setTimeout = () => 0;")
    page.reload()
    page.wait_for_selector("text=species")
    page.context.set_offline(True)
    choose(page, garden.photo(1))
    page.wait_for_selector("text=A photo waits")
    page.context.set_offline(False)
    show(page, PHOTO)
    wait_until(page, "document.querySelectorAll('.entry:not(:disabled)').length === 2")


@browser
def test_a_new_model_is_announced_once(page: "Page") -> None:
    assert page.is_hidden("#news")  # at the first visit every model is new
    page.reload()
    page.wait_for_selector("text=species")
    assert page.is_hidden("#news")
    change_json(page, "/v1/model", lambda card: card["model"].update(calibration_id="another"))
    page.reload()
    page.wait_for_selector("#news:not([hidden])")
    assert page.inner_text("#news").startswith("A new model answers now: ")
    page.click("#news button")
    assert page.is_hidden("#news")
    page.reload()
    page.wait_for_selector("text=species")
    assert page.is_hidden("#news")


@browser
def test_the_page_can_be_installed_and_has_what_apple_wants(page: "Page") -> None:
    session = page.context.new_cdp_session(page)
    manifest = session.send("Page.getAppManifest")
    assert manifest["errors"] == []
    for side in (180, 192, 512):
        size = page.evaluate(
            """async (name) => {
                const image = new Image();
                image.src = name;
                await image.decode();
                return [image.naturalWidth, image.naturalHeight];
            }""",
            f"icon-{side}.png",
        )
        assert size == [side, side]
    assert page.get_attribute("link[rel='apple-touch-icon']", "href") == "icon-180.png"


@browser
@pytest.mark.parametrize("installed", [False, True])
def test_an_apple_device_is_told_to_add_the_page_to_its_home_screen(
    opened: Opened, running: Running, installed: bool
) -> None:
    page = opened("icon.svg")
    page.add_init_script(f"navigator.standalone = {str(installed).lower()};")
    page.goto(running.url)
    wait_until(page, "document.querySelector('#history-kept').textContent !== ''")
    assert page.is_visible("#install") is not installed
    if not installed:
        assert "Add to Home Screen" in page.inner_text("#install")

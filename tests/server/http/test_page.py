"""The page in a real browser, against a really running server.

The browser is Debian's Chromium, driven by playwright; without it these tests are skipped.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from server.http.page import FILES
from tests.server import garden
from tests.server.running import Running

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
browser = pytest.mark.browser
PHOTO = garden.encoded(garden.pixels(0.5 * garden.COLOURS[5] + 0.5 * garden.COLOURS[6], side=200))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for all tests of this file."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium: install Debian's package of that name")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(chromium: Any, running: Running) -> "Iterator[Page]":
    """The page, freshly opened; whatever the browser complains about fails the test."""
    complaints: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
    page.goto(f"{running.url}/")
    page.wait_for_selector("#presets button", state="attached")
    yield page
    context.close()
    expected = ("status of 415", "status of 422")
    assert [one for one in complaints if not any(word in one for word in expected)] == []


def ask(running: Running, k: float, photos: int = 1) -> dict[str, Any]:
    """What HTTP answers for the same photo."""
    boundary = "b"
    part = f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="p"\r\n\r\n'
    body = (part.encode() + PHOTO + b"\r\n") * photos + f"--{boundary}--\r\n".encode()
    connection = running.connection()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    connection.request("POST", f"/v1/identify?k={k}&include=rollup", body, headers)
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def drop(page: "Page", content: bytes, name: str = "flower.png") -> None:
    """Drop a file on the page as a person does."""
    transfer = page.evaluate_handle(
        """([bytes, name]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
            return transfer;
        }""",
        [list(content), name],
    )
    page.dispatch_event("#drop", "dragover", {"dataTransfer": transfer})
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


def shown(page: "Page") -> tuple[list[str], list[str]]:
    """Class ids of the set, and of those shown below it, in the order of the page."""
    inside = page.eval_on_selector_all("#bars .inside", "all => all.map(e => e.dataset.classId)")
    below = page.eval_on_selector_all("#bars .below", "all => all.map(e => e.dataset.classId)")
    return inside, below


def check_agrees(page: "Page", found: dict[str, Any]) -> None:
    """The page shows exactly the set, the scores and the groups that HTTP answers."""
    inside, below = shown(page)
    assert inside == [result["class_id"] for result in found["results"]]
    assert not set(inside) & set(below)
    assert page.get_attribute("#result", "data-size") == str(found["set"]["size"])
    assert page.inner_text("#answer-title") == found["best_match"]
    exact = page.eval_on_selector_all("#bars .inside .score", "all => all.map(e => e.title)")
    assert [float(text) for text in exact] == [result["score"] for result in found["results"]]
    label = page.get_attribute("#lambda-label", "title")
    assert label == f"threshold λ = {page.evaluate('x => String(x)', found['set']['lambda'])}"
    genera = [group["name"] for group in found["rollup"] if group["rank"] == "genus"]
    families = [group["name"] for group in found["rollup"] if group["rank"] == "family"]
    names = page.eval_on_selector_all("#rollup em", "all => all.map(e => e.textContent)")
    assert names == genera[:3] + families[:2]
    covers = page.eval_on_selector_all("#rollup .covers em", "all => all.map(e => e.textContent)")
    assert covers == [group["name"] for group in found["rollup"] if group["covers_set"]]


@browser
def test_a_dropped_photo_shows_the_set_that_http_answers(page: "Page", running: Running) -> None:
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    found = ask(running, 3.0)
    assert found["set"]["size"] > 1
    check_agrees(page, found)
    assert len(shown(page)[1]) == 4
    hits = found["set"]["hit_rate"]["value"]
    assert f"{round(1000 * hits) / 10:g}\u00a0%" in page.inner_text("#sentence")
    assert f"{found['set']['expected_size']['value']:.1f} species" in page.inner_text("#sentence")


@browser
def test_the_slider_gives_the_very_sets_of_the_server_without_asking_it(
    page: "Page", running: Running
) -> None:
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    sizes = set()
    for index in (0, 7, 10, 33, 40, 75, 110):
        page.eval_on_selector(
            "#k", "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", index
        )
        k = float(page.get_attribute("#result", "data-k") or "nan")
        assert k == 1 + index / 10
        assert page.inner_text("#k-value") == f"{k:.1f}"
        found = ask(running, k)
        check_agrees(page, found)
        sizes.add(found["set"]["size"])
    assert len(sizes) > 3
    assert asked == []


@browser
def test_keys_and_buttons_move_the_slider(page: "Page") -> None:
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    page.focus("#k")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#result", "data-k") == "3.1"
    assert page.get_attribute("#k", "aria-valuetext") == "3.1 species on average"
    page.click("#presets button[data-k='5']")
    assert page.get_attribute("#result", "data-k") == "5"
    assert page.get_attribute("#presets button[data-k='5']", "aria-pressed") == "true"
    assert page.get_attribute("#presets button[data-k='3']", "aria-pressed") == "false"


@browser
def test_the_threshold_stands_between_the_last_bar_inside_and_the_first_below(
    page: "Page",
) -> None:
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    ends = page.evaluate(
        """() => {
            const end = (one) => one.getBoundingClientRect().right;
            const bars = (name) => [...document.querySelectorAll(`#bars .${name} .bar`)].map(end);
            const track = document.querySelector("#bars .track").getBoundingClientRect();
            const chart = document.querySelector(".chart");
            const at = parseFloat(chart.style.getPropertyValue("--lambda"));
            return [bars("inside"), bars("below"), track.left + at * track.width];
        }"""
    )
    inside, below, line = ends
    assert min(inside) >= line > max(below)


@browser
def test_further_photos_of_the_plant_have_thresholds_of_their_own(
    page: "Page", running: Running
) -> None:
    photo: FilePayload = {"name": "flower.png", "mimeType": "image/png", "buffer": PHOTO}
    page.set_input_files("#file", photo)
    page.wait_for_selector("#result:not([hidden])")
    page.click("#presets button[data-k='5']")
    page.set_input_files("#files", [photo, photo])
    page.wait_for_selector("#warnings li")
    found = ask(running, 5.0, photos=3)
    assert found["set"]["calibrated"] is True
    check_agrees(page, found)
    assert "of one species, not of one plant" in page.inner_text("#warnings")
    assert "groups of 3 photos" in page.inner_text("#sentence")
    assert page.get_attribute("#k", "max") == "4"  # K = 1, 2, 3, 5, 10
    page.focus("#k")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#result", "data-k") == "10"
    check_agrees(page, ask(running, 10.0, photos=3))


@browser
def test_more_photos_than_calibrated_are_averaged_and_that_is_said(
    page: "Page", running: Running
) -> None:
    photo: FilePayload = {"name": "flower.png", "mimeType": "image/png", "buffer": PHOTO}
    page.set_input_files("#file", [photo])
    page.wait_for_selector("#result:not([hidden])")
    page.set_input_files("#files", [photo] * 4)
    page.wait_for_selector("#warnings li")
    check_agrees(page, ask(running, 3.0, photos=5))
    assert "not calibrated" in page.inner_text("#warnings")
    assert "single photos only" in page.inner_text("#sentence")
    assert page.get_attribute("#k", "max") == "110"
    assert page.locator("#strip li").count() == 5
    page.click("#strip li:first-child .remove")
    page.wait_for_selector("#strip li:nth-child(5)", state="detached")
    page.set_input_files("#files", [photo] * 2)  # six in all
    page.wait_for_selector("#problem:not([hidden])")
    assert "Remove some" in page.inner_text("#problem")


@browser
def test_a_suspect_photo_keeps_its_set_and_gets_a_word_of_caution(
    page: "Page", running: Running
) -> None:
    drop(page, garden.DULL)
    page.wait_for_selector("#unfamiliar:not([hidden])")
    assert "unlike those the model" in page.inner_text("#unfamiliar")
    assert len(shown(page)[0]) > 1
    drop(page, PHOTO)
    page.wait_for_selector("#unfamiliar", state="hidden")
    check_agrees(page, ask(running, 3.0))


@browser
def test_an_error_is_told_in_plain_words_and_the_next_photo_works(page: "Page") -> None:
    drop(page, b"this is no picture", "holiday.jpg")
    page.wait_for_selector("#problem:not([hidden])")
    assert "not a photo that can be read here" in page.inner_text("#problem")
    assert len(page.inner_text("#problem-id")) == 32
    assert page.is_hidden("#again")
    assert page.is_hidden("#result")
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    assert page.is_hidden("#problem")


@browser
def test_names_are_shown_as_text_never_as_markup(page: "Page") -> None:
    drop(page, garden.photo(11))
    page.wait_for_selector("#result:not([hidden])")
    assert page.inner_text("#answer-title") == "<i>Ignota</i> & co"
    assert page.locator("#answer i").count() == 0


@browser
def test_nothing_sticks_out_sideways(page: "Page") -> None:
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    for width in (320, 390, 700, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@browser
def test_everything_a_person_can_press_has_a_name(page: "Page") -> None:
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    nameless = page.eval_on_selector_all(
        "button, a, input, img",
        """all => all.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.alt
            || (e.labels && e.labels.length))).filter(e => !e.hidden).map(e => e.outerHTML)""",
    )
    assert nameless == []


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    for name, _ in FILES.values():
        text = (Path(__file__).parents[3] / "server" / "web" / name).read_text()
        rest = text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in rest
        assert "https:" not in rest
        assert "style=" not in rest  # the policy would refuse it
        assert "innerHTML" not in rest

"""What a person does on the pages, and what they then show."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.server import garden
from tests.server.http.test_multipart import TYPE, form
from tests.server.server_thread import Running, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page, Route

ASKED = re.compile(r"/v1/(identify|feedback)")
HEARD = """[...document.querySelectorAll("[role=status], [role=alert], [aria-live]")]
    .filter((region) => region.closest("[hidden]") === null)
    .map((region) => region.textContent.trim()).filter((text) => text !== "").join(" | ")"""
"""What a screen reader hears."""
READY = """document.contentType === "image/svg+xml"
    || document.querySelector("tbody, .card") !== null
    || (document.querySelector("#model")?.textContent ?? "").trim() !== ''"""
browser = pytest.mark.browser
PHOTO = garden.encoded(garden.pixels(0.5 * garden.COLOURS[5] + 0.5 * garden.COLOURS[6], side=200))
FILE: "FilePayload" = {"name": "flower.png", "mimeType": "image/png", "buffer": PHOTO}
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"viewport": {"width": 375, "height": 700}, "has_touch": True, "is_mobile": True}

Opened = Callable[..., "Page"]


def wait_until(page: "Page", so: str) -> None:
    """Poll the page: the browser's own waiting evaluates text, which the page forbids."""
    wait_for(lambda: bool(page.evaluate(so)))


def choose(page: "Page", *photos: bytes) -> None:
    """Choose photos."""
    files: list[FilePayload] = [{**FILE, "buffer": photo} for photo in photos]
    page.set_input_files("#file", files)


def show(page: "Page", *photos: bytes) -> None:
    """Choose photos and wait for the answer."""
    choose(page, *(photos or (PHOTO,)))
    page.wait_for_selector("#result:not([hidden])")


def change_json(page: "Page", path: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the server's answer at an address."""

    def answer(route: "Route") -> None:
        response = route.fetch()
        content = response.json()
        change(content)
        route.fulfill(response=response, json=content)

    page.route(re.compile(path), answer)


def change_dial(page: "Page", **changes: Any) -> None:
    """Change these fields of every set that the server answers with."""

    def change(answer: dict[str, Any]) -> None:
        for stop in (answer["set"], *answer["dial"]):
            stop.update(changes)

    change_json(page, "/v1/identify", change)


def slide(page: "Page", at: int) -> None:
    """Move the slider to a stop."""
    move = "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }"
    page.eval_on_selector("#k", move, at)


def stops(page: "Page") -> int:
    """How many sets the slider has."""
    return int(page.get_attribute("#k", "max") or "nan") + 1


def ask(running: Running, k: float, photos: int = 1) -> dict[str, Any]:
    """The answer over HTTP for the same photo."""
    path, body = f"/v1/identify?k={k}&include=rollup", form(*[("images", PHOTO)] * photos)
    content: dict[str, Any] = running.ask("POST", path, body, {"Content-Type": TYPE})[2]
    return content


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
    inside = page.eval_on_selector_all("#members .card", "all => all.map(e => e.dataset.classId)")
    below = page.eval_on_selector_all("#bars .below", "all => all.map(e => e.dataset.classId)")
    return inside, below


def check_agrees(page: "Page", found: dict[str, Any]) -> None:
    """The page shows exactly the set, the scores and the groups of the answer over HTTP."""
    inside, below = shown(page)
    assert inside == [result["class_id"] for result in found["results"]]
    assert not set(inside) & set(below)
    size = found["set"]["size"]
    assert page.get_attribute("#result", "data-size") == str(size)
    taxa = [result["taxon"] for result in found["results"]]
    names = [(taxon["common_names"] or [{"name": taxon["scientific_name"]}])[0] for taxon in taxa]
    title = page.inner_text("#answer-title").lower()
    for name in names[:3]:
        assert name["name"].lower() in title
    assert ("more" in title) == (size > 4)
    lead = page.inner_text("#lead") if page.is_visible("#lead") else ""
    assert (lead == "") == (size < 2)
    exact = page.eval_on_selector_all("#bars .inside .score", "all => all.map(e => e.title)")
    assert [float(text) for text in exact] == [result["score"] for result in found["results"]]
    threshold = page.text_content("#figures dd")
    assert float(threshold or "nan") == pytest.approx(found["set"]["lambda"], rel=1e-5)
    genera = {group["name"] for group in found["rollup"] if group["rank"] == "genus"}
    families = {group["name"] for group in found["rollup"] if group["rank"] == "family"}
    chips = page.eval_on_selector_all("#rollup em", "all => all.map(e => e.textContent)")
    covering = [group["name"] for group in found["rollup"] if group["covers_set"]]
    if len(genera) == 1:
        assert chips == []
    else:
        assert len(chips) == min(3, len(genera)) + min(2, len(families))
        assert set(chips) <= genera | families
    assert size < 2 or not covering or covering[0] in lead
    odds, promised = page.inner_text("#odds"), found["set"]["least_coverage"]
    of_size = found["set"]["hit_rate_at_size"]
    hits = of_size or found["set"]["hit_rate"]
    assert ("not measured" in odds) == (hits is None)
    if hits is not None:
        assert f"in {round(hits['value'] * hits['rows'])} of {hits['rows']}." in odds
        made = "One-species answers" if size == 1 else f"Answers of {size} species"
        assert odds.startswith(made if of_size else "Answers made this way, short and long")
    assert ("at least" in odds) == (promised is not None and of_size is None)

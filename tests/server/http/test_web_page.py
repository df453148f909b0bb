"""The pages in a real browser, against a running server."""

import base64
import io
import re
import struct
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from florilege.plugins.exchange.exchange import read_capture
from florilege.server.problems import OTHER_INTERFACES, Code
from tests.plugins.exchange.test_capture import ASCII, RATIONAL, TIME, rationals
from tests.plugins.exchange.test_capture import photo as camera_photo
from tests.server import garden
from tests.server.background.feedback_rows import photos, words
from tests.server.http.page_actions import (
    ASKED,
    FILE,
    HEARD,
    PHONE,
    PHOTO,
    READY,
    Opened,
    ask,
    browser,
    change_dial,
    change_json,
    check_agrees,
    choose,
    drop,
    show,
    shown,
    slide,
    stops,
    wait_until,
)
from tests.server.server_thread import Running, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import FileChooser, FilePayload, Page, Route

WEB = Path(__file__).parents[3] / "server" / "web"
ANSWERS = WEB.parent / "answers"


@browser
def test_a_dropped_photo_shows_the_set_that_http_answers(page: "Page", running: Running) -> None:
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    outcome = ask(running, 3.0)
    assert outcome["set"]["size"] > 1
    check_agrees(page, outcome)
    assert len(shown(page)[1]) == 4
    hits = outcome["set"]["hit_rate_at_size"]
    use = PHOTO_USE[hits["selection_split"]]
    assert f"Counted on photos{use}: an average" in page.inner_text("#basis")
    names = page.eval_on_selector_all(
        "#members .card",
        "all => all.map(e => [...e.querySelectorAll('h3, p')].map(p => p.textContent))",
    )
    taxa = [result["taxon"] for result in outcome["results"]]
    assert [name[0] for name in names] == [taxon["common_names"][0]["name"] for taxon in taxa]
    assert [name[1] for name in names] == [taxon["scientific_name"] for taxon in taxa]
    assert page.is_hidden("#bars")
    page.click("summary")
    assert page.is_visible("#bars")
    assert f"{100 * outcome['set']['hit_rate']['value']:.1f}%" in page.inner_text("#figures")
    assert page.is_hidden("#consent")  # this server takes no feedback
    assert "on this device only" in page.inner_text("#decision")


@browser
def test_photos_chosen_before_the_program_has_come_are_sent(
    opened: Opened, running: Running
) -> None:
    page = opened("icon.svg")
    held: list[Route] = []
    page.route("**/words.en.js*", lambda route: held.append(route))
    with page.expect_request("**/words.en.js*"):
        page.goto(running.url, wait_until="commit")
    choose(page, PHOTO)
    held.pop().continue_()
    page.wait_for_selector("#result:not([hidden])")


@browser
def test_every_photo_is_sent_with_its_longest_side_at_1600(page: "Page") -> None:
    photo = garden.encoded(garden.pixels(garden.COLOURS[3], side=1700), "JPEG")
    page.evaluate("() => { XMLHttpRequest.prototype.send = (form) => { window.form = form; }; }")
    file: FilePayload = {**FILE, "buffer": photo}
    page.set_input_files("#file", [file, file])
    wait_until(page, "window.form !== undefined")
    widths = """() => Promise.all(window.form.getAll("images").map(
        async (photo) => (await createImageBitmap(photo)).width))"""
    assert page.evaluate(widths) == [1600, 1600]


@browser
def test_the_slider_gives_the_very_sets_of_the_server_without_asking_it(
    page: "Page", running: Running
) -> None:
    show(page)
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url))
    sizes = []
    for at in range(stops(page)):
        slide(page, at)
        k = float(page.get_attribute("#result", "data-k") or "nan")
        result = ask(running, k)
        check_agrees(page, result)
        sizes.append(result["set"]["size"])
    assert sizes == sorted(set(sizes))  # each position is another set
    assert sizes[0] == 1
    assert len(sizes) > 3
    assert page.inner_text("#k-value") == "12 species"
    pictures = ("/v1/thumbnails?", "blob:")  # of species, and of the history
    assert [url for url in calls if not any(each in url for each in pictures)] == []


@browser
def test_both_ends_of_the_slider_say_what_they_mean(page: "Page", running: Running) -> None:
    show(page)
    own = page.inner_text("#k-value")
    for end, size in (("shorter", 1), ("safer", 12)):
        means = page.inner_text(f"#{end}-means")
        page.click(f"#{end}")
        assert page.get_attribute("#k", "aria-valuetext") == means
        assert means.startswith(f"{size} species, right in ")
        assert page.is_disabled(f"#{end}")
        point = ask(running, float(page.get_attribute("#result", "data-k") or "nan"))["set"]
        rate = (point["hit_rate_at_size"] or point["hit_rate"])["value"]
        assert means.endswith("over 99%" if 0.99 < rate < 1 else f"{min(99, round(100 * rate))}%")
    assert "100" not in page.inner_text("#dial")
    show(page)  # another photo: the choice for the last one is not kept unseen
    assert page.inner_text("#k-value") == own


@browser
def test_a_share_never_promises_too_much(modules: "Page") -> None:
    script = """async (shares) => {
        const { shareText } = await import("./verdict.js");
        return shares.map(shareText);
    }"""
    shares = modules.evaluate(script, [0.5, 0.948, 0.989, 0.993, 0.9999, 1])
    assert shares == ["50%", "95%", "99%", "over 99%", "over 99%", "99%"]


@browser
def test_keys_move_the_slider_and_long_sets_are_folded(page: "Page") -> None:
    show(page)
    before = page.inner_text("#k-value")
    page.focus("#k")
    page.keyboard.press("ArrowRight")
    after = page.inner_text("#k-value")
    assert int(after.split()[0]) > int(before.split()[0])
    assert (page.get_attribute("#k", "aria-valuetext") or "").startswith(after)
    page.keyboard.press("End")
    assert page.locator("#members .card").count() == 12
    assert page.locator("#members .card:visible").count() == 8
    page.click("text=Show all 12")
    assert page.locator("#members .card:visible").count() == 12
    assert page.is_hidden("#show-all")


@browser
def test_the_threshold_stands_between_the_last_bar_inside_and_the_first_below(
    page: "Page",
) -> None:
    show(page)
    page.click("summary")
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
    show(page)
    page.set_input_files("#files", [FILE, FILE])
    wait_until(page, "document.querySelector('#basis').textContent.includes('groups of 3')")
    result = ask(running, 3.0, photos=3)
    assert result["set"]["calibrated"] is True
    check_agrees(page, result)
    # the best practice is no reason for a warning: what was counted is said where the figures are
    assert "of 3 photos of one species, not of one plant" in page.inner_text("#basis")
    assert page.locator("#warnings li").count() == 0
    for at in range(stops(page)):
        slide(page, at)
        k = float(page.get_attribute("#result", "data-k") or "nan")
        assert k in (1, 2, 3, 5, 10)
        check_agrees(page, ask(running, k, photos=3))


@browser
def test_of_ten_photos_five_are_averaged_and_the_page_tells_both(
    page: "Page", running: Running
) -> None:
    show(page, *[PHOTO] * 10)
    check_agrees(page, ask(running, 3.0, photos=5))
    assert "first 5 of 10 photos" in page.inner_text("#too-many")
    assert "Sets from this many photos were never measured" in page.evaluate(HEARD)
    assert "never measured" in page.inner_text("#warnings")
    assert page.is_hidden("#basis")
    assert "%" not in page.inner_text("#dial")
    assert page.locator("#strip li").count() == 5
    page.click("#strip li:first-child .remove")
    page.wait_for_selector("#result:not([hidden])")
    assert page.locator("#strip li").count() == 4
    assert page.is_hidden("#too-many")


@browser
def test_a_suspect_photo_says_so_first_and_keeps_its_set(page: "Page", running: Running) -> None:
    show(page, garden.DULL)
    assert page.inner_text("#result").startswith("Probably none of the species I know")
    size, heard = len(shown(page)[0]), page.evaluate(HEARD)
    assert size > 1
    assert heard.startswith("Probably none of the species I know. The photo looks unlike")
    assert "The closest look-alikes: " in heard
    assert not re.search(r"\d", page.inner_text(".verdict"))  # no rate, and no number of species
    page.click("summary")
    assert "%" not in page.inner_text("#figures")
    assert "%" not in page.inner_text("#dial")
    page.click("#shorter")
    assert page.inner_text("#answer-title") == "Probably none of the species I know"
    drop(page, PHOTO)
    page.wait_for_selector("#result:not(.unfamiliar):not([hidden])")
    check_agrees(page, ask(running, 3.0))
    assert page.evaluate(HEARD).startswith(page.inner_text("#answer-title"))


NONE_KNOWN = {
    "en": "Probably none of the species I know",
    "fr": "Probablement aucune des espèces que je connais",
    "de": "Wahrscheinlich keine der Arten, die ich kenne",
    "es": "Probablemente ninguna de las especies que conozco",
}


@browser
@pytest.mark.parametrize("verdict", ["suspect", "rejected"])
@pytest.mark.parametrize("language", NONE_KNOWN)
def test_every_language_says_first_that_a_photo_shows_nothing_known(
    opened: Opened, language: str, verdict: str
) -> None:
    def judge(found: dict[str, Any]) -> None:
        found["rejection"]["verdict"] = verdict
        if verdict == "rejected":
            found["results"], found["set"]["size"] = [], 0

    page = opened(locale=language)
    change_json(page, "/v1/identify", judge)
    show(page)
    assert page.inner_text("#answer-title") == NONE_KNOWN[language]
    assert "100" not in page.inner_text(".verdict")
    assert page.is_visible("#similar") == (verdict == "suspect")
    page.wait_for_selector(".entry")
    assert page.inner_text(".entry span") == NONE_KNOWN[language]


OWN_RATE = {
    ("en", 1): "One-species answers were right in 76 of 77.",
    ("en", 3): "Answers of 3 species held the right one in 76 of 77.",
    ("fr", 1): "Les réponses d\u2019une seule espèce étaient justes 76 fois sur 77.",
    ("de", 1): "Antworten mit nur einer Art stimmten in 76 von 77 Fällen.",
    ("es", 1): "Las respuestas de una sola especie acertaron en 76 de 77 casos.",
}


@browser
@pytest.mark.parametrize(("language", "size"), OWN_RATE)
def test_the_rate_of_sets_of_this_size_is_shown_where_it_is_known(
    opened: Opened, language: str, size: int
) -> None:
    page = opened(locale=language)
    own = {"value": 76 / 77, "ci95": [0.9, 0.999], "split": "val", "rows": 77}
    own["selection_split"] = False
    change_dial(page, hit_rate_at_size=own, least_coverage=0.9)
    show(page)
    for at in range(stops(page)):
        slide(page, at)
        if page.get_attribute("#result", "data-size") == str(size):
            break
    assert page.inner_text("#odds") == OWN_RATE[language, size]


@browser
def test_nothing_is_promised_without_a_least_coverage(page: "Page", running: Running) -> None:
    rate = {**ask(running, 3.0)["set"]["hit_rate"], "rows": 200}
    for value, least, wanted in (
        (0.98, None, "together, held the right species in 196 of 200."),
        (0.98, 0.919, "196 of 200. New ones should hold it in at least 91 of 100 cases (90% conf"),
    ):
        rates = {"hit_rate_at_size": None, "hit_rate": {**rate, "value": value}}
        change_dial(page, **rates, least_coverage=least)
        show(page)
        assert wanted in page.inner_text("#odds")
        if least is None:
            assert "least" not in page.inner_text(".verdict")


COMMON: list[tuple[str | None, str, float, str]] = [
    ("Viola", "Violaceae", 0.97, "Surely Viola; the species is not clear."),
    ("Viola", "Violaceae", 0.9, "Probably Viola; the species is not clear."),
    (None, "Violaceae", 0.97, "Surely Violaceae; the species is not clear."),
    (None, "", 0.97, "The species is not clear. Another photo of the same plant may show it."),
]


@browser
def test_what_all_species_have_in_common_is_said(page: "Page", running: Running) -> None:
    rate = ask(running, 3.0)["set"]["hit_rate"]
    for genus, family, value, wanted in COMMON:

        def change(found: dict[str, Any], *names: Any, value: float = value) -> None:
            for number, result in enumerate(found["results"]):
                result["taxon"]["genus"] = names[0] or f"Genus{number}"
                result["taxon"]["family"] = names[1] or f"Family{number}"
            for stop in found["dial"]:
                stop["hit_rate_at_size"] = {**rate, "value": value}

        change_json(page, "/v1/identify", partial(_named, change, genus, family))
        show(page)
        assert page.inner_text("#lead") == wanted
        page.click("#shorter")
        assert page.is_hidden("#lead")  # a single species says it by its name


def _named(change: Callable[..., None], *names: Any) -> Any:
    genus, family, found = names
    change(found, genus, family)


@browser
def test_the_announcement_names_the_species(page: "Page") -> None:
    show(page)
    assert page.evaluate(HEARD).startswith("Sweet violet, heartsease")
    page.focus("#k")
    page.keyboard.press("End")
    assert page.evaluate(HEARD).count(",") >= 4
    assert " or 7 more." in page.evaluate(HEARD)


PHOTO_USE: dict[bool | None, str] = {
    True: " that also trained or chose the model (new photos may do worse)",
    False: " kept out of training",
    None: "",
}


@browser
@pytest.mark.parametrize("use", PHOTO_USE)
def test_both_pages_say_whether_the_counted_photos_also_chose_the_model(
    opened: Opened, use: bool | None
) -> None:
    def used(card: dict[str, Any]) -> None:
        for rule in card["rules"]:
            for point in rule["points"]:
                for figure in ("expected_size", "hit_rate"):
                    point[figure] = {**point[figure], "selection_split": use}

    page = opened()
    change_json(page, "/v1/model", used)
    rate = {"value": 0.9, "ci95": [0.8, 1.0], "split": "val", "rows": 10, "selection_split": use}
    change_dial(page, hit_rate_at_size=rate)
    show(page)
    assert f"photos{PHOTO_USE[use]}: an average" in page.inner_text("#basis")
    page.goto(page.url + "model.html")
    page.wait_for_selector("#card table")
    assert f"){PHOTO_USE[use]}. Larger sets" in page.inner_text("#card p")


EMPTY = {
    "en": "An empty answer never holds the right species",
    "fr": "Une réponse vide ne contient jamais la bonne espèce",
    "de": "Eine leere Antwort enthält die richtige Art nie",
    "es": "Una respuesta vacía nunca contiene la especie correcta",
}


@browser
@pytest.mark.parametrize("language", EMPTY)
def test_an_empty_set_is_never_said_to_hold_the_right_species(
    opened: Opened, language: str
) -> None:
    def allow_none(found: dict[str, Any]) -> None:
        found["dial"] = [{**found["set"], "size": 0}]
        found["set"]["size"] = 0

    page = opened(locale=language)
    change_json(page, "/v1/identify", allow_none)
    show(page)
    assert shown(page)[0] == []
    assert page.inner_text("#odds").startswith(EMPTY[language])
    assert "100" not in page.inner_text("#odds")
    assert page.is_hidden("#basis")
    assert EMPTY[language] in page.evaluate(HEARD)


@browser
def test_a_new_photo_takes_the_old_answer_away_at_once(page: "Page") -> None:
    show(page)
    page.route(ASKED, lambda route: None)  # never answers
    page.set_input_files("#file", [FILE])
    page.wait_for_selector("#busy:not([hidden])")
    assert page.is_hidden("#result")
    page.unroute(ASKED)
    show(page)  # and gives up waiting
    assert page.is_hidden("#busy")


HTML = "<html><h1>502 Bad Gateway</h1><hr>nginx</html>"
PROXY = {"body": HTML, "content_type": "text/html"}
PROBLEM = {"code": "overloaded", "title": "T", "detail": "D", "instance": "4be1", "retryable": True}


WENT_WRONG: list[tuple[dict[str, Any] | None, str, bool]] = [
    ({"status": 502, **PROXY}, "The service is unavailable", True),
    ({"status": 413, **PROXY}, "too much to send", False),
    ({"status": 429, "body": "", "content_type": "text/plain"}, "Too many requests", True),
    ({"status": 401, **PROXY}, "No access", True),
    ({"status": 200, **PROXY}, "Unexpected answer", True),
    ({"status": 200, "body": '{"id": ', "content_type": "application/json"}, "Unexpected", True),
    ({"status": 503, "json": PROBLEM}, "The server is busy", True),
    ({"status": 418, "json": {**PROBLEM, "code": "teapot", "title": "Tea"}}, "Tea", True),
    (None, "The server cannot be reached", True),
]


@browser
def test_network_failures_have_different_messages(page: "Page") -> None:
    def spoiled(answer: dict[str, Any] | None) -> Callable[["Route"], None]:
        if answer is None:
            return lambda route: route.abort("connectionreset")
        return lambda route: route.fulfill(**answer)

    show(page)
    for answer, title, again in WENT_WRONG:
        page.route(ASKED, spoiled(answer))
        page.set_input_files("#file", [FILE])
        page.wait_for_selector("#problem:not([hidden])")
        assert title in page.inner_text("#problem-title")
        assert "nginx" not in page.inner_text("main")
        assert page.is_visible("#again") == again
        assert page.is_hidden("#result")
        page.unroute(ASKED)
        if again:
            page.click("#again")
        else:
            page.set_input_files("#file", [FILE])
        page.wait_for_selector("#result:not([hidden])")
        assert page.is_hidden("#problem")


@browser
def test_the_page_survives_a_restart_of_the_server(opened: Opened, bundle: Path) -> None:
    with Running(bundle) as running:
        page = opened(url=running.url)
    page.set_input_files("#file", [FILE])
    page.wait_for_selector("#problem:not([hidden])")
    assert "cannot be reached" in page.inner_text("#problem-title")
    page.context.set_offline(True)
    page.click("#again")
    page.wait_for_selector("text=This device is offline")


@browser
def test_the_page_loads_the_thresholds_of_a_restarted_server(
    page: "Page", running: Running
) -> None:
    def other(found: dict[str, Any]) -> None:
        found["model"]["calibration_id"] = "another"

    change_json(page, "/v1/(model|identify)", other)
    with page.expect_response(re.compile("/v1/model")):
        show(page)
    check_agrees(page, ask(running, 3.0))


@browser
def test_a_list_that_a_restarted_server_lacks_is_no_longer_asked_for(
    opened: Opened, running: Running
) -> None:
    page = opened("icon.svg")
    listed = {"name": "Vaud", "classes": 9, "calibrated": True}
    change_json(page, "/v1/model", lambda card: card.update(lists=[listed]))
    page.goto(running.url)
    page.select_option("#list", "Vaud")
    page.unroute_all()
    choose(page, PHOTO)
    page.wait_for_selector("text=The server no longer has this list")
    assert page.is_hidden("#lists")
    page.click("#again")
    page.wait_for_selector("#result:not([hidden])")


@browser
def test_a_file_that_is_not_a_photo_is_explained_and_the_next_one_works(page: "Page") -> None:
    show(page)
    assert "sweet violet" in page.evaluate(HEARD).lower()
    drop(page, b"this is no picture", "holiday.jpg")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.evaluate(HEARD).startswith("This is not a photo that can be read here")
    assert "sweet violet" not in page.evaluate(HEARD).lower()
    assert "not a photo that can be read here" in page.inner_text("#problem")
    assert len(page.inner_text("#problem-id")) == 32
    assert page.is_hidden("#again")
    assert page.is_hidden("#result")
    drop(page, PHOTO)
    page.wait_for_selector("#result:not([hidden])")
    assert page.is_hidden("#problem")


@browser
def test_a_photo_that_is_too_large_is_not_sent(opened: Opened, running: Running) -> None:
    page = opened("icon.svg")
    change_json(page, "/v1/model", lambda card: card["limits"].update(max_body_bytes=100))
    page.goto(running.url)
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url))
    page.set_input_files("#file", [FILE])
    page.wait_for_selector("text=too much to send")
    assert not any("/identify" in url for url in calls)  # a proxy would close the connection


@browser
def test_names_are_shown_as_text_never_as_markup(page: "Page") -> None:
    show(page, garden.photo(11))
    assert page.inner_text("#members .called") == "<i>Ignota</i> & co"
    assert page.locator("#answer .card i").count() == 0


@browser
def test_reference_photos_have_their_author_and_links_open_elsewhere(page: "Page") -> None:
    def dress(found: dict[str, Any]) -> None:
        for rank, result in enumerate(found["results"]):
            taxon = result["taxon"]
            taxon["link"] = ["https://example.org/a", "javascript:alert(1)", None][rank % 3]
            credit = {"url": "icon.svg", "author": "A. Botanist", "licence": "CC BY 4.0"}
            taxon["thumbnail"] = credit if rank == 0 else None

    change_json(page, "/v1/identify", dress)
    show(page)
    first = page.locator("#members .card").first
    assert first.locator("img").get_attribute("alt") == "Reference photo of sweet violet"
    assert first.locator("figcaption").inner_text() == "A. Botanist, CC BY 4.0"
    assert page.eval_on_selector_all("#members a", "all => all.map(e => e.href)") == [
        "https://example.org/a"
    ]
    assert page.get_attribute("#members a", "rel") == "noopener noreferrer"


@browser
def test_a_tap_on_a_card_compares_the_photo_with_pictures_of_the_species(page: "Page") -> None:
    def dress(details: dict[str, Any]) -> None:
        credit = {"author": "A. Botanist", "licence": "CC0", "organ": "leaf"}
        details["pictures"] = [{"url": f"icon-{side}.png", **credit} for side in (180, 192)]
        details["look_alikes"] = details["look_alikes"][:1]

    change_json(page, "/v1/classes/1006", dress)
    show(page)
    page.click("[data-class-id='1006'] .portrait button")
    page.wait_for_selector(".compare[open]")
    assert page.inner_text(".compare h2") == "sweet violet"
    panes = page.locator(".pane h3").all_inner_texts()
    assert panes == ["Your photo", "2 reference pictures"]
    assert page.inner_text(".compare figcaption >> nth=0") == "leaf, A. Botanist, CC0"
    before = page.eval_on_selector(".pane:first-child img", "e => e.clientWidth")
    page.click(".pane:first-child .lens")
    after = page.eval_on_selector(".pane:first-child img", "e => e.clientWidth")
    assert after == pytest.approx(2.5 * before, abs=2)
    page.click(".compare .others button")
    wait_until(page, "document.querySelector('.compare h2').textContent !== 'sweet violet'")
    page.wait_for_selector(".pane:nth-child(2) img")  # its thumbnail: it has no other picture
    page.keyboard.press("Escape")
    page.wait_for_selector(".compare", state="detached")


@browser
def test_a_list_is_asked_for_and_has_thresholds_of_its_own(
    opened: Opened, running: Running
) -> None:
    page = opened("icon.svg")
    calls: list[str] = []

    def identify(route: "Route") -> None:
        calls.append(route.request.url)
        response = route.fetch(url=route.request.url.replace("&list=Vaud", ""))
        content = response.json()
        if "list=" in route.request.url:
            content["query"]["list"], content["dial"] = "Vaud", content["dial"][:1]
            content["set"].update(content["dial"][0])
        route.fulfill(response=response, json=content)

    listed = {"name": "Vaud", "classes": 9, "calibrated": True}
    change_json(page, "/v1/model", lambda card: card.update(lists=[listed]))
    page.route(ASKED, identify)
    page.goto(running.url)
    show(page)
    assert page.inner_text("#list option:nth-child(2)") == "Vaud (9 species)"
    assert len(shown(page)[0]) > 1
    page.select_option("#list", "Vaud")
    wait_until(page, "document.querySelectorAll('#members .card').length === 1")
    assert "list=Vaud" in calls[1]
    assert "list=" not in calls[0]
    assert page.is_hidden("#dial")  # it has one set alone


def stored(running: Running) -> list[str]:
    """The stored feedback."""
    return [row["class_id"] for row in words(running.engine.settings.feedback_store)]


@browser
def test_feedback_is_one_tap_and_can_be_changed(opened: Opened, listening: Running) -> None:
    page = opened(url=listening.url)
    show(page)
    second = shown(page)[0][1]
    page.click(f"[data-class-id='{second}'] .this")
    page.wait_for_selector("text=Thank you")
    assert page.locator(".this").count() == 0
    assert page.locator(".kept").count() == 1
    page.click("text=Change that")
    assert page.locator(".this:visible").count() == len(shown(page)[0])
    page.click("text=Not a plant or organism at all")
    page.wait_for_selector("text=You said: Not a plant")
    assert stored(listening)[-2:] == [second, "not_an_organism"]


@browser
def test_none_of_these_refers_to_the_whole_set_of_the_answer(
    opened: Opened, listening: Running
) -> None:
    page = opened(url=listening.url)
    before = len(stored(listening))
    show(page)
    whole = shown(page)[0]
    page.click("#shorter")
    page.click("text=None of these")
    assert shown(page)[0] == whole
    assert "held these species too" in page.inner_text("#feedback-said")
    assert len(stored(listening)) == before
    page.click("text=None of these")
    page.wait_for_selector("text=Thank you")
    assert stored(listening)[before:] == ["not_listed"]


@browser
def test_failed_feedback_is_explained_and_can_be_sent_again(
    opened: Opened, listening: Running
) -> None:
    page = opened(url=listening.url)
    show(page)
    page.route(re.compile("/v1/feedback"), lambda route: route.fulfill(status=502, body=HTML))
    page.click(".this >> nth=0")
    page.wait_for_selector("text=could not be saved")
    page.unroute(re.compile("/v1/feedback"))
    page.click("text=Send again")
    page.wait_for_selector("text=Thank you")
    assert page.is_hidden("#resend")
    show(page)  # another answer, without feedback yet
    listening.app.state.feedback.answers.__init__(10)
    page.click(".this >> nth=0")
    page.wait_for_selector("text=no longer remembers")


@browser
def test_a_photo_is_kept_only_where_the_box_is_ticked_before_or_after_the_answer(
    opened: Opened, bundle: Path, tmp_path: Path
) -> None:
    with Running(bundle, feedback_store=tmp_path, feedback_photos=True) as running:
        page = opened(url=running.url)
        assert "unless you allow" in page.inner_text("#private")

        def kept() -> int:
            return len(photos(tmp_path))

        def said(press: Callable[[], None]) -> int:
            with page.expect_response(re.compile("/v1/feedback")):
                press()
            wait_until(page, "!document.querySelector('#consented').disabled")
            return kept()

        show(page)
        assert "under the licence CC-BY-4.0" in page.inner_text("#consent")
        assert not page.is_checked("#consented")
        assert said(lambda: page.click(".this >> nth=0")) == 0
        assert said(lambda: page.check("#consented")) == 1
        assert said(lambda: page.uncheck("#consented")) == 0
        assert said(lambda: page.check("#consented")) == 1
        show(page)  # another answer, without consent yet
        wait_until(page, "!document.querySelector('#consented').checked")
        page.check("#consented")
        assert kept() == 1
        assert said(lambda: page.click("text=None of these")) == 2
        page.route(re.compile("/v1/feedback"), lambda route: route.fulfill(status=502, body=HTML))
        page.click("#consented")
        page.wait_for_selector("text=could not be saved")
        assert page.is_checked("#consented")  # as it still is
        page.unroute(re.compile("/v1/feedback"))
        running.app.state.feedback.photos.__init__(1, len)
        assert said(lambda: page.click("#consented")) == 1
        assert said(lambda: page.click("#consented")) == 1
        assert "the photo could not be" in page.inner_text("#feedback-said")
    assert stored(running)[-1] == "not_listed"


@browser
@pytest.mark.parametrize(
    ("locale", "spoken", "heading", "k", "name"),
    [
        ("fr-CH", "fr", "Violette, pensée ou ", "# espèces", "violette"),
        ("de-AT", "de", "Sweet violet, heartsease oder ", "# Arten", "sweet violet"),
        ("es", "es", "Sweet violet, heartsease o ", "# especies", "sweet violet"),
        ("ja", "en", "Sweet violet, heartsease", "# species", "sweet violet"),
    ],
)
def test_the_page_speaks_the_language_of_the_browser(
    opened: Opened, locale: str, spoken: str, heading: str, k: str, name: str
) -> None:
    page = opened(locale=locale)
    show(page)
    assert page.get_attribute("html", "lang") == spoken
    assert page.inner_text("#answer-title").startswith(heading)
    assert page.inner_text("#k-value") == k.replace("#", str(len(shown(page)[0])))
    assert page.inner_text("#members .called >> nth=0") == name


@browser
def test_every_word_is_there_in_every_language(modules: "Page") -> None:
    shapes: dict[str, Any] = modules.evaluate(
        """async () => {
            const languages = ["en", "fr", "de", "es"];
            const modules = await Promise.all(languages.map((one) => import(`./words.${one}.js`)));
            const numbers = [12, 23, 34]; // arguments, that each text must contain
            const shape = (value) => typeof value === "function"
                ? numbers.filter((one) => value(...numbers).includes(one)).join()
                : Array.isArray(value) ? value.length
                : typeof value === "string" ? 0
                : Object.fromEntries(Object.entries(value).map(([k, v]) => [k, shape(v)]));
            return Object.fromEntries(
                languages.map((one, at) => [one, shape(modules[at].default)]));
        }"""
    )
    english = shapes.pop("en")
    assert shapes.keys() == {"fr", "de", "es"}
    assert all(shape == english for shape in shapes.values())
    pages = "".join(path.read_text() for path in WEB.glob("*.html"))
    assert set(re.findall(r'data-(?:say|name)="(\w+)"', pages)) <= english.keys()
    scripts = "".join(p.read_text() for p in WEB.rglob("*.js") if "words." not in p.name)
    used = set(re.findall(r"words\.(\w+)", scripts))
    assert used <= english.keys()
    answer = {*used, *re.findall(r'"(\w+)"', pages), "genus", "family"}
    assert english.keys() <= answer
    warned = re.findall(r'details\["(\w+)"\]', (ANSWERS / "answer.py").read_text())
    assert english["warnings"].keys() == set(warned)


COUNTED = {
    "photos": ("1 photo", "1 photo", "1 Foto", "1 foto"),
    "found": ("1 species", "1 espèce", "1 Art", "1 especie"),
    "training": ("1 training photo", "1 photo d", "1 Trainingsfoto", "1 foto de"),
    "further": ("1 more", "1 autre", "1 weitere", "1 más"),
    "onePlant": ("One photo of", "Une photo", "Ein Foto einer", "Una foto de"),
    "waits": ("A photo waits", "Une photo attend", "Ein Foto wartet", "Una foto espera"),
}


@browser
def test_one_thing_is_never_said_to_be_many(modules: "Page") -> None:
    script = """async ([key, n]) => {
        const modules = await Promise.all(["en", "fr", "de", "es"].map(
            (one) => import(`./words.${one}.js`)));
        return modules.map((one) => one.default[key](n));
    }"""
    for key, wanted in COUNTED.items():
        texts, more = modules.evaluate(script, [key, 1]), modules.evaluate(script, [key, 2])
        for text, start, several in zip(texts, wanted, more, strict=True):
            assert (text + " ").startswith((f"{start} ", start)), text
            assert "2" in several
        plural = [a.replace("1", "2") == b for a, b in zip(texts, more, strict=True)]
        assert plural[1:3] != [True, True], key
    assert modules.evaluate(script, ["found", 1.5])[1] == "1.5 espèce"


@browser
@pytest.mark.parametrize("language", ["en", "fr", "de", "es"])
def test_every_problem_has_words_in_every_language(opened: Opened, language: str) -> None:
    page = opened("icon.svg", locale=language)
    texts: dict[str, list[str]] = page.evaluate(
        """async (codes) => {
            const { problemTexts } = await import("./problems.js");
            return Object.fromEntries(codes.map((code) => [code, problemTexts(code) ?? []]));
        }""",
        [*PROBLEM_CODES],
    )
    assert [code for code, parts in texts.items() if len(parts) != 2] == []


def _problem_codes() -> set[str]:
    """Codes of the table in docs/http.md, and those that the pages themselves give a problem."""
    scripts = "".join(path.read_text() for path in WEB.rglob("*.js"))
    own = re.findall(r'(?:code: |refused\()"(\w+)"|return "(\w+)";', scripts)
    return {*set(Code).difference(OTHER_INTERFACES), *(a for a, _ in own if a)}


PROBLEM_CODES = sorted(_problem_codes())


@browser
def test_the_page_has_words_for_what_a_proxy_answers(page: "Page") -> None:
    statuses = (401, 403, 407, 404, 413, 429, 500, 502, 504)

    def refuse(status: int, route: "Route") -> None:
        route.fulfill(status=status, body=HTML, content_type="text/html")

    show(page)
    for status in statuses:
        page.route(ASKED, partial(refuse, status))
        choose(page, PHOTO)
        page.wait_for_selector("#problem:not([hidden])")
        assert page.inner_text("#problem-title") not in ("", "This did not work")
        page.unroute(ASKED)


@browser
def test_a_phone_offers_the_camera_first_and_all_targets_are_large(
    opened: Opened, listening: Running
) -> None:
    page = opened(url=listening.url, **PHONE)
    assert page.get_attribute("#camera", "capture") == "environment"
    visible = page.eval_on_selector_all(
        ".sheet > .actions button", "all => all.filter(e => !e.hidden).map(e => e.textContent)"
    )
    assert visible == ["Take a photo", "Choose a photo"]
    show(page, PHOTO, PHOTO)
    page.click("summary")
    small = page.eval_on_selector_all(
        "button, a:not(.skip), select, summary, input",
        """all => all.filter(e => e.offsetParent).filter(e => {
            const { width, height } = e.getBoundingClientRect();
            return width < 44 || height < 44;
        }).map(e => e.outerHTML)""",
    )
    assert small == []


@browser
def test_the_whole_zone_opens_the_choice_of_photos_by_mouse_and_by_key(opened: Opened) -> None:
    page = opened()
    choosers: list[FileChooser] = []
    # `expect_file_chooser` would listen too late at times
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    assert page.is_hidden("#take")
    page.wait_for_timeout(50)
    page.mouse.click(*corner_of(page, "#drop"))
    wait_for(lambda: page.evaluate("1") and len(choosers) > 0)
    page.wait_for_timeout(100)  # would a second one open?
    assert len(choosers) == 1
    choosers[0].set_files([FILE])
    page.wait_for_selector("#result:not([hidden])")
    page.focus("#zone")
    page.keyboard.press("Enter")
    wait_for(lambda: page.evaluate("1") and len(choosers) > 1)
    page.wait_for_timeout(100)
    assert len(choosers) == 2


def corner_of(page: "Page", selector: str) -> tuple[float, float]:
    """A point just inside the lower right corner."""
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box["x"] + box["width"] - 8, box["y"] + box["height"] - 8


@browser
def test_no_page_scrolls_sideways(opened: Opened, listening: Running) -> None:
    page = opened(url=listening.url, locale="de")
    for path in ("", "model.html", "species.html"):
        if path:
            page.goto(f"{listening.url}/{path}")
            wait_until(page, READY)
        else:
            show(page)
            page.click("summary")
        for width in (320, 390, 700, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
        if not path:  # on a phone whose owner wants letters twice as large
            page.set_viewport_size({"width": 360, "height": 800})
            page.evaluate("document.documentElement.style.fontSize = '200%'")
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


@browser
def test_axe_finds_no_fault_in_any_state(opened: Opened, listening: Running) -> None:
    result = find_spec("axe_playwright_python")
    if result is None or result.origin is None:
        pytest.skip("axe-playwright-python is not installed")
    axe = Path(result.origin).with_name("axe.min.js").read_text()

    def check(page: "Page") -> None:
        page.evaluate(axe)
        for scheme, rules in (("light", "undefined"), ("dark", "['color-contrast']")):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its words
            run = f"() => axe.run({{ runOnly: {rules} }}).then(r => r.violations)"
            faults = [(one["id"], one["nodes"][0]["html"]) for one in page.evaluate(run)]
            assert faults == []

    page = opened(url=listening.url)
    for path in ("model.html", "species.html", ""):
        page.goto(f"{listening.url}/{path}")
        wait_until(page, READY)
        check(page)
    show(page, garden.DULL, PHOTO)
    page.click("summary")
    check(page)
    page.click(".portrait button >> nth=0")
    page.wait_for_selector(".compare .others")
    check(page)
    page.keyboard.press("Escape")
    page.click(".this >> nth=0")
    page.wait_for_selector("text=Thank you")
    check(page)
    drop(page, b"this is no picture")
    page.wait_for_selector("#problem:not([hidden])")
    check(page)


@browser
def test_the_model_page_tells_how_often_its_sets_were_right(
    opened: Opened, running: Running
) -> None:
    page = opened("model.html")
    row = page.locator("tbody tr", has=page.locator("td:first-child", has_text=re.compile("^3$")))
    result = ask(running, 3.0)["set"]
    hits = result["hit_rate"]
    assert row.first.locator("td").all_inner_texts() == [
        "3",
        f"{result['expected_size']['value']:.2f}",
        f"{100 * hits['value']:.1f}%",
        "\u2013".join(f"{100 * end:.1f}%" for end in hits["ci95"]),
    ]
    assert page.locator("#card h2").all_inner_texts() == [
        "How often sets hold the right species",
        "Several photos of one plant",
        "Limits of photos",
        "About this model",
    ]
    assert "Up to 5 photos" in page.inner_text("#card")


@browser
def test_the_species_page_searches_and_shows_more(opened: Opened) -> None:
    page = opened("species.html")
    assert page.inner_text("#found") == "12 species"
    assert page.locator(".card").count() == 12
    assert page.is_hidden("#more")
    assert "Rosaceae" in page.inner_text(".card >> nth=0")
    assert "10 training photos" in page.inner_text(".card >> nth=0")
    page.fill("#q", "VIOLET")
    page.wait_for_selector("text=1 species")
    assert page.inner_text(".card .scientific") == "Viola odorata"
    page.fill("#q", "nothing of the kind")
    page.wait_for_selector("text=No species of this name")
    change_json(page, r"/v1/classes\?", lambda found: found.update(total=100))
    page.fill("#q", "")
    with page.expect_response(re.compile(r"limit=240")):
        page.click("#more")


@browser
def test_a_page_without_a_server_says_so(opened: Opened, running: Running) -> None:
    page = opened("icon.svg")
    for path in ("model.html", "species.html"):
        page.route(re.compile("/v1/"), lambda route: route.fulfill(status=504, body=HTML))
        page.goto(f"{running.url}/{path}")
        page.wait_for_selector("text=The service is unavailable")
        page.unroute(re.compile("/v1/"))
        page.click("#again")
        page.wait_for_selector("tbody, .card")


SHRINK = """async (text) => {
    const { shrink } = await import("./shrink.js");
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const sent = await shrink(new File([bytes], "a.photo", { type: "image/x" }));
    const copy = new Uint8Array(await sent.arrayBuffer());
    return btoa(Array.from(copy, (byte) => String.fromCharCode(byte)).join(""));
}"""


def shrunk(page: "Page", photo: bytes) -> bytes:
    """What the page sends of a photo."""
    return base64.b64decode(page.evaluate(SHRINK, base64.b64encode(photo).decode()))


@browser
def test_a_webp_is_sent_as_upright_as_the_server_reads_it(page: "Page") -> None:
    rows, columns = np.mgrid[:40, :64]
    pixels = np.stack([4 * columns, 6 * rows, 255 - 4 * columns], -1).astype(np.uint8)
    for orientation in range(1, 9):
        exif, buffer = Image.Exif(), io.BytesIO()
        exif[ExifTags.Base.Orientation] = orientation
        Image.fromarray(pixels).save(buffer, "WEBP", exif=exif, lossless=True)
        copy = Image.open(io.BytesIO(shrunk(page, buffer.getvalue())))
        upright = ImageOps.exif_transpose(Image.open(buffer)).convert("RGB")
        assert copy.size == upright.size
        assert np.abs(np.asarray(copy, float) - np.asarray(upright)).mean() < 4


@browser
def test_photos_are_sent_small_upright_and_without_what_the_camera_wrote(page: "Page") -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = 6, "Secret camera"
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitudeRef] = "N"
    for side, sent_side in ((1700, 1600), (90, 90)):
        buffer = io.BytesIO()
        pixels = garden.pixels(garden.COLOURS[5], side=side)[: side // 2]
        Image.fromarray(pixels).save(buffer, "JPEG", exif=exif)
        sent = shrunk(page, buffer.getvalue())
        copy = Image.open(io.BytesIO(sent))
        assert (copy.size, dict(copy.getexif())) == ((sent_side // 2, sent_side), {})
        assert b"Secret camera" not in sent
        np.testing.assert_allclose(np.asarray(copy).mean((0, 1)), pixels.mean((0, 1)), atol=3)
    for photo in (PHOTO, b"no photo"):  # small and silent; or not to be read here
        assert shrunk(page, photo) == photo


def photographed(
    month: int | None = 6, place: tuple[float, float] | None = (-43.61, 3.88), kind: str = "JPEG"
) -> bytes:
    """A photo with what a camera writes."""
    exif = Image.Exif()
    if month is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2026:{month:02}:30 1:2"
    if place is not None:
        directory = exif.get_ifd(ExifTags.IFD.GPSInfo)
        for tag, letters, degrees in ((1, "NS", place[0]), (3, "EW", place[1])):
            minutes = round(60 * abs(degrees), 6)
            directory[tag] = letters[degrees < 0]
            directory[tag + 1] = (int(minutes // 60), int(minutes % 60), 60 * (minutes % 1))
    buffer = io.BytesIO()
    Image.fromarray(garden.pixels(garden.COLOURS[5], side=90)).save(buffer, kind, exif=exif)
    return buffer.getvalue()


@pytest.fixture
def placed(opened: Opened, running: Running) -> Callable[..., tuple["Page", list[str]]]:
    """Opens the page of a model that uses places, and the addresses that it asks."""

    def open_page(regions: list[str] | None = None, **options: Any) -> tuple["Page", list[str]]:
        here = {"latitude": 10.0, "longitude": 20.0}
        page = opened("icon.svg", geolocation=here, permissions=["geolocation"], **options)
        places = {"regions": regions, "cell_degrees": 5.0, "calibrated": ["region_and_month"]}
        calls: list[str] = []

        def identify(route: "Route") -> None:
            calls.append(route.request.url)
            url = re.sub("&(latitude|longitude|month|region)=[^&]*", "", route.request.url)
            response = route.fetch(url=url)
            content = response.json()
            content["results"][0]["in_range"] = False
            route.fulfill(response=response, json=content)

        change_json(page, "/v1/model", lambda card: card.update(places=places))
        page.route(ASKED, identify)
        page.goto(running.url)
        wait_until(page, READY)
        return page, calls

    return open_page


Placed = Callable[..., tuple["Page", list[str]]]


def asked(page: "Page", calls: list[str], number: int) -> str:
    """The address of request ``number``, once it is answered."""
    wait_for(lambda: page.evaluate("1") and len(calls) == number)
    wait_until(page, "document.querySelector('#busy').hidden")
    return calls[-1]


@browser
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_a_photo_says_itself_where_and_when_it_was_taken(placed: Placed, kind: str) -> None:
    page, calls = placed()
    show(page, photographed(kind=kind))
    assert "latitude" not in calls[0]  # without consent
    page.check("#here")
    assert "&latitude=-43.75&longitude=3.75&month=6" in asked(page, calls, 2)
    assert page.input_value("#spot") == "-43.61; 3.88"
    page.wait_for_selector("text=Not recorded there")
    page.select_option("#month", "7")
    assert "&month=7" in asked(page, calls, 3)
    page.fill("#spot", "51,5, -0,1")
    page.press("#spot", "Enter")
    assert "&latitude=51.25&longitude=-1.25&month=7" in asked(page, calls, 4)
    choose(page, photographed(2, (0.0, 0.0), kind))  # another plant, without a fix
    assert "latitude" not in asked(page, calls, 5)
    assert page.input_value("#month") == "2"
    assert page.input_value("#spot") == ""
    assert "does not say where" in page.inner_text("#here-said")
    page.click("#locate")
    assert "&latitude=11.25&longitude=21.25&month=2" in asked(page, calls, 6)
    page.fill("#spot", "somewhere")
    page.press("#spot", "Enter")
    assert "latitude" not in asked(page, calls, 7)
    assert "no position" in page.inner_text("#here-said")
    page.uncheck("#here")
    asked(page, calls, 8)
    assert page.is_hidden("#where")


@browser
def test_a_photo_without_a_date_has_no_month_and_one_taken_now_has_this_one(
    placed: Placed,
) -> None:
    page, calls = placed()
    page.check("#here")
    choose(page, photographed(None, None))
    url = asked(page, calls, 1)
    assert "month" not in url
    assert "latitude" not in url
    page.set_input_files("#camera", [FILE])
    wait_for(lambda: page.evaluate("1") and "latitude=11.25" in calls[-1])
    assert f"&month={date.today().month}" in calls[-1]
    asked(page, calls, len(calls))


@browser
def test_a_region_is_chosen_and_the_month_is_that_of_the_photo(placed: Placed) -> None:
    page, calls = placed(["north", "south"])
    show(page, photographed(6))
    assert page.is_hidden("#here-label")
    assert page.is_hidden("#month")
    page.select_option("#region", "south")
    assert "&region=south&month=6" in asked(page, calls, 2)
    assert page.is_hidden("#spot")
    assert page.is_hidden("#here-said")


CAMERA = """async (text) => {
    const { cameraData } = await import("./exif.js");
    return cameraData(new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))]));
}"""


@browser
def test_what_cameras_write_is_read_or_left_out(modules: "Page") -> None:
    def data(photo: bytes) -> tuple[int | None, tuple[float, float] | None]:
        found = modules.evaluate(CAMERA, base64.b64encode(photo).decode())
        place = found["position"]
        day = found["date"]
        assert day is None or int(day[5:7]) == found["month"]
        return found["month"], place and (place["latitude"], place["longitude"])

    assert data(photographed(12, (43.5, -3.25))) == (12, (43.5, -3.25))
    assert data(photographed(1, (0.0, 3.5))) == (1, (0.0, 3.5))  # on the equator
    assert data(photographed(13, None)) == (None, None)
    assert data(photographed(0, (0.0, 0.0))) == (None, None)
    assert data(photographed(5, (91.0, 3.0))) == (5, None)
    assert data(PHOTO) == data(b"") == (None, None)
    whole = photographed(8, (1.5, 2.5))
    for wrong in (b"II", b"MM"):  # damaged: the other order of bytes
        damaged = whole.replace(b"MM\0*", wrong + b"\0*").replace(b"II*\0", wrong + b"\0*")
        assert data(damaged) in ((None, None), data(whole))
    tiff = whole[whole.index(b"MM\0*") :]
    for before in (b"....ftypheic...\0\0\0\0", b"\x89PNG\r\n\x1a\n...eXIf", b"RIFF....EXIF1234"):
        assert data(before + tiff) == (8, (1.5, 2.5))
    start = whole.index(b"Exif")
    assert all(data(whole[:end])[1] in (None, (1.5, 2.5)) for end in range(start, start + 300, 7))
    for written, month in (
        (b"2026-08-30 10:1", 8),
        (b"    2026:08:30 ", 8),
        (b"2026: 8:30 10:1", 8),
        (b"0000:08:30 10:1", None),
    ):
        changed = whole.replace(b"2026:08:30 1:2\0", written)
        assert changed != whole
        assert data(changed)[0] == month


SOUTH_WEST = {
    1: (ASCII, b"S\0"), 2: (RATIONAL, rationals((47, 1), (30, 1), (18, 1))),
    3: (ASCII, b"W\0"), 4: (RATIONAL, rationals((8, 1), (15, 1), (0, 1))),
}  # fmt: skip
WRITTEN = {
    1: [b"s\0", b"North\0", b" S\0", b"\0", b"E\0", b"?\0"],
    3: [b"w\0", b"\0", b"N\0"],
    2: [
        rationals(*numbers)
        for numbers in (
            [(475, 10)], [(47, 1), (305, 10)], [(475, 10), (0, 0), (0, 0)],
            [(47, 1), (30, 0), (18, 1)], [(47, 0), (30, 1), (0, 1)],
            [(47, 1), (30, 1), (1800, 1)], [(0, 0), (0, 0), (0, 0)],
        )
    ],
}  # fmt: skip


@browser
def test_a_place_and_a_damaged_part_are_read_as_predict_does(
    modules: "Page", tmp_path: Path
) -> None:
    def read(data: bytes) -> tuple[str | None, tuple[float, float] | None]:
        camera = modules.evaluate(CAMERA, base64.b64encode(data).decode())
        place = camera["position"]
        return camera["date"], place and (
            round(place["latitude"], 6), round(place["longitude"], 6)
        )  # fmt: skip

    for tag, values in WRITTEN.items():
        for value in values:
            position = SOUTH_WEST | {tag: (SOUTH_WEST[tag][0], value)}
            path = camera_photo(
                tmp_path / "a.jpg", [TIME], [(key, *cell) for key, cell in position.items()]
            )
            capture = read_capture(path)
            place = None if capture.latitude is None else (capture.latitude, capture.longitude)
            assert read(path.read_bytes()) == ("2026-06-30", place), (tag, value)
    path = camera_photo(
        tmp_path / "b.jpg", [TIME], [(key, *cell) for key, cell in SOUTH_WEST.items()]
    )
    for link, left in (
        (ExifTags.IFD.GPSInfo, ("2026-06-30", None)),
        (ExifTags.IFD.Exif, (None, (-47.505, -8.25))),
    ):
        data = bytearray(path.read_bytes())
        at = data.index(struct.pack("<HHI", link, 4, 1)) + 8
        data[at : at + 4] = b"\xff\xff\xff\x7f"
        assert read(bytes(data)) == left


@browser
def test_on_a_phone_the_results_come_before_the_slider(opened: Opened) -> None:
    order = """() => document.querySelector("#members").compareDocumentPosition(
        document.querySelector("#dial")) === Node.DOCUMENT_POSITION_FOLLOWING"""
    phone, desktop = opened(**PHONE), opened()
    assert "all of one plant" in phone.inner_text("#empty")
    for page, first in ((phone, True), (desktop, False)):
        show(page)
        assert page.evaluate(order) is first


@browser
@pytest.mark.parametrize("outcome", [200, 502])
def test_on_a_phone_the_answer_lands_at_the_top(opened: Opened, outcome: int) -> None:
    page = opened(**PHONE)
    if outcome != 200:
        page.route(ASKED, lambda route: route.fulfill(status=outcome, **PROXY))
    choose(page, PHOTO)
    page.wait_for_selector("#result:not([hidden]), #problem:not([hidden])")
    page.wait_for_timeout(100)  # scroll anchoring would move it now
    box = page.evaluate("""() => {
        const { top, bottom } = document.querySelector("#answer").getBoundingClientRect();
        return [top, bottom - window.innerHeight];
    }""")
    if outcome == 200:
        assert box[0] == pytest.approx(16, abs=2)  # scroll-margin-top of .answer
    else:
        assert page.locator("#problem-title").bounding_box()["y"] < 660  # type: ignore[index]


@browser
@pytest.mark.parametrize("locale", ["en", "fr", "de", "es"])
def test_no_hint_is_cut_off_on_a_narrow_phone(opened: Opened, locale: str) -> None:
    page = opened(locale=locale, **{**PHONE, "viewport": {"width": 320, "height": 640}})
    cut = page.evaluate("""() => [...document.querySelectorAll("main *, footer *")].filter((one) =>
        one.scrollHeight > one.clientHeight + 1 && one.clientHeight > 0 && one.offsetParent
        && getComputedStyle(one).overflowY !== "visible" && !one.classList.contains("hidden"))
        .map((one) => one.outerHTML.slice(0, 80))""")
    assert cut == []
    places = {"regions": ["Vaud"], "calibrated": ["region", "region_and_month"]}
    listed = [{"name": "Vaud", "classes": 9, "calibrated": True}]
    change_json(page, "/v1/model", lambda card: card.update(lists=listed, places=places))
    page.reload()
    page.wait_for_selector("#region")
    page.select_option("#region", "Vaud")
    widths = page.eval_on_selector_all("select", "all => all.map((one) => one.offsetWidth)")
    assert min(widths) >= 140


@browser
@pytest.mark.parametrize("locale", ["en", "fr", "de", "es"])
def test_nothing_leaves_the_screen_with_large_text(opened: Opened, locale: str) -> None:
    page = opened(locale=locale, **PHONE)
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    change_json(page, "/v1/identify", lambda answer: lengthen(answer["results"]))
    show(page)
    outside = page.evaluate("""() => [...document.querySelectorAll("main :not(.hidden)")].filter(
        (one) => one.offsetParent && one.getBoundingClientRect().right > window.innerWidth + 0.5)
        .map((one) => one.outerHTML)""")
    assert [one[:80] for one in outside] == []


def lengthen(results: list[dict[str, Any]]) -> None:
    """Give classes a name of one long word, as many data sets have."""
    for result in results:
        result["taxon"]["common_names"] = []
        result["taxon"]["scientific_name"] = "gerenuk_with_long_horns"


@browser
def test_names_from_right_to_left_stay_in_their_order(page: "Page") -> None:
    def rename(answer: dict[str, Any]) -> None:
        for result, name in zip(answer["results"], ("ורד (1)", "ورد (2)"), strict=False):
            result["taxon"]["common_names"] = [{"name": name, "lang": "he"}]

    change_json(page, "/v1/identify", rename)
    show(page)
    first, second = ("\u2068" + name + "\u2069" for name in ("ורד (1)", "ورد (2)"))
    assert f"{first} or {second}" in (page.text_content("#answer-title") or "") or (
        f"{first}, {second}" in (page.text_content("#answer-title") or "")
    )


@browser
def test_the_page_asks_once_and_for_no_more_than_its_slider_can_show(page: "Page") -> None:
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url))
    show(page)
    assert [url.partition("?")[2] for url in calls if "/identify" in url] == ["include=dial"]
    assert not any("/v1/model" in url for url in calls)  # it was loaded with the page


@browser
def test_the_page_is_light_on_the_wire(page: "Page") -> None:
    session, sizes = page.context.new_cdp_session(page), list[float]()
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.reload()
    page.wait_for_selector("text=12 species")
    assert 20_000 < sum(sizes) < 80_000
    sizes.clear()
    show(page)
    wait_until(page, "[...document.images].every((each) => each.complete)")
    assert 1_000 < max(sizes) < 20_000


@browser
def test_a_slow_upload_shows_how_much_has_left(page: "Page") -> None:
    client = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 50, "downloadThroughput": -1}
    client.send("Network.emulateNetworkConditions", {**slow, "uploadThroughput": 200_000})
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    choose(page, garden.encoded(noise))
    wait_until(
        page,
        "document.querySelector('#sent').value > 0.2 && !document.querySelector('#sent').hidden",
    )
    page.wait_for_selector("#result:not([hidden])")
    assert page.is_hidden("#sent")


def test_the_pages_ask_for_nothing_from_elsewhere() -> None:
    files = [path for path in WEB.rglob("*") if path.is_file() and path.suffix != ".png"]
    assert {path.name for path in files} >= {"index.html", "model.html", "species.html", "app.js"}
    for path in files:
        rest = path.read_text()
        for name in ("http://www.w3.org/2000/svg", "http://rs.tdwg.org/dwc/"):  # never fetched
            rest = rest.replace(name, "")
        assert "http:" not in rest
        assert "https:" not in rest
        assert "style=" not in rest  # the policy would refuse it
        assert "innerHTML" not in rest

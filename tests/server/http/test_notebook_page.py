"""The field notebook and the photos that wait for a network, in a real browser."""

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from tests.server import garden
from tests.server.http.page_actions import (
    ASKED,
    FILE,
    PHOTO,
    Opened,
    browser,
    change_json,
    choose,
    show,
    shown,
    stops,
    wait_until,
)
from tests.server.server_thread import Running, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import FilePayload, Page, Route


@browser
def test_photos_wait_for_a_network_and_the_history_stays_on_the_device(page: "Page") -> None:
    show(page)
    inside = shown(page)[0]
    page.context.set_offline(True)
    choose(page, garden.photo(1))
    page.wait_for_selector("#problem:not([hidden])")
    assert "sent when there is a network" in page.inner_text("#problem")
    assert "waits" in page.inner_text("#entries li:first-child")
    page.context.set_offline(False)
    wait_until(page, "document.querySelectorAll('.entry:disabled').length === 0")
    assert page.inner_text("#history-said").startswith("Sent: ")
    page.reload()
    page.click("#entries li:nth-child(2) .entry")
    page.wait_for_selector("#result:not([hidden])")
    assert shown(page)[0] == inside
    wait_until(page, "document.querySelector('#photo').naturalWidth === 200")
    page.click("#entries li:first-child .remove")
    wait_until(page, "document.querySelectorAll('.entry').length === 1")
    page.click("#forget")
    page.wait_for_selector("text=Really delete 1 entry")
    assert page.locator(".entry").count() == 1  # a slip of the finger deletes nothing
    page.click("#forget")
    page.wait_for_selector("#empty-notebook:not([hidden])")
    page.reload()
    wait_until(page, "document.querySelector('#history-kept').textContent !== ''")
    assert page.locator(".entry").count() == 0


@browser
def test_a_photo_that_failed_is_sent_again_while_the_page_stays_open(page: "Page") -> None:
    page.clock.install()
    page.route(ASKED, lambda route: route.abort("connectionreset"))
    choose(page, PHOTO)
    page.wait_for_selector("text=The server cannot be reached")
    page.clock.run_for(11_000)  # in vain
    wait_until(page, "document.querySelector('.entry:disabled') !== null")
    page.unroute(ASKED)
    page.clock.run_for(21_000)
    page.wait_for_selector("#result:not([hidden])")  # in place of the problem
    assert page.is_hidden("#problem")
    assert len(page.query_selector_all(".entry:not(:disabled)")) == 1


@browser
def test_a_sent_photo_leaves_the_answer_to_another_one_alone(page: "Page") -> None:
    page.context.set_offline(True)
    choose(page, garden.photo(1))
    page.wait_for_selector("text=This device is offline")
    page.context.set_offline(False)
    page.wait_for_selector("#result:not([hidden])")
    assert page.is_hidden("#problem")
    page.context.set_offline(True)
    choose(page, garden.photo(2))
    page.wait_for_selector("text=This device is offline")
    page.click(".entry:not(:disabled)")  # an earlier answer
    page.wait_for_selector("#result:not([hidden])")
    inside = shown(page)[0]
    page.context.set_offline(False)
    wait_until(page, "document.querySelectorAll('.entry:disabled').length === 0")
    assert shown(page)[0] == inside


def unlisted(route: "Route") -> str:
    """The address of a request without its list, which the server does not have."""
    return re.sub("list=[^&]*", "", route.request.url)


def wait_for_note(page: "Page", note: str) -> None:
    """Wait until the notebook has stored a note."""
    notes = (
        """async () => (await (await import("./storage.js")).all()).map((entry) => entry.note)"""
    )
    wait_for(lambda: note in page.evaluate(notes))


@browser
def test_the_notebook_keeps_what_the_person_said_and_lets_them_change_it(opened: Opened) -> None:
    page = opened(locale="fr")
    show(page)
    second = shown(page)[0][1]
    assert page.is_hidden("#fields")
    page.click(f"[data-class-id='{second}'] .this")
    page.wait_for_selector(".entry:has-text('✓ pensée')")
    page.fill("#place", "Bord du chemin")
    page.fill("#date", "2026-06-30")
    page.fill("#note", "3 pieds")
    page.press("#note", "Enter")
    page.wait_for_selector(".entry:has-text('Bord du chemin')")
    wait_for_note(page, "3 pieds")  # a reload would stop the write
    page.reload()
    page.click(".entry")
    page.wait_for_selector("#result:not([hidden])")
    assert page.inner_text("#feedback-said") == "Votre réponse\u00a0: pensée"
    assert "C\u2019est elle" in page.inner_text(f"[data-class-id='{second}']")
    assert page.locator("#members .kept").count() == 1
    values = [page.input_value(f"#{name}") for name in ("date", "place", "note")]
    assert values == ["2026-06-30", "Bord du chemin", "3 pieds"]
    page.click("#change")
    page.click("text=Indécis entre")
    page.wait_for_selector(".entry:has-text('✓ Indécis entre')")
    show(page)
    assert page.is_hidden("#fields")
    assert page.input_value("#note") == ""


@browser
def test_a_plant_that_is_asked_about_again_stays_one_entry_until_it_is_decided(
    opened: Opened, running: Running
) -> None:
    """Another list or place, or a further photo, gives another answer about the same plant."""
    page = opened("icon.svg")
    listed = {"name": "Vaud", "classes": 9, "calibrated": True}
    change_json(page, "/v1/model", lambda card: card.update(lists=[listed]))
    page.route(
        re.compile(r"/v1/identify\?.*list="), lambda route: route.continue_(url=unlisted(route))
    )
    page.goto(running.url)
    show(page)
    for change in ("Vaud", ""):
        page.select_option("#list", change)
        page.wait_for_selector("#result", state="hidden")
        page.wait_for_selector("#result:not([hidden])")
    another: FilePayload = {**FILE, "buffer": garden.photo(2)}
    page.set_input_files("#files", [another])
    page.wait_for_selector("#strip:not([hidden])")
    page.wait_for_selector("#result:not([hidden])")
    assert page.locator(".entry").count() == 1
    page.click(".this >> nth=0")
    page.wait_for_selector("#entries :text('✓')")
    page.select_option("#list", "Vaud")
    wait_until(page, "document.querySelectorAll('.entry').length === 2")
    choose(page, garden.photo(1))
    wait_until(page, "document.querySelectorAll('.entry').length === 3")


@browser
def test_what_was_decided_is_never_pruned(page: "Page") -> None:
    script = """async () => {
        const { keepAnswer } = await import("./notebook.js");
        const { all, put } = await import("./storage.js");
        const [entry] = await all();
        for (let id = 1; id <= 40; id += 1) {
            await put({ ...entry, id, confirmed: id <= 5 ? "1001" : undefined });
        }
        await keepAnswer(entry.answer, [entry.photo]);
        return (await all()).map(({ id, confirmed }) => [id, confirmed ?? ""]);
    }"""
    show(page)
    page.wait_for_selector(".entry")
    entries = page.evaluate(script)
    assert [entry for entry in entries if entry[1]] == [[id_, "1001"] for id_ in range(1, 6)]
    assert len(entries) == 5 + 30


@browser
def test_a_photo_that_the_server_refuses_does_not_hold_up_the_others(page: "Page") -> None:
    page.context.set_offline(True)
    for content in (b"no photo", garden.photo(1)):
        choose(page, content)
        page.wait_for_selector("#problem:not([hidden])")
    wait_until(page, "document.querySelectorAll('.entry:disabled').length === 2")
    page.context.set_offline(False)
    wait_until(page, "document.querySelectorAll('.entry:disabled').length === 0")
    assert len(page.query_selector_all(".entry")) == 1


def left_waiting(page: "Page", *photos: bytes) -> None:
    """Choose photos of different plants while no answer comes, and wait until all are kept."""
    page.route(ASKED, lambda route: route.abort())
    for count, photo in enumerate(photos, 1):
        choose(page, photo)
        wait_until(page, f"document.querySelectorAll('.entry:disabled').length === {count}")
    page.unroute(ASKED)


def wait_for_count(page: "Page", asked: list[Any], count: int) -> None:
    """Wait until so many requests were noted."""
    wait_for(lambda: page.evaluate("true") and len(asked) == count)  # a call hears of requests


SEND = "window.dispatchEvent(new Event('online'))"
OTHERS = [  # who answers in place of the server, what is said, and how many photos are tried
    ({"status": 200, "body": "<p>Sign in</p>", "content_type": "text/html"}, "Unexpected", 1),
    ({"status": 429, "body": "slowly", "content_type": "text/html"}, "Too many requests", 1),
    ({"status": 413, "body": "too large", "content_type": "text/html"}, "too much to send", 2),
    ({"status": 401, "body": "who?", "content_type": "text/html"}, "No access", 1),
    ({"status": 403, "json": {"code": "key_unknown", "retryable": False}}, "This key", 1),
    ({"status": 500, "json": {"code": "internal_error", "retryable": False}}, "The server", 2),
]


def refusing(answer: dict[str, Any], asked: list[str]) -> Callable[["Route"], None]:
    """Answers every request so, and notes it."""

    def refuse(route: "Route") -> None:
        asked.append(route.request.url)
        route.fulfill(**answer)

    return refuse


@browser
def test_photos_wait_on_whoever_answers_in_place_of_the_server(page: "Page") -> None:
    """A sign-in page of a network, a proxy or a fault of the server deletes no photo."""
    left_waiting(page, garden.photo(1), garden.photo(2))
    for answer, text, tried in OTHERS:
        asked = list[str]()
        page.route(ASKED, refusing(answer, asked))
        page.evaluate(SEND)
        page.wait_for_selector(f"#history-said:has-text('{text}')")
        wait_for_count(page, asked, tried)
        page.unroute(ASKED)
        assert page.locator(".entry:disabled").count() == 2
    page.evaluate(SEND)
    wait_until(page, "document.querySelectorAll('.entry:not(:disabled)').length === 2")


@browser
def test_a_photo_that_waited_with_a_list_is_answered_without_it_once_the_list_is_gone(
    opened: Opened, running: Running
) -> None:
    page = opened("icon.svg")
    listed = {"name": "Vaud", "classes": 9, "calibrated": True}
    change_json(page, "/v1/model", lambda card: card.update(lists=[listed]))
    page.goto(running.url)
    page.select_option("#list", "Vaud")
    left_waiting(page, PHOTO)
    page.evaluate(SEND)
    wait_until(page, "document.querySelectorAll('.entry:not(:disabled)').length === 1")


@browser
def test_what_is_deleted_while_photos_go_out_stays_deleted(page: "Page") -> None:
    left_waiting(page, garden.photo(1), garden.photo(2))
    asked = list["Route"]()
    page.route(ASKED, lambda route: asked.append(route))
    page.evaluate(SEND)
    wait_for_count(page, asked, 1)
    page.click("#forget")
    page.click("#forget")
    page.wait_for_selector("#empty-notebook:not([hidden])")
    with page.expect_response(ASKED):
        asked[0].continue_()
    page.wait_for_timeout(300)  # the second one would be asked about
    assert len(asked) == 1
    assert page.locator(".entry").count() == 0


@browser
def test_of_two_tabs_one_sends_what_waits(page: "Page") -> None:
    left_waiting(page, garden.photo(1), garden.photo(2), garden.photo(3))
    # Before the other tab opens, which may send what waits as soon as nothing stops it.
    asked = list[str]()
    page.context.on(
        "response", lambda got: asked.append(got.url) if ASKED.search(got.url) else None
    )
    other = page.context.new_page()
    other.route(ASKED, lambda route: route.abort())
    other.goto(page.url)
    wait_until(other, "document.querySelectorAll('.entry:disabled').length === 3")
    other.unroute(ASKED)
    for tab in (page, other):
        tab.evaluate(SEND)
    wait_for_count(page, asked, 3)
    page.wait_for_timeout(300)  # further ones would follow
    for tab in (page, other):  # each as somebody turns to it
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        wait_until(tab, "document.querySelectorAll('.entry:not(:disabled)').length === 3")
    assert len(asked) == 3


@browser
def test_a_plant_is_kept_although_the_next_one_is_asked_about_before_its_answer(
    page: "Page",
) -> None:
    asked = list["Route"]()
    page.route(ASKED, lambda route: asked.append(route))
    for count in (1, 2, 3):
        choose(page, garden.photo(count))
        wait_for_count(page, asked, count)
    asked[0].continue_()
    asked[1].abort()
    wait_until(page, "document.querySelectorAll('.entry:not(:disabled)').length === 1")
    wait_until(page, "document.querySelectorAll('.entry:disabled').length === 1")
    assert page.is_visible("#busy")
    asked[2].continue_()
    page.wait_for_selector("#result:not([hidden])")
    page.unroute(ASKED)
    wait_until(page, "document.querySelectorAll('.entry:not(:disabled)').length === 3")


@browser
def test_a_photo_that_joins_while_the_first_is_prepared_asks_once(page: "Page") -> None:
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(
        """() => {
            const decode = createImageBitmap;
            const slow = new Promise((done) => { window.go = done; });
            window.createImageBitmap = async (...all) => { await slow; return decode(...all); };
        }"""
    )
    choose(page, garden.photo(1))
    page.wait_for_selector("#more:not([hidden])")
    another: FilePayload = {**FILE, "buffer": garden.photo(2)}
    page.set_input_files("#files", [another])
    page.evaluate("window.go()")
    page.wait_for_selector("#result:not([hidden])")
    wait_until(page, "document.querySelectorAll('.entry').length > 0")
    assert sum("/v1/identify" in url for url in asked) == 1
    assert page.locator(".entry").count() == 1


@browser
def test_answers_that_came_later_stay_until_somebody_has_seen_them(page: "Page") -> None:
    left_waiting(page, garden.photo(1))
    page.evaluate(SEND)
    wait_until(page, "document.querySelectorAll('.entry:not(:disabled)').length === 1")
    page.evaluate(
        """async () => {
            const { all, put } = await import("./storage.js");
            const [{ id: _, ...answered }] = await all();
            for (let id = 1; id <= 32; id += 1) await put({ ...answered, id });
        }"""
    )
    page.reload()
    page.click("#more-entries")
    wait_until(page, "document.querySelectorAll('.entry').length === 33")
    page.click(".entry >> nth=32")
    page.wait_for_selector("#result:not([hidden])")
    show(page)
    wait_until(page, "document.querySelectorAll('.entry').length === 34")


@browser
def test_the_notebook_survives_that_the_browser_closes_its_database(page: "Page") -> None:
    show(page)
    page.wait_for_selector(".entry")
    session = page.context.new_cdp_session(page)
    session.send(
        "Storage.clearDataForOrigin", {"origin": page.url[:-1], "storageTypes": "indexeddb"}
    )
    show(page)
    wait_until(page, "document.querySelectorAll('.entry').length === 1")
    assert "no room" not in page.inner_text("#history-kept")
    page.reload()
    page.wait_for_selector(".entry")


@browser
def test_without_room_photos_stay_as_long_as_the_page_and_it_says_so(page: "Page") -> None:
    session = page.context.new_cdp_session(page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": page.url[:-1], "quotaSize": 10})
    show(page)
    page.wait_for_selector(".entry")
    assert "no room left on this device" in page.inner_text("#history-kept")
    page.click(".this >> nth=0")
    page.wait_for_selector(".entry:has-text('✓')")
    session.send("Storage.overrideQuotaForOrigin", {"origin": page.url[:-1]})
    page.click("#change")
    page.click("text=None of these")
    page.wait_for_selector(".entry:has-text('✓ None of these')")
    assert "no room" not in page.inner_text("#history-kept")
    page.reload()
    page.wait_for_selector(".entry:has-text('✓ None of these')")


@browser
def test_an_old_answer_keeps_its_figures_after_a_calibration(page: "Page") -> None:
    show(page)
    odds = page.inner_text("#odds")

    def other(card: dict[str, Any]) -> None:
        card["model"]["calibration_id"] = "another"

    change_json(page, "/v1/model", other)
    page.wait_for_selector(".entry")  # it is stored
    page.reload()
    page.click(".entry")
    page.wait_for_selector("#result:not([hidden])")
    assert page.inner_text("#odds") == odds
    assert stops(page) > 3


@browser
def test_without_storage_the_history_lasts_as_long_as_the_page(
    opened: Opened, running: Running
) -> None:
    page = opened("icon.svg")
    page.add_init_script("delete window.indexedDB; window.indexedDB = undefined;")
    page.goto(running.url)
    show(page)
    page.wait_for_selector(".entry")
    assert "keeps nothing" in page.inner_text("#history")
    page.reload()
    wait_until(page, "document.querySelector('#history-kept').textContent !== ''")
    assert page.locator(".entry").count() == 0


def exported(page: "Page") -> zipfile.ZipFile:
    """The archive that the page saves."""
    with page.expect_download() as download:
        page.click("#export")
    assert re.fullmatch(r"florilege-\d{4}-\d\d-\d\d\.zip", download.value.suggested_filename)
    return zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes()))


def rows(archive: zipfile.ZipFile, name: str) -> list[dict[str, str]]:
    """The rows of a table in an archive."""
    return [*csv.DictReader(io.StringIO(archive.read(name).decode("utf-8-sig")))]


@browser
def test_the_export_is_a_table_and_a_darwin_core_archive_with_the_picture(page: "Page") -> None:
    show(page)
    page.click(".this >> nth=0")
    page.fill("#place", "43.61; -3.88")
    page.fill("#note", '=1+1, "so"')
    page.press("#note", "Enter")
    page.wait_for_selector(".entry:has-text('43.61')")
    wait_for_note(page, '=1+1, "so"')
    archive = exported(page)
    assert archive.testzip() is None
    (row,) = rows(archive, "notebook.csv")
    assert row["name"] == "sweet violet"
    assert (row["scientific_name"], row["decision"]) == ("Viola odorata", "species")
    assert row["note"] == '\'=1+1, "so"'
    (record,) = rows(archive, "occurrence.csv")
    assert record["scientificName"] == "Viola odorata"
    assert (record["decimalLatitude"], record["decimalLongitude"]) == ("43.61", "-3.88")
    assert record["basisOfRecord"] == "HumanObservation"
    assert record["associatedMedia"] == row["picture"]
    assert archive.read(row["picture"]).startswith((b"\xff\xd8", b"\x89PNG"))
    core = ElementTree.fromstring(archive.read("meta.xml")).find("{*}core")
    assert core is not None
    terms = [field.attrib["term"].rpartition("/")[2] for field in core.findall("{*}field")]
    assert terms == list(record)
    assert core.attrib["linesTerminatedBy"] == r"\r\n"


@browser
def test_an_undecided_photo_is_exported_as_what_its_species_share(page: "Page") -> None:
    def of_one_genus(found: dict[str, Any]) -> None:
        for result in found["results"]:
            result["taxon"].update(genus="Viola", family="Violaceae")

    change_json(page, "/v1/identify", of_one_genus)
    show(page)
    page.click("text=Undecided among")
    page.fill("#note", "\uff1d1+1")  # a wide sign, which some spreadsheets run too
    page.press("#note", "Enter")
    page.wait_for_selector(".entry:has-text('✓')")
    wait_for_note(page, "\uff1d1+1")
    archive = exported(page)
    (record,) = rows(archive, "occurrence.csv")
    assert (record["scientificName"], record["family"]) == ("Viola", "Violaceae")
    (row,) = rows(archive, "notebook.csv")
    assert (row["decision"], row["note"]) == ("undecided", "'\uff1d1+1")
    assert row["set"].count(";") == len(shown(page)[0]) - 1


@browser
@pytest.mark.parametrize("compressed", [False, True])
def test_an_exported_notebook_can_be_imported_again(
    opened: Opened, tmp_path: Path, compressed: bool
) -> None:
    page = opened()
    show(page)
    page.click(".this >> nth=1")
    page.wait_for_selector(".entry:has-text('✓')")
    archive, again = exported(page), tmp_path / "again.zip"
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(again, "w", kind) as file:  # as after somebody has opened it
        for name in archive.namelist():
            file.writestr(name, archive.read(name))
    other = opened()
    other.set_input_files("#archive", again)
    other.wait_for_selector("text=1 entry imported")
    assert other.inner_text(".entry span") == page.inner_text(".entry span")
    other.click(".entry")
    other.wait_for_selector("#result:not([hidden])")
    assert shown(other)[0] == shown(page)[0]
    wait_until(other, "document.querySelector('#photo').naturalWidth === 200")
    assert json.loads(exported(other).read("notebook.json")) == json.loads(
        archive.read("notebook.json")
    )
    for content in (b"no archive", b""):
        (tmp_path / "wrong.zip").write_bytes(content)
        other.set_input_files("#archive", tmp_path / "wrong.zip")
        other.wait_for_selector("text=This file is no notebook")


@browser
def test_an_answer_is_shared_as_a_picture(page: "Page") -> None:
    show(page)
    page.click(".this >> nth=0")
    with page.expect_download() as download:
        page.click("#share")
    assert download.value.path().read_bytes().startswith(b"\xff\xd8")


@browser
def test_what_few_people_open_is_loaded_when_they_do(opened: Opened, running: Running) -> None:
    page = opened("icon.svg")
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url.rpartition("/")[2]))
    page.goto(running.url)
    show(page)
    assert not {"notebook-files.js", "zip.js", "card-picture.js"} & set(calls)
    exported(page)
    assert {"notebook-files.js", "zip.js"} < set(calls)
    assert "words.fr.js" not in calls

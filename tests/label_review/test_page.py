"""The page of a review in a real browser, opened as a file without a server."""

import csv
import io
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from florilege.data.corrections import COLUMNS, ReviewAnswer
from florilege.data.records import Split
from florilege.label_review import ReviewPage
from florilege.models.classes import ClassInfo, ClassTable
from tests.data.pictures import png

if TYPE_CHECKING:
    from playwright.sync_api import Page

CLASSES = ClassTable(
    (
        ClassInfo(id="1", scientific_name="Rosa canina", common_names={"en": ("dog rose",)}),
        ClassInfo(id="2", scientific_name="Rosa rugosa", common_names={"fr": ("\u00e9glantier",)}),
        ClassInfo(id="-3", scientific_name="</script>"),
    )
)
OTHERS = ClassTable((ClassInfo(id="9", scientific_name="Acer rubrum"),))
NAMES = ['-a,"".png', "b.png", "c.png", "d.png"]
SETS = [["2", "1", "9"], [], [], []]
pytestmark = pytest.mark.browser
Opened = Callable[..., "Page"]


def read_picture(row: int) -> bytes:
    if row == 3:
        raise OSError(5, "no such luck")
    return png(row, side=30)


def review_page(labels: tuple[int, ...] = (0, 0, 1, 2)) -> str:
    answer = ReviewAnswer(
        photo="b.png", label="1", answer="corrected", corrected="2", by="Zo\u00e9"
    )
    photos = Split(name="val", names=NAMES, labels=np.array(labels), read=read_picture)
    return ReviewPage(
        source="photos.csv",
        classes=CLASSES,
        others=OTHERS,
        photos=photos,
        splits=["val"] * 4,
        orders=["random", "doubt", "random", "random"],
        sets=SETS,
        answers={"b.png": [answer]},
    ).html()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Opened]:
    """Opens the page in one browser profile, or a new one; any error or request fails the test."""
    still = {"reduced_motion": "reduce"}  # a colour that fades is none to measure
    contexts, complaints = [chromium.new_context(**still)], list[str]()
    file = tmp_path / "review.html"
    file.write_text(review_page(), "utf-8")

    def asked(url: str) -> None:
        if not url.startswith(("data:", "blob:", file.as_uri())):
            complaints.append(url)

    def open_page(*, new: bool = False, **options: Any) -> "Page":
        if new:
            contexts.append(chromium.new_context(**still, **options))
        page: Page = contexts[-1].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: asked(request.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def place(page: "Page") -> str:
    return page.inner_text("#place")


def saved(page: "Page", name: str = "Ann B.") -> tuple[str, str]:
    """The name and the text of the file that the page saves."""
    page.fill("#by", name)
    with page.expect_download() as download:
        page.click("#save")
    return download.value.suggested_filename, download.value.path().read_text("utf-8")


def load(page: "Page", text: str) -> str:
    """Load a file, and give what the page says of it."""
    content = text.encode()
    file: Any = {"name": "a.csv", "mimeType": "text/csv", "buffer": content}
    page.set_input_files("#file", file)
    page.wait_for_function("document.querySelector('#said').textContent !== ''")
    return page.inner_text("#said")


def test_keys_answer_and_the_file_says_what_was_answered(opened: Opened) -> None:
    page = opened()
    assert page.locator("#label p").all_inner_texts() == ["dog rose", "Rosa canina", "1"]
    page.keyboard.press("y")
    assert place(page) == "Photo 2 of 4"
    assert page.inner_text("#said") == "Photo 1: Right. Now photo 2: Rosa canina."
    assert page.inner_text("#others") == "Answers so far: Zo\u00e9: Rosa rugosa"
    page.keyboard.press("n")
    page.keyboard.type("EGLAN")  # accents and capitals do not count
    assert page.locator("#choices li").all_inner_texts() == ["Rosa rugosa\n\u00e9glantier, 2"]
    page.keyboard.press("Enter")
    page.keyboard.press("u")
    assert page.inner_text("#unseen") == "This photo cannot be shown: no such luck"
    page.keyboard.press("n")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # stays at the first
    page.keyboard.press("Enter")
    assert page.inner_text("#said").endswith("Every photo has an answer: save them.")
    assert page.inner_text("#count") == "4 of 4 photos answered"
    name, text = saved(page)
    assert name == "review-Ann-B-.csv"
    assert list(csv.reader(io.StringIO(text))) == [
        list(COLUMNS),
        ["'" + NAMES[0], "1", "confirmed", "", "Ann B.", "val", "random"],
        ["b.png", "1", "corrected", "2", "Ann B.", "val", "doubt"],
        ["c.png", "2", "undecided", "", "Ann B.", "val", "random"],
        ["d.png", "-3", "corrected", "1", "Ann B.", "val", "random"],
    ]


def test_a_suggestion_is_taken_by_its_digit_or_a_click(opened: Opened) -> None:
    page = opened()
    members = page.locator("#members button")
    assert members.count() == 3
    assert members.nth(2).is_disabled()  # a class of the network that the data lack
    page.keyboard.press("3")
    assert place(page) == "Photo 1 of 4"
    page.keyboard.press("1")
    page.keyboard.press("ArrowLeft")
    assert members.nth(0).get_attribute("aria-pressed") == "true"
    assert page.get_attribute("#wrong", "aria-pressed") == "true"
    members.nth(1).click()  # the label itself
    page.click("#previous")
    assert page.get_attribute("#right", "aria-pressed") == "true"


def test_answers_survive_a_reload_and_another_day(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("y")
    page.keyboard.press("u")
    _, text = saved(page)
    page.reload()
    assert place(page) == "Photo 3 of 4"
    assert page.input_value("#by") == "Ann B."
    assert page.inner_text("#count") == "2 of 4 photos answered"
    other = opened(new=True)
    assert other.inner_text("#count") == "0 of 4 photos answered"
    words = "2 of 2 answers loaded, which are of these photos and labels. Now photo 3: Rosa rugosa."
    assert load(other, text) == words
    assert saved(other, "Bob")[1] == text  # who answered does not change
    other.reload()
    assert other.inner_text("#count") == "2 of 4 photos answered"


def test_files_of_other_programs_are_read_and_what_does_not_fit_is_left_out(
    opened: Opened,
) -> None:
    page = opened()
    rows = [
        '"\'-a,"""".png";1;confirmed;;"Ann; ""A"".";val',
        "b.png;2;confirmed;;Ann;val",  # another label
        "x.png;1;confirmed;;Ann;val",  # another photo
        "b.png;1;corrected;9;Ann;val",  # no class of the data
        "c.png;2;perhaps;;Ann;val",
    ]
    text = "\ufeff" + "\r\n".join([";".join(COLUMNS[:-1]), *rows]) + "\r\n"
    assert load(page, text).startswith("1 of 5 answers loaded")
    assert page.inner_text("#count") == "1 of 4 photos answered"
    assert list(csv.reader(io.StringIO(saved(page)[1])))[1][4] == 'Ann; "A".'
    page.reload()
    assert load(page, "path,class_id\nb.png,2\n").startswith("This is no file of answers")


def test_a_name_is_asked_for_and_letters_in_it_are_no_keys(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("y")
    page.click("#save")
    assert page.inner_text("#said").startswith("Enter your name or initials first")
    page.keyboard.type("yun")
    assert page.input_value("#by") == "yun"
    assert page.inner_text("#count") == "1 of 4 photos answered"


def test_keys_can_be_turned_off_and_buttons_do_the_same(opened: Opened) -> None:
    page = opened(new=True, viewport={"width": 360, "height": 700}, has_touch=True)
    page.uncheck("#keys")
    page.locator("#keys").blur()
    page.keyboard.press("y")
    assert page.inner_text("#count") == "0 of 4 photos answered"
    page.reload()
    assert not page.is_checked("#keys")
    page.tap("#right")
    page.tap("#undecided")
    page.tap("#wrong")
    page.tap("#choices li >> nth=2")
    assert page.inner_text("#count") == "3 of 4 photos answered"
    page.tap("#previous")
    assert page.inner_text("#said") == "Your answer: </script>."
    page.tap("#open")
    assert place(page) == "Photo 4 of 4"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_escape_closes_the_search_and_gives_the_focus_back(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("n")
    page.keyboard.type("nobody")
    assert page.inner_text("#more") == "No class is called so."
    page.keyboard.press("Enter")
    assert place(page) == "Photo 1 of 4"
    page.keyboard.press("Escape")
    assert page.is_hidden("#correction")
    assert page.evaluate("document.activeElement.id") == "wrong"


def test_axe_finds_no_fault(opened: Opened) -> None:
    result = find_spec("axe_playwright_python")
    if result is None or result.origin is None:
        pytest.skip("axe-playwright-python is not installed")
    axe = Path(result.origin).with_name("axe.min.js").read_text()
    page = opened()
    page.evaluate(axe)
    for keys in ([], ["n"], ["Enter", "ArrowLeft"]):
        for key in keys:
            page.keyboard.press(key)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            run = "() => axe.run().then(result => result.violations)"
            faults = [(one["id"], one["nodes"][0]["html"]) for one in page.evaluate(run)]
            assert faults == []


def test_other_labels_are_another_page() -> None:
    assert review_page() == review_page()
    keys = {page[page.index("florilege-review-") :][:33] for page in
            (review_page(), review_page((0, 1, 1, 2)))}  # fmt: skip
    assert len(keys) == 2

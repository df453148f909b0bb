"""The parts that pages share stand once in the folder and once on each page."""

from importlib.resources import files

import pytest

from florilege.files import page_files, with_parts

REVIEW = files("florilege.label_review").joinpath("page.html").read_text("utf-8")
PAGES = {name: page.decode() for name, page in page_files().items() if name.endswith(".html")}


@pytest.mark.parametrize("page", [*PAGES.values(), with_parts(REVIEW)], ids=[*PAGES, "review"])
def test_a_page_has_the_mark_the_viewport_and_both_colours(page: str) -> None:
    assert page.count('<svg class="mark"') == page.count('name="viewport"') == 1
    assert page.count('name="theme-color"') == 2
    assert page.startswith("<!doctype html>")
    assert "<!-- " not in page


def test_parts_are_no_pages() -> None:
    assert sorted(PAGES) == ["index.html", "model.html", "species.html"]

"""The skeleton of a report: words are escaped, drawings are part of the page."""

import re
from xml.etree import ElementTree

import matplotlib as mpl

from florilege.calibration.report.html_page import (
    COLOURS,
    GREEN,
    INK,
    STYLE,
    drawing,
    interval,
    page,
    panel,
    percent,
    preformatted,
    section,
    table,
    words,
)


@mpl.rc_context(STYLE)
def a_drawing() -> str:
    figure, axes = panel("<across>", "up & down")
    axes.plot([1, 2], [3, 4], color=GREEN)
    text = drawing(figure, "")
    return text[text.index("<svg") : text.index("</svg>") + len("</svg>")]


def test_what_is_written_is_escaped_everywhere() -> None:
    bad = "<script>alert('&')</script>"
    parts = [words(bad), preformatted(bad), table([bad], [[bad]]), drawing(panel("", "")[0], bad)]
    text = page(bad, [section(bad, *parts)])
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") == 8


def test_a_drawing_is_well_formed_and_its_letters_are_letters() -> None:
    root = ElementTree.fromstring(a_drawing())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<across>", "up & down"} <= set(texts)


def test_every_colour_of_a_drawing_follows_the_page() -> None:
    text = a_drawing()
    assert {GREEN, INK} & set(re.findall(r"#[0-9a-f]{6}\b", text)) == set()
    assert re.findall(r"(?:fill|stroke): #", text) == []
    named = set(re.findall(r"var\((--\w+)\)", text))
    assert named
    light, dark = re.findall(r":root{(?:color-scheme:light dark;)?(--.*?;)}", page("", []))
    for variables in (light, dark):
        assert named <= {entry.split(":")[0] for entry in variables.split(";")}
        assert variables.count(";") == len(COLOURS)
    assert f"--green:{GREEN};" in light
    assert f"--green:{GREEN};" not in dark


def test_two_drawings_have_no_identifier_in_common_but_of_equal_things() -> None:
    text = a_drawing()
    assert '<g id="' not in text
    assert a_drawing() == text


def test_a_share_and_its_interval_are_in_percent_with_one_unit_and_none_is_a_dash() -> None:
    assert [percent(share) for share in (0.9306, 1.0, None)] == ["93.1 %", "100.0 %", "-"]
    assert [interval(0.92, 0.9412), interval(None, None)] == ["92.0-94.1 %", "-"]
    kept_together = "<p>at K&nbsp;=&nbsp;3 for 93.1&nbsp;% of all</p>\n"
    assert words("at K = 3 for 93.1 % of all") == kept_together

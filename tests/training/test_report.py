import re
from xml.etree import ElementTree

from tests.training.small import metrics_row, small_config
from training.report import report_html

PAGE = report_html(
    "run <1>",
    small_config("flora"),
    [metrics_row(1, 0.5), metrics_row(2, 0.75), metrics_row(3, 0.6)],
)


def test_the_page_names_the_run_and_its_best_epoch() -> None:
    assert "Training run run &lt;1&gt;" in PAGE
    assert "Best of 3 epochs: <b>epoch 2</b>, average-2 accuracy on validation <b>75.00 %" in PAGE


def test_the_table_holds_every_head_and_k_of_the_best_epoch() -> None:
    assert "<th>K = 1</th><th>K = 2</th>" in PAGE
    assert "<td>SCCP, softmax</td><td>30.00</td><td>75.00</td>" in PAGE
    assert "<td>multi-label, softmax</td><td>10.00</td><td>20.00</td>" in PAGE


def test_the_settings_are_there_in_full() -> None:
    assert "learning_rate: 0.05" in PAGE
    assert "name: two_head_average_k" in PAGE


def test_the_page_needs_nothing_from_elsewhere() -> None:
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", PAGE))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # names of SVG
    assert not re.search(r"<(script|link|img|iframe)\b", PAGE)


def test_the_curves_are_one_well_formed_drawing_of_four_panels() -> None:
    drawing = ElementTree.fromstring(PAGE[PAGE.index("<svg") : PAGE.index("</svg>") + 6])
    names = [group.get("id") for group in drawing.iter("{http://www.w3.org/2000/svg}g")]
    assert [name for name in names if name and re.fullmatch(r"axes_\d", name)] == [
        "axes_1", "axes_2", "axes_3", "axes_4",
    ]  # fmt: skip


def test_the_same_run_gives_the_same_page() -> None:
    rows = [metrics_row(1, 0.5), metrics_row(2, 0.75), metrics_row(3, 0.6)]
    assert report_html("run <1>", small_config("flora"), rows) == PAGE


def test_a_run_without_epochs_has_a_page_too() -> None:
    page = report_html("run", small_config("flora"), [])
    assert "No epoch was trained." in page
    assert "<svg" not in page

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from florilege.training.run_report import _report_html
from tests.training.small import metrics_row, small_config, train_quietly


@pytest.fixture(scope="module", autouse=True)
def reports_without_drawings() -> None:
    """Keep the drawings, which these tests check."""


ROWS = [metrics_row(1, 0.5), metrics_row(2, 0.75), metrics_row(3, 0.6)]
PAGE = _report_html("run <1>", small_config("flora"), ROWS)
READ = PAGE.replace("&nbsp;", " ")


def test_the_page_holds_the_run_its_best_epoch_for_every_head_and_k_and_all_settings() -> None:
    assert "Training run run &lt;1&gt;" in PAGE
    assert (
        "Best of 3 epochs: epoch 2, where 75.0 % of the sets on validation hold the right" in READ
    )
    assert "<th>K = 1</th><th>K = 2</th>" in READ
    assert "<td>SCCP, softmax</td><td>30.0 %</td><td>75.0 %</td>" in READ
    assert "<td>multi-label, softmax</td><td>10.0 %</td><td>20.0 %</td>" in READ
    assert "learning_rate: 0.05" in PAGE
    assert "name: two_head_average_k" in PAGE


def test_a_run_leaves_its_page(tmp_path: Path) -> None:
    config = small_config("flora:train=16,val=8", epochs=1)
    train_quietly(config, tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert page.count("<svg") == 5


def test_the_page_needs_nothing_from_elsewhere() -> None:
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", PAGE))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # names of SVG
    assert not re.search(r"<(script|link|img|iframe)\b", PAGE)


def letters(page: str) -> list[set[str | None]]:
    """The text of each drawing, which must be well-formed."""
    drawings = [ElementTree.fromstring(result) for result in re.findall("(?s)<svg.*?</svg>", page)]
    texts = "{http://www.w3.org/2000/svg}text"
    return [{element.text for element in drawing.iter(texts)} for drawing in drawings]


def test_each_curve_is_a_drawing_with_names_on_its_axes() -> None:
    accuracy, loss, log_loss, rate = letters(PAGE)
    assert {
        "sets with the right class, %",
        "epoch",
        "SCCP, softmax",
        "multi-label, softmax",
    } <= accuracy
    assert {"training loss", "epoch"} <= loss
    assert {"log-loss", "SCCP", "multi-label"} <= log_loss
    assert "learning rate" in rate


def test_the_axis_of_one_epoch_names_it_alone() -> None:
    for texts in letters(_report_html("run", small_config("flora"), ROWS[:1])):
        assert "1" in texts
        assert not {"0.96", "0.98", "1.02", "1.04"} & texts


def test_the_classes_taught_are_drawn_if_the_loss_reports_them() -> None:
    taught = [{**metrics_row(1, 0.5), "train_set_size": 4.9}, metrics_row(2, 0.75)]
    *_, last = letters(_report_html("run", small_config("flora"), taught))
    assert "classes taught per picture" in last


def test_the_same_run_gives_the_same_page() -> None:
    assert _report_html("run <1>", small_config("flora"), ROWS) == PAGE


def test_a_run_without_epochs_has_a_page_too() -> None:
    page = _report_html("run", small_config("flora"), [])
    assert "No epoch was trained." in page
    assert "<svg" not in page


def paths(page: str) -> list[str]:
    """What is drawn."""
    return re.findall('(?s)<path d="(.*?)"', page)


def test_curves_of_weight_decays_are_drawn_in_their_order() -> None:
    scores = {3.0: 0.5, 1.0: 0.6, 0.3: 0.7, 10.0: 0.4}
    solved = [{**metrics_row(1, score), "weight_decay": key} for key, score in scores.items()]
    one, other = (
        paths(_report_html("run", small_config("flora"), rows))
        for rows in (solved, sorted(solved, key=lambda row: row["weight_decay"]))
    )
    assert one == other != []

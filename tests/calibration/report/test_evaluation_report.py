"""The page of ``evaluate --report``: every section, the figures of the command, nothing unsafe."""

import errno
import html
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import Result

import florilege.calibration.commands.console as console
import florilege.calibration.commands.threshold_commands as threshold_commands
from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.evaluate import Evaluation
from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.report.evaluation_report import SECTIONS, evaluation_report
from florilege.calibration.settings import CalibrationPlan
from florilege.data.records import Split
from florilege.errors import GateFailed
from florilege.models.bundle import replace_files
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import Preprocess
from tests.calibration.command_line import run, usage_error
from tests.calibration.estimates import UNMET
from tests.calibration.record.test_record import scoring_of
from tests.calibration.small_bundle import CLASSES, make_bundle

PageAndJson = tuple[str, dict[str, Any]]
BAD = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, data: str) -> Path:
    result = make_bundle(tmp_path_factory.mktemp("bundle") / "b")
    items = [ClassInfo(id=item.id, scientific_name=f"{BAD} {item.id}",
                       training_count=item.training_count) for item in result.classes]  # fmt: skip
    replace_files(result.path, {"classes.json": ClassTable(tuple(items)).to_json().encode()})
    calibrate_bundle(result.path, data)
    return result.path


WITHOUT_DRAWINGS = pytest.mark.usefixtures("without_drawings")


def evaluate(bundle: Path, data: str, *more: object) -> Result:
    return run("evaluate", bundle, "--data", data, *more)


@pytest.fixture(scope="module")
def page_and_json(bundle: Path, data: str, tmp_path_factory: pytest.TempPathFactory) -> PageAndJson:
    file = tmp_path_factory.mktemp("report") / "report.html"
    result = evaluate(bundle, data, "--report", file, "--json")
    assert result.exit_code == 0, result.output
    return read(file), json.loads(result.stdout)


def read(file: Path) -> str:
    """A page with spaces as a person sees them."""
    return read_text(file.read_text("utf-8"))


def read_text(page: str) -> str:
    """The same for the text of a page."""
    return page.replace("&nbsp;", " ")


def cells(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables under a heading, without their heads."""
    part = page[page.index(f"<h2>{heading}</h2>") :]
    part = part[: part.index("</section>")]
    rows = re.findall(r"<tr>(<td>.*?)</tr>", part)
    return [[html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in rows]


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def test_every_section_is_there_but_that_of_an_older_bundle(page_and_json: PageAndJson) -> None:
    page, _ = page_and_json
    expected = [html.escape(name) for name in SECTIONS if name != "Beside the older bundle"]
    assert re.findall(r"<h2>(.*?)</h2>", page) == expected
    assert page.count("<svg") == 6
    assert "<title>squares, version 1, on 72 photos of test</title>" in page
    assert f"<p>{CLASSES} classes, head " in page


def test_the_figures_are_those_of_the_command(page_and_json: PageAndJson) -> None:
    page, content = page_and_json
    entries = [*content["rules"], *content["guaranteed"]]
    rows = cells(page, "Every rule")
    assert len(rows) == len(entries)
    for row, entry in zip(rows, entries, strict=True):
        low, high = entry["hit_rate_ci95"]
        request = f"K = {entry['k']:g}" if "k" in entry else f"{100 * entry['level']:g} %"
        assert row[0].startswith(entry["rule"])
        assert row[1:] == [
            request, f"{entry['mean_set_size']:.3f}", percent(entry["hit_rate"]),
            f"{low * 100:.1f}-{percent(high)}", percent(entry["macro_hit_rate"]),
            percent(entry["empty_rate"]),
        ]  # fmt: skip


def test_the_sentences_repeat_the_figures_of_the_default_k(page_and_json: PageAndJson) -> None:
    page, content = page_and_json
    at = {(rule["rule"], rule.get("k")): rule for rule in content["rules"]}
    average, top = at["average_k", 3.0], at["top_k", 3.0]
    assert f"the sets hold {average['mean_set_size']:.2f} (95 %" in page
    assert (
        f"sets of that size on average hold the right class for {percent(average['hit_rate'])}, "
        f"sets of exactly that size for {percent(top['hit_rate'])}" in page
    )
    assert f"alone is right for {percent(at['top_k', 1.0]['hit_rate'])}" in page


def test_groups_by_training_photos_are_those_of_the_command(page_and_json: PageAndJson) -> None:
    page, content = page_and_json
    groups, by_k = cells(page, "Rare and common classes")[:3], {}
    assert [row[:3] for row in groups] == [
        ["few", "1", "12"], ["medium", "3", "36"], ["many", "2", "24"],
    ]  # fmt: skip
    for rule in content["rules"]:
        if rule["rule"] == "average_k":
            shots = [*rule["shots"].values(), rule["macro_hit_rate"]]
            by_k[f"{rule['k']:g}"] = list(map(percent, shots))
    assert {row[0]: row[1:] for row in cells(page, "Rare and common classes")[3:]} == by_k


def test_the_page_needs_nothing_else_and_trusts_no_name(page_and_json: PageAndJson) -> None:
    page, _ = page_and_json
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # names of SVG
    assert not re.search(r"<(script|link|iframe)\b", page)
    assert html.escape(BAD) in page
    assert set(re.findall(r'src="([^,"]*)', page)) == {"data:image/jpeg;base64"}
    assert len(page) < 400_000


def test_photos_with_the_largest_sets_are_shown_with_the_truth(page_and_json: PageAndJson) -> None:
    page, _ = page_and_json
    tiles = re.findall(r'<div class="photo">.*?</ol>', page)
    assert len(tiles) == 12
    for tile in tiles:
        assert '<img alt="' in tile
        truth = re.search(r"<div><b>(.*?)</b>, (not )?in the set", tile)
        assert truth
        if truth[2] is None and "more" not in tile:
            assert f"<li><b>{truth[1]}</b>" in tile


def small_logits(classes: int, rows: int = 60) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(3)
    labels = np.arange(rows) % max(1, classes - 1)  # the last class has no photo
    logits = random.normal(size=(rows, classes)) + 2 * np.eye(classes)[labels]
    return logits.astype(np.float32), labels


def synthetic(
    logits: NDArray[np.float32], labels: NDArray[np.int64], *, min_size: int = 1
) -> BundleOutputs:
    """A calibrated bundle that never was, and its outputs."""
    classes = logits.shape[1]
    plan = CalibrationPlan(
        classes=classes, min_size=min_size, rejection_method="none", coverages=(0.5,)
    )
    outputs = scoring_of({"linear": logits}, labels)
    record = fit_record(outputs, plan, class_counts=None, overlap=UNMET)
    table = ClassTable(
        tuple(ClassInfo(id=f"c{i}", scientific_name=f"C {i}") for i in range(classes))
    )

    def no_photo(row: int) -> bytes:
        raise OSError("no photo")

    names = [f"photo {row}" for row in range(len(labels))]
    photos = Split(name="val", labels=labels, names=names, observations=None, read=no_photo)
    bundle: Any = SimpleNamespace(
        manifest=SimpleNamespace(name="none", version="1"), sha256="0" * 64, classes=table,
        preprocess=Preprocess(image_size=8), has=lambda _: False, read_object=lambda _: {},
    )  # fmt: skip
    return BundleOutputs(bundle, record, outputs, photos)


@pytest.mark.parametrize(("classes", "min_size"), [(1, 0), (1, 1), (2, 0), (3, 1), (25, 0)])
def test_any_number_of_classes_has_a_page_also_without_photos(classes: int, min_size: int) -> None:
    logits, labels = small_logits(classes)
    result = synthetic(logits, labels, min_size=min_size)
    page = evaluation_report(result, Evaluation.of(result))
    if classes > 1:
        assert "Classes without a photo here: 1." in page
    assert "does not say how many training photos" in page
    assert ("No set holds more than one class." in page) == (result.record.default_k == 1)
    assert ("no picture" in page) == (result.record.default_k > 1)
    assert not re.search(r"\bnan\b", page)


def test_empty_sets_are_said_and_drawn() -> None:
    logits, labels = small_logits(25)
    logits[:20] = 0  # even scores, below the threshold
    result = synthetic(logits, labels, min_size=0)
    evaluation = Evaluation.of(result)
    (rate,) = (r.row.empty_rate for r in evaluation.rules
               if (r.point.rule, r.point.k) == ("average_k", 3.0))  # fmt: skip
    assert rate > 0.2
    page = evaluation_report(result, evaluation)
    assert f"{percent(rate)} are empty" in page.replace("&nbsp;", " ")


@WITHOUT_DRAWINGS
def test_the_page_says_that_it_takes_labels_as_they_are(data: str, tmp_path: Path) -> None:
    bundle, file = make_bundle(tmp_path / "b").path, tmp_path / "r.html"
    for noise in ((), ("--label-noise", "0.02")):
        result = run("calibrate", bundle, "--data", data, *noise, "--report", file)
        assert result.exit_code == 0, result.output
        assert ("This page takes labels as right" in read(file)) == bool(noise)
    assert evaluate(bundle, data, "--report", file).exit_code == 0
    page = read(file)
    assert "This page takes labels as right" in page
    result = evaluate(bundle, data, "--report", file, "--label-noise", "0.02", "--json")
    assert json.loads(result.stdout)["label_noise"]["rate"] == 0.02
    assert read(file) == page
    calibrate_bundle(bundle, data)
    evaluate(bundle, data, "--report", file, "--label-noise", "0.02")
    assert "This page takes labels as right" in read(file)


@WITHOUT_DRAWINGS
def test_the_page_says_how_much_ties_enlarge_the_sets_of_the_calibration() -> None:
    logits, labels = small_logits(25)
    result = synthetic(logits, labels, min_size=1)
    assert "thresholds give 0 % on the" in read_text(
        evaluation_report(result, Evaluation.of(result))
    )
    result = synthetic(np.round(logits / 3), labels, min_size=1)
    size = result.record.default_point.row.size
    assert size > 3.1
    page = read_text(evaluation_report(result, Evaluation.of(result)))
    assert f"thresholds give {100 * (size / 3 - 1):.1f} % on the" in page


@WITHOUT_DRAWINGS
def test_an_older_bundle_stands_beside_the_new_one(bundle: Path, data: str, tmp_path: Path) -> None:
    older = make_bundle(tmp_path / "older", sharper=0.1).path
    calibrate_bundle(older, data)
    file = tmp_path / "r.html"
    result = evaluate(bundle, data, "--baseline", older, "--report", file, "--json")
    content, page = json.loads(result.stdout), read(file)
    rows = {row[0]: row[1:] for row in cells(page, "Beside the older bundle")}
    assert list(rows) == ["1", "2", "3", "5"]
    for each in content["against"]:
        rule, value = each["rule"].split(" k=") if " k=" in each["rule"] else ("", "")
        if rule == "average_k":
            size, hits = each["size"], each["hit_rate"]
            assert rows[value] == [f"{size['old']:.3f}", f"{size['new']:.3f}",
                                   percent(hits["old"]), percent(hits["new"])]  # fmt: skip


VERBS = pytest.mark.parametrize("verb", ["calibrate", "evaluate"])


@VERBS
def test_a_page_that_cannot_be_made_or_written_is_refused_before_any_photo_is_scored(
    bundle: Path, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(console, "bundle_outputs", None)
    monkeypatch.setattr(threshold_commands, "calibrate_bundle", None)

    def refused(page: Path) -> str:
        return usage_error(verb, bundle, "--data", data, "--report", page)

    page = tmp_path / "no" / "r.html"
    assert f"{page} cannot be written: No such file" in refused(page)
    assert f"{tmp_path} is a folder: name an HTML file" in refused(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith("florilege.calibration.report.")]:
        if name.endswith(("evaluation_report", "plot_style", "html_page", "_plots")):
            monkeypatch.delitem(sys.modules, name)
    message = "needs matplotlib; leave it out, or in a checkout pip install '.[report]'"
    assert message in refused(tmp_path / "r.html")


def test_a_page_needs_photos(bundle: Path, tmp_path: Path) -> None:
    message = usage_error("evaluate", bundle, "--feedback-store", tmp_path, "--report", "r")
    assert "--report needs photos" in message


@VERBS
@WITHOUT_DRAWINGS
def test_a_full_disk_loses_neither_the_figures_nor_the_old_page(
    bundle: Path, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    before, page = (bundle / "calibration.json").read_bytes(), tmp_path / "r.html"
    page.write_text("old")
    monkeypatch.setattr(threshold_commands, "write_atomic", full)
    result = run(verb, bundle, "--data", data, "--report", page, "--json")
    assert isinstance(result.exception, OSError)
    if verb == "evaluate":
        assert len(json.loads(result.stdout)["rules"]) > 5
    else:
        assert (bundle / "calibration.json").read_bytes() != before
    assert page.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


@WITHOUT_DRAWINGS
def test_a_closed_gate_still_leaves_its_page(bundle: Path, data: str, tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text("min_rows: 100000")
    more = ("--baseline", bundle, "--gate", tmp_path / "gate.yaml", "--report", tmp_path / "r.html")
    assert isinstance(evaluate(bundle, data, *more).exception, GateFailed)
    assert "Beside the older bundle" in read(tmp_path / "r.html")

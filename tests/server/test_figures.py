"""Every figure of a calibration is recorded, printed and answered, and the same everywhere."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from florilege.calibration.calibrate.evaluate import Evaluated, Evaluation, _EvaluatedView
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.commands.console import summary
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import OperatingPoint, Row
from florilege.calibration.view import PLAIN
from florilege.models.bundle import open_bundle
from tests.server import garden
from tests.server.http_client import identify

OF_THE_RECORD = {"value", "lambda_val", "size_deviation", "size_histogram", "size_rows", "hit_rows"}
INTERVALS = {"size_low", "size_high", "hit_low", "hit_high"}
COLUMN_OF_FIGURE: dict[str, dict[str, str]] = {  # the column of each figure by its name
    "calibrate": {"mean_set_size": "size", "hit_rate": "hit_rate", "empty_rate": "empty_rate",
                  "ties": "ties"},
    "evaluate": {"mean_set_size": "size", "hit_rate": "hit_rate", "empty_rate": "empty_rate"},
}  # fmt: skip


def printed(point: OperatingPoint, verb: str) -> dict[str, Any]:
    """What a command prints about a threshold, besides its value."""
    row = point.row
    return {name: getattr(row, column) for name, column in COLUMN_OF_FIGURE[verb].items()} | {
        "mean_set_size_ci95": (row.size_low, row.size_high),
        "hit_rate_ci95": (row.hit_low, row.hit_high),
    }


def answered(point: OperatingPoint) -> dict[str, Any]:
    """The figures of an answer."""
    row = point.row
    figures = {
        "expected_size": (row.size, row.size_low, row.size_high),
        "hit_rate": (row.hit_rate, row.hit_low, row.hit_high),
    }
    return {
        name: {
            "value": value, "ci95": [low, high], "split": point.measured.split, "rows": point.rows,
        }
        for name, (value, low, high) in figures.items()
    }  # fmt: skip


def test_each_column_is_printed_or_the_end_of_an_interval_or_for_the_record_alone() -> None:
    columns = {column for names in COLUMN_OF_FIGURE.values() for column in names.values()}
    assert columns | INTERVALS | OF_THE_RECORD == {entry.name for entry in fields(Row)}


def test_each_figure_is_recorded_printed_and_answered(bundle: Path, client: TestClient) -> None:
    text = open_bundle(bundle).read("calibration.json")
    record = CalibrationRecord.from_json(text)
    point = record.point(PLAIN, record.setting("average_k"))
    calls = (point.rule, point.k)
    evaluation = Evaluation(
        **dict.fromkeys(("bundle", "bundle_sha256", "calibration_id", "split", "data_sha256"), ""),
        rows=point.rows,
        observations=None,
        label_noise=None,
        noise_calibrated=False,
        overlap=PhotoOverlap(),
        lists=(),
        views=(_EvaluatedView(PLAIN, None, point.rows, (Evaluated(point, point.row, {}),)),),
    )
    alone: dict[str, set[str]] = {
        "calibrate": {
            "guaranteed",
            "reasons",
            "delta",
            "max_size",
            "macro_weight",
            "least_coverage",
        },
        "evaluate": {"shots", "macro_hit_rate"},
    }  # fmt: skip
    entries = {"calibrate": summary(record)["rules"], "evaluate": evaluation.to_plain()["rules"]}
    for verb, others in alone.items():
        [entry] = [each for each in entries[verb] if (each["rule"], each.get("k")) == calls]
        others |= {"rule", "k", "guarantee", "lambda_val", "rows"}
        assert {name: entry[name] for name in entry.keys() - others} == printed(point, verb)

    [rule] = [
        each for each in client.get("/v1/model").json()["rules"] if each["rule"] == point.rule
    ]
    [view] = [each for each in rule["points"] if each["k"] == point.k]
    result = identify(client, garden.photo(0))["set"]
    for place in (view, result):
        for name, figure in answered(point).items():
            split = {"selection_split": place[name]["selection_split"]}
            assert place[name] == figure | split
    of_rule = {"k", "coverage", "lambda", "macro_weight", "least_coverage"}
    assert view.keys() - answered(point) == of_rule

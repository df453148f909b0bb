"""A figure of a calibration is defined once, in `Row`, and shown where `Row` says."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from florilege.calibration.calibrate.evaluate import Evaluated, Evaluation
from florilege.calibration.calibrate.photo_overlap import PhotoOverlap
from florilege.calibration.commands.console import summary
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.schema import Row, Verb
from florilege.models.bundle import open_bundle
from tests.server import garden
from tests.server.http_client import identify

FIGURES = {entry.name: entry.metadata for entry in fields(Row) if entry.metadata}
NEITHER = {"value", "lambda_val", "size_deviation", "size_histogram"}  # columns of the record alone


def printed(point: OperatingPoint, verb: Verb) -> dict[str, Any]:
    """What a command prints about a threshold, besides its value."""
    results = dict[str, Any]()
    for name, figure in FIGURES.items():
        if figure["only"] in (None, verb):
            results[figure["name"]] = getattr(point.row, name)
            if figure["ends"]:
                results[f"{figure['name']}_ci95"] = tuple(
                    getattr(point.row, e) for e in figure["ends"]
                )
    return results


def answered(point: OperatingPoint) -> dict[str, Any]:
    """The same of an answer."""
    return {
        figure["answer"]: {
            "value": getattr(point.row, name),
            "ci95": [getattr(point.row, end) for end in figure["ends"]],
            "split": point.measured.split,
            "rows": point.rows,
        }
        for name, figure in FIGURES.items()
        if figure["answer"]
    }


def test_each_column_is_a_figure_or_the_end_of_an_interval_or_for_the_record_alone() -> None:
    ends = {end for result in FIGURES.values() for end in result["ends"]}
    assert FIGURES.keys() | ends | NEITHER == {entry.name for entry in fields(Row)}
    for figure in FIGURES.values():
        assert len(figure["ends"]) in ({2} if figure["answer"] else {0, 2})


def test_each_figure_is_recorded_printed_and_answered(bundle: Path, client: TestClient) -> None:
    text = open_bundle(bundle).read("calibration.json")
    record = CalibrationRecord.from_json(text)
    point = record.point("average_k")
    calls = (point.rule, point.k)
    for table in json.loads(text)["tables"]:
        assert table["columns"].keys() == {entry.name for entry in fields(Row)}

    evaluation = Evaluation(
        **dict.fromkeys(("bundle", "bundle_sha256", "calibration_id", "split", "data_sha256"), ""),
        rows=point.rows,
        observations=None,
        overlap=PhotoOverlap(),
        rules=(Evaluated(point, point.row, {}),),
        guaranteed=(),
        lists=(),
    )
    alone: dict[Verb, set[str]] = {
        "calibrate": {"guaranteed", "delta", "max_size", "macro_weight", "least_coverage"},
        "evaluate": {"shots"},
    }
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
            split = figure and {"selection_split": place[name]["selection_split"]}
            assert place[name] == (figure and figure | split)
    of_rule = {"k", "coverage", "lambda", "macro_weight", "least_coverage"}
    assert view.keys() - answered(point) == of_rule

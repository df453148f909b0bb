"""Predictions as text: a table for people, rows of CSV and lines of JSON for programs."""

import csv
import io
import json
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from florilege.server.predict.photos import shown
from florilege.server.predict.prediction import Predicted
from florilege.server.schemas import Answer

COLUMNS: dict[str, str] = {
    "path": "string",
    "observation": "string",
    "photos": "int64",
    "rank": "int64",
    "class_id": "string",
    "scientific_name": "string",
    "common_name": "string",
    "genus": "string",
    "family": "string",
    "gbif": "string",
    "score": "float64",
    "in_set": "bool_",
    "top_k_probability": "float64",
    "rule": "string",
    "k": "float64",
    "coverage": "float64",
    "guarantee": "string",
    "lambda": "float64",
    "set_size": "int64",
    "calibrated": "bool_",
    "verdict": "string",
    "familiarity": "float64",
    "model": "string",
    "calibration_id": "string",
    "error": "string",
    "detail": "string",
}
"""The columns of CSV and Parquet, with their Arrow types: one row for each class listed."""

Row = dict[str, Any]


def rows(one: Predicted) -> list[Row]:
    """One row for each class listed; one without a class where none is, or the photo failed."""
    photos = one.observation.photos
    row: Row = dict.fromkeys(COLUMNS)
    row |= {"path": shown(photos[0]), "observation": one.observation.name, "photos": len(photos)}
    if one.problem is not None:
        return [row | {"error": one.problem.code, "detail": one.problem.detail}]
    assert one.answer is not None
    drawn, model, rejection = one.answer.set, one.answer.model, one.answer.rejection
    row |= {name: getattr(drawn, name) for name in ("rule", "k", "coverage", "guarantee")}
    row |= {"lambda": drawn.lambda_val, "set_size": drawn.size, "calibrated": drawn.calibrated}
    row |= {"verdict": rejection.verdict, "familiarity": rejection.value}
    row |= {"model": f"{model.name} {model.version}", "calibration_id": model.calibration_id}
    listed = []
    for each in one.answer.results:
        taxon = each.taxon
        listed.append(
            row
            | {name: getattr(taxon, name) for name in ("scientific_name", "genus", "family")}
            | {
                "rank": each.rank,
                "class_id": each.class_id,
                "common_name": taxon.common_names[0].name if taxon.common_names else None,
                "gbif": taxon.ids["gbif"],
                "score": each.score,
                "in_set": each.in_set,
                "top_k_probability": each.top_k_probability,
            }
        )
    return listed or [row]


def csv_header() -> str:
    """The first line of a CSV file."""
    return ",".join(COLUMNS) + "\n"


def csv_rows(one: Predicted) -> str:
    """The lines of a CSV file about one observation."""
    text = io.StringIO(newline="")
    csv.DictWriter(text, list(COLUMNS), lineterminator="\n").writerows(rows(one))
    return text.getvalue()


def json_line(one: Predicted) -> str:
    """One line of JSON: the answer as over HTTP, with the photos it is about."""
    photos = one.observation.photos
    line: dict[str, Any] = {
        "path": shown(photos[0]),
        "observation": one.observation.name,
        "paths": [shown(photo) for photo in photos],
        **dict.fromkeys(Answer.model_fields),
        "error": None,
    }
    if one.answer is not None:
        line |= one.answer.model_dump(mode="json", by_alias=True)
    if one.problem is not None:
        line["error"] = {"code": one.problem.code, "detail": one.problem.detail}
    return json.dumps(line, ensure_ascii=False) + "\n"


def write_table(predicted: Iterable[Predicted], to: TextIO) -> None:
    """A table for people, once everything is answered."""
    table = Table("photo", "size", "set", box=None, padding=(0, 2, 0, 0))
    for one in predicted:
        table.add_row(_name(one), *_cells(one))
    console = Console(file=to)
    Console(file=to, width=console.width if console.is_terminal else 200).print(table)


def _name(one: Predicted) -> Text:
    first, *others = one.observation.photos
    more = f" and {len(others)} more" if others else ""
    return Text(f"{shown(first)}{more}", overflow="fold")


def _cells(one: Predicted) -> tuple[str, Text]:
    if one.problem is not None:
        return "", Text(f"failed: {one.problem.detail}", "red")
    assert one.answer is not None
    verdict = one.answer.rejection.verdict
    strange = [Text(f"{verdict}:", "yellow")] if verdict in SUSPECT else []
    listed = [
        Text.assemble(
            (r.taxon.scientific_name, "italic" if r.in_set else "dim"),
            f" ({r.taxon.common_names[0].name})" if one.lang and r.taxon.common_names else "",
            f" {r.score:.3f}",
        )
        for r in one.answer.results
    ]
    return str(one.answer.set.size), Text(" ").join([*strange, Text(", ").join(listed)])


SUSPECT = ("suspect", "rejected")
"""Verdicts on photos that look unlike those the model knows."""

"""Formats of predictions: a table for people; JSON lines, CSV and Parquet for programs."""

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from types import ModuleType
from typing import Any, BinaryIO, Final, TextIO

from rich.text import Text

from florilege.errors import UsageError, install_hint
from florilege.server.predict.prediction import Line
from florilege.tables import write_row
from florilege.terminal import Console, LineTable, in_one_line

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
    "none_of_these": "bool_",
    "calibrated": "bool_",
    "verdict": "string",
    "familiarity": "float64",
    "model": "string",
    "calibration_id": "string",
    "error": "string",
    "detail": "string",
    "tiles": "int64",
}
"""The columns of CSV and Parquet, with their Arrow types: one row for each class listed."""
_OF_RESULT = ("rank", "class_id", "score", "in_set", "top_k_probability")
_OF_TAXON = ("scientific_name", "genus", "family")
_OF_SET = ("rule", "k", "coverage", "guarantee", "lambda", "none_of_these", "calibrated")

Row = dict[str, Any]
SUSPECT: Final = ("suspect", "rejected")  # verdicts on photos that look unlike the known ones
ROWS_AT_ONCE: Final = 2**15  # of a Parquet row group, which are held in memory together


def json_text(line: Line) -> str:
    """One line of JSON."""
    return json.dumps(line, ensure_ascii=False) + "\n"


def _rows(line: Line) -> list[Row]:
    """One row for each result; one without a class if there is none or the photo failed."""
    row: Row = dict.fromkeys(COLUMNS)
    row |= {name: line[name] for name in ("path", "observation")} | {"photos": len(line["paths"])}
    if line["error"] is not None:
        return [row | {"error": line["error"]["code"], "detail": line["error"]["detail"]}]
    model, rejection = line["model"], line["rejection"]
    row |= {name: line["set"][name] for name in _OF_SET} | {"set_size": line["set"]["size"]}
    row |= {"verdict": rejection["verdict"], "familiarity": rejection["value"]}
    row["model"] = f"{model['name']} {model['version']}"
    row["calibration_id"] = model["calibration_id"]
    return [row | _class_cells(result) for result in line["results"]] or [row]


def _class_cells(result: dict[str, Any]) -> Row:
    taxon = result["taxon"]
    names = taxon["common_names"]
    return {
        **{name: result[name] for name in _OF_RESULT},
        **{name: taxon[name] for name in _OF_TAXON},
        "common_name": names[0]["name"] if names else None,
        "gbif": taxon["ids"]["gbif"],
        "tiles": result.get("tiles"),
    }


def write_csv(
    lines: Iterable[Line],
    file: BinaryIO,
    columns: Sequence[str] = tuple(COLUMNS),
    rows_of: Callable[[Line], Iterable[Row]] = _rows,
) -> None:
    """Write a header, then the rows of each line as soon as it arrives.

    No cell is one that a spreadsheet would run, see `write_row`.
    """
    text = codecs.getwriter("utf-8")(file)
    write_row(text, columns)
    for line in lines:
        for row in rows_of(line):
            write_row(text, [row[name] for name in columns])
        file.flush()


def write_parquet(lines: Iterable[Line], file: BinaryIO) -> None:
    """Write the same rows as Parquet."""
    arrow = demand_pyarrow()
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS.items()])
    every_row = (row for line in lines for row in _rows(line))
    with arrow.parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(every_row, ROWS_AT_ONCE)):
            writer.write_table(arrow.Table.from_pylist(group, schema))


def demand_pyarrow() -> ModuleType:
    """Import the module that writes Parquet, or raise `UsageError` without the extra `report`."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"parquet needs the extra `report`: {install_hint('report')}") from error
    module: ModuleType = pyarrow
    return module


def print_table(lines: Iterable[Line], to: TextIO, *, common_names: bool) -> None:
    """Print a table for people after all answers; a row is one line, but on a terminal."""
    table = LineTable("photo", "size", "set", box=None, padding=(0, 2, 0, 0))
    for line in lines:
        others = len(line["paths"]) - 1
        photos = f"{line['path']} and {others} more" if others else line["path"]
        table.add_row(Text(in_one_line(photos), overflow="fold"), *_table_cells(line, common_names))
    console = Console(file=to)
    Console(file=to, width=console.width if console.is_terminal else 10_000).print(table)


def _table_cells(line: Line, common_names: bool) -> tuple[str, Text]:
    if line["error"] is not None:
        return "", Text(f"failed: {line['error']['detail']}", "red")
    verdict = line["rejection"]["verdict"]
    warning = [Text(f"{verdict}:", "yellow")] if verdict in SUSPECT else []
    species = Text(", ").join(_species(result, common_names) for result in line["results"])
    if line["set"]["none_of_these"]:
        species.append(", or none of these", "yellow")
    return str(line["set"]["size"]), Text(" ").join([*warning, species])


def _species(result: dict[str, Any], common_names: bool) -> Text:
    taxon = result["taxon"]
    names = taxon["common_names"] if common_names else []
    return Text.assemble(
        (taxon["scientific_name"], "italic" if result["in_set"] else "dim"),
        f" ({names[0]['name']})" if names else "",
        f" {result['score']:.3f}",
        f" in {result['tiles']} tiles" if "tiles" in result else "",
    )

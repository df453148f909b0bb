"""Writing predictions: a table for people, CSV, JSON lines and Parquet for programs."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from models.errors import UsageError
from models.files import check_writable, write_atomic
from server.predict.files import Predicted, shown
from server.schemas import Answer

Format = Literal["table", "csv", "jsonl", "parquet"]
COLUMNS: dict[str, str] = {
    "path": "string",
    "rank": "int64",
    "class_id": "string",
    "scientific_name": "string",
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
    "error": "string",
    "detail": "string",
}
"""The columns of CSV and Parquet, with their Arrow types: one row for each class listed."""


def write_predictions(predicted: Iterable[Predicted], form: Format, output: Path | None) -> None:
    """Write everything, to stdout or, all of it or nothing, to ``output``.

    Raises:
        UsageError: Parquet without a file or without the extra `report`, or an output that
            cannot be written.
    """
    _check_output(form, output)
    if form == "parquet":
        assert output is not None
        write_atomic(output, _parquet(predicted))
    elif output is None:
        _WRITERS[form](predicted, sys.stdout)
    else:
        text = io.StringIO(newline="")
        _WRITERS[form](predicted, text)
        write_atomic(output, text.getvalue().encode())


def _check_output(form: Format, output: Path | None) -> None:
    if output is not None:
        _check_file(output)
    if form != "parquet":
        return
    if output is None:
        raise UsageError("parquet cannot be printed: name a file with -o")
    try:
        import pyarrow.parquet  # noqa: F401  # only to tell early that it is missing
    except ImportError as error:
        raise UsageError(
            "parquet needs the extra `report`: pip install florilege[report]"
        ) from error


def _check_file(output: Path) -> None:
    try:
        check_writable(output)
        if output.is_dir():
            raise UsageError(f"--output {output} is a folder; name a file")
        if output.exists() and not output.is_file():  # such as /dev/null, to be replaced by a file
            raise UsageError(f"--output {output} is not a regular file; name another")
    except OSError as error:
        raise UsageError(
            f"--output {output} cannot be written: {error.strerror}; choose another path"
        ) from error


def _write_jsonl(predicted: Iterable[Predicted], to: TextIO) -> None:
    for one in predicted:
        line: dict[str, Any] = {"path": shown(one.path), **dict.fromkeys(Answer.model_fields)}
        line["error"] = None
        if one.answer is not None:
            line |= one.answer.model_dump(mode="json", by_alias=True)
        if one.problem is not None:
            line["error"] = {"code": one.problem.code, "detail": one.problem.detail}
        to.write(json.dumps(line, ensure_ascii=False) + "\n")


def _write_csv(predicted: Iterable[Predicted], to: TextIO) -> None:
    writer = csv.DictWriter(to, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    for one in predicted:
        writer.writerows(_rows(one))


def _rows(one: Predicted) -> list[dict[str, Any]]:
    """One row for each class listed; one without a class where none is, or the file failed."""
    row: dict[str, Any] = {**dict.fromkeys(COLUMNS), "path": shown(one.path)}
    if one.problem is not None:
        return [{**row, "error": one.problem.code, "detail": one.problem.detail}]
    assert one.answer is not None
    drawn = one.answer.set
    row |= drawn.model_dump(include={"rule", "k", "coverage", "guarantee", "calibrated"})
    row |= {"lambda": drawn.lambda_val, "set_size": drawn.size}
    row |= {"verdict": one.answer.rejection.verdict, "familiarity": one.answer.rejection.value}
    listed = [
        row | each.model_dump(exclude={"taxon"}) | {"scientific_name": each.taxon.scientific_name}
        for each in one.answer.results
    ]
    return listed or [row]


def _parquet(predicted: Iterable[Predicted]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    rows = [row for one in predicted for row in _rows(one)]
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in COLUMNS.items()])
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), buffer)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def _write_table(predicted: Iterable[Predicted], to: TextIO) -> None:
    table = Table("photo", "size", "set", box=None, padding=(0, 2, 0, 0))
    for one in predicted:
        table.add_row(Text(shown(one.path), overflow="fold"), *_cells(one))
    console = Console(file=to)
    Console(file=to, width=console.width if console.is_terminal else 200).print(table)


def _cells(one: Predicted) -> tuple[str, Text]:
    if one.problem is not None:
        return "", Text(f"failed: {one.problem.detail}", "red")
    assert one.answer is not None
    listed = [
        Text.assemble(
            (r.taxon.scientific_name, "italic" if r.in_set else "dim"),
            f" ({r.taxon.common_names[0].name})" if one.lang and r.taxon.common_names else "",
            f" {r.score:.3f}",
        )
        for r in one.answer.results
    ]
    return str(one.answer.set.size), Text(", ").join(listed)


_WRITERS: dict[str, Callable[[Iterable[Predicted], TextIO], None]] = {
    "table": _write_table,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
}

"""Text tables in CSV or Parquet files: one string per row for each column name."""

import codecs
import csv
import io
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from florilege.errors import (
    DataError,
    UsageError,
    first,
    install_hint,
    os_error_as,
    repeated,
    suggestion,
)
from florilege.files import write_atomic

Table = Mapping[str, Sequence[str]]
SUFFIXES = (".csv", ".parquet")
READ_SUFFIXES = (*SUFFIXES, ".tsv")
_DELIMITERS = ",;\t"
# Excel's own first line, which names the delimiter.
_DECLARED = re.compile('"?sep=([^"\r\n])"?\\s*', re.IGNORECASE)
# Spreadsheets run what begins so, and drop one quote before it (OWASP, "CSV injection"). The last
# four are the wide forms that some of them also run.
_RUNS = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_MOST_TEXTS = 2**16  # held for a column, which may have another text in each row
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def spreadsheet_cell(value: Any) -> Any:
    """The value of a CSV cell, with a quote before text that a spreadsheet would run as a formula.

    Numbers stay numbers, and :func:`read_table` takes the quote away again.

    Example:
        >>> spreadsheet_cell("=1+1"), spreadsheet_cell("Rosa"), spreadsheet_cell("-0.5")
        ("'=1+1", 'Rosa', '-0.5')
    """
    if not isinstance(value, str) or not _RUNS.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def write_row(file: Any, cells: Iterable[Any]) -> None:
    """Write a line of a CSV, without a cell that a spreadsheet would run, to a text file."""
    row = [spreadsheet_cell(cell) for cell in cells]
    # With this end of a line, csv would leave a carriage return bare, which also ends one.
    bare = any("\r" in cell for cell in row if isinstance(cell, str))
    quoted: Any = {"quoting": csv.QUOTE_ALL} if bare else {}
    csv.writer(file, lineterminator="\n", **quoted).writerow(row)


def _text_of(cell: str) -> str:
    """The inverse of :func:`spreadsheet_cell`."""
    return cell[1:] if cell.startswith("'") and _RUNS.match(cell) else cell


def read_table(path: Path) -> Table:
    """Read a CSV (UTF-8 or 16, with a header line) or Parquet file; an empty cell is ``""``.

    The cells of a CSV are separated by commas, semicolons or tabs, whichever is most frequent in
    the header line, or what a line ``sep=;`` before it names. A quote before ``=``, ``+``, ``-`` or
    ``@`` marks text, as in a spreadsheet, and is no part of it.

    Raises:
        DataError: The file is unreadable, has no header or a repeated column, or a row has the
            wrong number of cells; or the extra ``report`` is missing for Parquet.
    """
    return read_numbered_table(path)[0]


def read_numbered_table(path: Path) -> tuple[Table, Sequence[int]]:
    """:func:`read_table`, and the line of the file that each row ends on, for messages.

    The rows of a Parquet file have no lines and are numbered as those of a CSV would be, from 2.
    """
    with os_error_as(DataError, f"{path} cannot be read"):
        if path.suffix.lower() != ".parquet":
            return _read_csv(path)
        table = _read_parquet(path)
    return table, range(2, 2 + len(next(iter(table.values()), ())))


def declared_delimiter(line: str) -> str | None:
    """The delimiter that the first line of a table names, as Excel writes ``sep=;``; or None."""
    declared = _DECLARED.fullmatch(line)
    return declared and declared[1]


def encoding_by_start(start: bytes) -> str:
    """The encoding of a table, UTF-8 or UTF-16, by its first two bytes."""
    if b"\0" in start:  # UTF-16 without a mark: a letter of two bytes
        return "utf-16-le" if start.endswith(b"\0") else "utf-16-be"
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def demand_columns(source: str, table: Table, columns: Sequence[str]) -> None:
    """Refuse a table that lacks one of ``columns`` with a ``DataError``."""
    if missing := [name for name in columns if name not in table]:
        present = ", ".join(table) or "none"
        near = suggestion(missing[0], table)
        raise DataError(f"{source} has no column {first(missing)}; it has: {present}{near}")


def write_table(path: Path, table: Table) -> None:
    """Write a table, all or nothing.

    Raises:
        DataError: ``path`` is neither ``.csv`` nor ``.parquet``, or the extra ``report`` is missing
            for Parquet.
        OSError: The disk is full or the folder cannot be written.
    """
    if path.suffix.lower() == ".parquet":
        pyarrow = _pyarrow(path)
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(
            pyarrow.table({name: list(table[name]) for name in table}), sink
        )
        write_atomic(path, sink.getvalue().to_pybytes())
    elif path.suffix.lower() == ".csv":
        write_atomic(path, csv_bytes(table))
    else:
        raise DataError(f"{path} must end in .csv or .parquet")


def csv_bytes(table: Table) -> bytes:
    """The CSV of a table, with a header line."""
    text = io.StringIO(newline="")
    write_row(text, table)
    for row in zip(*table.values(), strict=True):
        write_row(text, row)
    return text.getvalue().encode()


def _read_csv(path: Path) -> tuple[Table, Sequence[int]]:
    try:
        with path.open("rb") as binary:
            encoding = encoding_by_start(binary.peek(2)[:2])
            file = io.TextIOWrapper(binary, encoding, newline="")
            first_line = next(filter(str.strip, file), "")
            declared = declared_delimiter(first_line)
            delimiter = declared or max(_DELIMITERS, key=first_line.count)
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            filled = filter(_has_text, reader)
            if declared:
                next(filled)
            header = [name.strip() for name in next(filled, ())]
            columns, lines, ragged = _read_columns(reader, len(header))
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}") from error
    except UnicodeDecodeError as error:
        utf8 = error.encoding == "utf-8"
        raise DataError(
            _not_utf8(path) if utf8 else f"{path} is not a CSV file: {error}"
        ) from error
    if not header:
        raise DataError(f"{path} is empty; its first line must name the columns")
    _refuse_twice(path, header)
    if ragged:
        raise DataError(
            f"{path}: these lines do not have the header's {len(header)} cells, separated by "
            f"{delimiter!r}: {first(ragged)}"
        )
    return dict(zip(header, columns, strict=True)), lines


def _has_text(row: Sequence[str]) -> bool:
    return any(map(str.strip, row))


def _read_columns(reader: Any, width: int) -> tuple[list[list[str]], "array[int]", list[str]]:
    """The columns, the line on which each row ends, and the lines with another width.

    Text that is repeated in a column is held once: ten million rows of places, months and species
    take 0.4 GB, not 4.
    """
    columns = [list[str]() for _ in range(width)]
    texts = [dict[str, str]() for _ in range(width)]  # of the cells that a column has had
    lines, ragged = array("q"), list[str]()
    for row in filter(_has_text, reader):  # spreadsheets write empty rows below the last one
        # The reader counts lines: a row may follow blank ones, and a cell may hold several.
        if len(row) != width:
            ragged.append(str(reader.line_num))
            continue
        lines.append(reader.line_num)
        for column, text_of, cell in zip(columns, texts, row, strict=True):
            if (text := text_of.get(cell)) is None:
                text = _text_of(cell)
                if len(text_of) < _MOST_TEXTS:
                    text_of[cell] = text
            column.append(text)
    return columns, lines, ragged


def _not_utf8(path: Path) -> str:
    """The message about bytes that are not UTF-8: the lines, and the first such byte."""
    text = path.read_bytes().decode(errors="surrogateescape")
    invalid = re.compile("[\udc80-\udcff]")  # an invalid byte becomes its value plus 0xdc00
    lines = [str(number) for number, line in enumerate(text.split("\n"), 1) if invalid.search(line)]
    byte = ord(invalid.findall(text)[0]) - 0xDC00
    return (
        f"{path} is not a CSV file in UTF-8: these lines hold invalid bytes, the first of which is "
        f"{byte:#04x}: {first(lines)}; save it as UTF-8"
    )


def _read_parquet(path: Path) -> Table:
    pyarrow = _pyarrow(path)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            table = file.read()
        _refuse_twice(path, table.column_names)
        return {name: list(map(_cell_text, table[name].to_pylist())) for name in table.column_names}
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a Parquet file: {error}") from error


def _cell_text(cell: Any) -> str:
    """The text of a cell of a Parquet file; beside gaps pandas makes whole numbers floats."""
    if cell is None or cell != cell:  # NaN
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


def _refuse_twice(path: Path, header: Sequence[str]) -> None:
    if twice := repeated(header):
        raise DataError(f"{path}: these columns appear twice: {first(twice)}")


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{path}: Parquet needs the extra `report`, a CSV manifest does not: "
            f"{install_hint('report')}"
        ) from error
    return pyarrow


def written_file(out: Path) -> AbstractContextManager[None]:
    """Report a failure to write a file, all or nothing, inside the block."""
    return os_error_as(DataError, f"{out} cannot be written", "; an existing file is unchanged")


def written_table(out: Path) -> AbstractContextManager[None]:
    """Refuse an ``out`` with another suffix; report a failure to write it inside the block."""
    if out.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--out must end in .csv or .parquet, got {out}")
    return written_file(out)

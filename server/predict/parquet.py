"""Parquet in parts: a Parquet file cannot grow, a folder of them can."""

import json
from itertools import count
from pathlib import Path
from shutil import rmtree
from types import ModuleType
from typing import Any, Final

from florilege.errors import UsageError
from florilege.extras import install_hint
from florilege.files import replaced
from florilege.server.predict.formats import COLUMNS, rows
from florilege.server.predict.prediction import Predicted

OBSERVATIONS_AT_ONCE: Final = 10_000


def demand_pyarrow() -> ModuleType:
    """The module that writes Parquet.

    Raises:
        UsageError: The extra `report` is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"parquet needs the extra `report`: {install_hint('report')}") from error
    found: ModuleType = pyarrow
    return found


def line(one: Predicted) -> str:
    """The rows about one observation, each a list in the order of the columns."""
    return json.dumps([list(row.values()) for row in rows(one)], ensure_ascii=False) + "\n"


class Parts:
    """Parquet files of the rows so far, in a folder beside the output until it is complete.

    Each can be read as soon as it is there, and all together, as pandas and DuckDB read a folder.

    Attributes:
        length: Observations in each part.
    """

    def __init__(self, output: Path) -> None:
        self.folder = output.with_name(f"{output.name}.parts")
        self.length = OBSERVATIONS_AT_ONCE

    def count(self) -> int:
        """How many parts are there, without a gap."""
        return next(number for number in count() if not self._path(number).exists())

    def write(self, lines: Path) -> None:
        """Make the next part of lines of JSON, all of it or nothing.

        Raises:
            OSError: The disk is full or the folder cannot be written.
        """
        self.folder.mkdir(exist_ok=True)
        with replaced(self._path(self.count())) as file:
            demand_pyarrow().parquet.write_table(_table(lines), file)

    def join(self, lines: Path, target: Path) -> None:
        """Make ``target`` of the parts and the ``lines`` that are in none, a row group each.

        Raises:
            OSError: The disk is full or the folder cannot be written.
        """
        parquet = demand_pyarrow().parquet
        last = _table(lines)
        with replaced(target) as file, parquet.ParquetWriter(file, last.schema) as writer:
            for number in range(self.count()):
                writer.write_table(parquet.read_table(self._path(number)))
            if len(last):
                writer.write_table(last)

    def remove(self) -> None:
        """Delete the folder."""
        rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06}.parquet"


def _table(lines: Path) -> Any:
    """An Arrow table of lines of JSON."""
    arrow = demand_pyarrow()
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS.items()])
    with lines.open("rb") as file:
        cells = list(zip(*(row for line in file for row in json.loads(line)), strict=True))
    columns = dict(zip(COLUMNS, cells or [()] * len(COLUMNS), strict=True))
    return arrow.table(columns, schema=schema)

"""Parquet from lines of JSON: a Parquet file cannot grow, its lines can."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from models.errors import UsageError
from models.files import replaced
from server.predict.files import Predicted
from server.predict.tables import COLUMNS, rows

OBSERVATIONS_AT_ONCE: Final = 10_000


def demand_pyarrow() -> ModuleType:
    """The module that writes Parquet.

    Raises:
        UsageError: The extra `report` is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "parquet needs the extra `report`: pip install florilege[report]"
        ) from error
    found: ModuleType = pyarrow
    return found


def line(one: Predicted) -> str:
    """The rows about one observation, each a list in the order of the columns."""
    return json.dumps([list(row.values()) for row in rows(one)], ensure_ascii=False) + "\n"


def write_parquet(lines: Path, target: Path) -> None:
    """Turn the lines of a file into the Parquet file ``target``, all of it or nothing.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    arrow = demand_pyarrow()
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS.items()])
    with replaced(target) as file, arrow.parquet.ParquetWriter(file, schema) as writer:
        for columns in _columns(lines):
            writer.write_table(arrow.table(columns, schema=schema))


def _columns(lines: Path) -> Iterator[dict[str, list[Any]]]:
    with lines.open("rb") as file:
        while block := list(islice(file, OBSERVATIONS_AT_ONCE)):
            cells = zip(*(row for text in block for row in json.loads(text)), strict=True)
            yield dict(zip(COLUMNS, map(list, cells), strict=True))

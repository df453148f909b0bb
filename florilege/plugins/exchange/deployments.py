"""Deployments of camera traps: the table that a person gives, as Camtrap DP 1.0 wants it."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from florilege.errors import DataError, first
from florilege.models.classes import plain_id
from florilege.server.predict.prediction import Observation
from florilege.tables import Table, read_table
from florilege.terminal import warn

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_BOOLEANS: Final = {"true": "true", "1": "true", "false": "false", "0": "false"}
_FEATURES: Final = (
    *("roadPaved", "roadDirt", "trailHiking", "trailGame", "roadUnderpass", "roadOverpass"),
    *("roadBridge", "culvert", "burrow", "nestSite", "carcass", "waterSource", "fruitingTree"),
)
# The standard's pattern: no address outside the package, and no two points, whatever their meaning.
_FILE_PATH: Final = re.compile(r"(?![./~])(?!.*\.\.).+")


def _number(least: float, most: float = float("inf"), *, whole: bool = False) -> Callable[..., str]:
    kind = "a whole number" if whole else "a number"
    limits = f"at least {least:g}" + ("" if most == float("inf") else f" and at most {most:g}")

    def text_of(cell: str) -> str:
        valid = _NUMBER.fullmatch(cell) is not None and least <= float(cell) <= most
        if not valid or (whole and not float(cell).is_integer()):
            raise ValueError(f"{cell!r} is not {kind} of {limits}")
        return str(int(float(cell))) if whole else cell

    return text_of


def _boolean(cell: str) -> str:
    if (text := _BOOLEANS.get(cell.lower())) is None:
        raise ValueError(f"{cell!r} is neither true nor false")
    return text


def _feature(cell: str) -> str:
    if cell not in _FEATURES:
        raise ValueError(f"{cell!r} is none of {', '.join(_FEATURES)}")
    return cell


def time_of(text: str) -> datetime:
    """A time with its offset from UTC; `ValueError` for another text."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} needs an offset from UTC, as in 2026-06-30T08:00:00+02:00")
    return time


def _time(cell: str) -> str:
    return time_of(cell).isoformat(timespec="seconds")


COLUMNS: Final[Mapping[str, Callable[[str], str]]] = {
    "deploymentID": str,
    "locationID": str,
    "locationName": str,
    "latitude": _number(-90, 90),
    "longitude": _number(-180, 180),
    "coordinateUncertainty": _number(1, whole=True),
    "deploymentStart": _time,
    "deploymentEnd": _time,
    "setupBy": str,
    "cameraID": str,
    "cameraModel": str,
    "cameraDelay": _number(0, whole=True),
    "cameraHeight": _number(0),
    "cameraDepth": _number(0),
    "cameraTilt": _number(-90, 90, whole=True),
    "cameraHeading": _number(0, 360, whole=True),
    "detectionDistance": _number(0),
    "timestampIssues": _boolean,
    "baitUse": _boolean,
    "featureType": _feature,
    "habitat": str,
    "deploymentGroups": str,
    "deploymentTags": str,
    "deploymentComments": str,
}
"""Every column of the table in the standard's order, with what checks a cell and writes it."""
_REQUIRED: Final = ("deploymentID", "latitude", "longitude", "deploymentStart", "deploymentEnd")


class Deployments(NamedTuple):
    """The table of deployments, and where the photos of each are."""

    rows: Mapping[str, Mapping[str, str]]  # by plain deploymentID; cells as `COLUMNS` writes them
    folder: Path  # all photos are below it

    def of(self, photo: Path) -> Mapping[str, str]:
        """The deployment of a photo: the one named like its folder, or the only one."""
        only = next(iter(self.rows.values())) if len(self.rows) == 1 else {}
        return self.rows.get(plain_id(photo.parent.name), only)

    def file_path(self, photo: Path) -> str:
        """The path of a photo in the package."""
        return photo.relative_to(self.folder).as_posix()

    @classmethod
    def read(cls, path: Path, observations: Sequence[Observation]) -> "Deployments":
        """Read a ``deployments.csv`` of Camtrap DP for these photos.

        Columns count by their names, in any order. Warns of those that the standard does not have.
        Raises `DataError` if a column, a value or the deployment of a photo is missing or wrong, or
        the standard has no way to name a photo.
        """
        rows = _checked_rows(_named_columns(read_table(path), path), path)
        files = [absolute(photo) for observation in observations for photo in observation.photos]
        if len(set(files)) < len(files):
            raise DataError("a photo is named more than once; Camtrap DP has one row for each")
        folder = os.path.commonpath([file.parent for file in files])
        deployments = cls(rows, Path(folder))
        homeless = sorted({file.parent.name for file in files if not deployments.of(file)})
        if homeless:
            raise DataError(
                f"{path} has no deployment for the folders {first(homeless)}: a photo belongs to "
                "the deployment whose deploymentID is the name of its folder"
            )
        _demand_file_paths([deployments.file_path(photo) for photo in files])
        return deployments


def _demand_file_paths(paths: Sequence[str]) -> None:
    if odd := [path for path in paths if not _FILE_PATH.fullmatch(path)]:
        raise DataError(
            "Camtrap DP allows no path with two points in a row, or that begins with a point or "
            f"a tilde; rename {first(odd)}"
        )


def absolute(path: str | Path) -> Path:
    """An absolute path; links stay, as in what a person typed."""
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.resolve would follow them


def _key(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _named_columns(table: Table, path: Path) -> dict[str, Sequence[str]]:
    """The columns that the standard has, by its names; case, blanks and ``_`` do not count."""
    name_of = {_key(name): name for name in COLUMNS}
    columns: dict[str, Sequence[str]] = {}
    unknown = []
    for name, cells in table.items():
        column = name_of.get(_key(name))
        if column is None:
            unknown.append(name)
        elif column in columns:
            raise DataError(f"{path}: two columns mean {column}; {name!r} is the second")
        else:
            columns[column] = cells
    if missing := [name for name in _REQUIRED if name not in columns]:
        raise DataError(
            f"{path} lacks {first(missing)}: Camtrap DP requires {', '.join(_REQUIRED)}"
        )
    if unknown:
        warn(f"Camtrap DP has no column {first(unknown)}, so {path} is written without it")
    return columns


def _checked_rows(columns: Mapping[str, Sequence[str]], path: Path) -> dict[str, Mapping[str, str]]:
    rows = []
    for number, cells in enumerate(zip(*columns.values(), strict=True), start=1):
        try:
            rows.append(_checked_row(dict(zip(columns, map(str.strip, cells), strict=True))))
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
    by_id: dict[str, Mapping[str, str]] = {plain_id(row["deploymentID"]): row for row in rows}
    if len(by_id) < len(rows) or not rows:
        raise DataError(f"{path}: deploymentID must differ in each row, and there must be a row")
    return by_id


def _checked_row(row: Mapping[str, str]) -> dict[str, str]:
    """A row with every cell as the standard writes it; `ValueError` if one is wrong."""
    if empty := [name for name in _REQUIRED if not row[name]]:
        raise ValueError(f"{empty[0]} is empty")
    checked = {}
    for name, cell in row.items():
        try:
            checked[name] = COLUMNS[name](cell) if cell else ""
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if time_of(row["deploymentStart"]) > time_of(row["deploymentEnd"]):
        raise ValueError("deploymentEnd is before deploymentStart")
    return checked

"""What the layouts share: photos that are files, the lists that name them, and refusals."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from florilege.data.dataset import FileReader
from florilege.data.records import Listing, Records, count_of
from florilege.errors import DataError, first


def file_records(
    root: Path, rows: Sequence[tuple[str, str]], observations: Sequence[str] | None = None
) -> Records:
    """One split of photos that are files; a row is a path relative to ``root`` and a class id."""
    names = [name for name, _ in rows]
    return Records(
        class_ids=[class_id for _, class_id in rows],
        names=names,
        observations=observations,
        read=FileReader(root, names),
    )


def check_photos(listing: Listing, root: Path, splits: Sequence[str] | None) -> None:
    """Check that the photos of ``splits`` (all by default) are there.

    Raises:
        DataError: Photos are missing. The message says how many, names the first five, and says
            where to get them.
    """
    for name, records in listing.splits.items():
        if splits is not None and name not in splits:
            continue
        missing = [each for each in records.names if not (root / each).is_file()]
        if missing:
            photos = count_of(len(records.names), "photo", "photos")
            raise DataError(
                f"{listing.source}: {len(missing):,} of {photos} of {name} are missing in "
                f"{root}: {first(missing)}{listing.where_published}"
            )


def refuse(source: str, problem: str, items: Sequence[str]) -> None:
    """Raise a ``DataError`` that names the first five ``items``; nothing happens without any."""
    if items:
        raise DataError(f"{source}: {problem}: {first(items)}")


def read_json(path: Path, place: str) -> Any:
    """Read a JSON file.

    Raises:
        DataError: It cannot be read or is not JSON. The message ends with ``place``, which says
            where the data set is published.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file: {error}; {place}") from error


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file.

    Raises:
        DataError: It is not in UTF-8.
    """
    try:
        return path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8: {error}") from error

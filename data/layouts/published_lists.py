"""Functions that the layouts of published data sets share: files, photos, class names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import path as os_path
from pathlib import Path, PurePath
from typing import Any

from florilege.data.layouts.class_file import NAME, read_class_file
from florilege.data.records import Listing, count_of, missing_photos
from florilege.errors import DataError, first
from florilege.models.classes import ClassInfo


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; a `DataError` if it is not UTF-8."""
    try:
        return path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8: {error}") from error


def read_json(path: Path, published: str) -> Any:
    """The content of a JSON file; a `DataError` that says where to download it if damaged."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file: {error}; {published}") from error


def demand_photos(listing: Listing, root: Path, splits: Sequence[str] | None) -> None:
    """Refuse a listing whose ``splits`` (all by default) name missing photos.

    Raises:
        DataError: The message counts them, names the first five, and says where to download them.
    """
    for name, missing in missing_photos(listing.splits, root, splits):
        photos = count_of(len(listing.splits[name].names), "photo", "photos")
        raise DataError(
            f"{listing.source}: {len(missing):,} of {photos} of {name} are missing from "
            f"{root}: {first(missing)}{listing.download_hint}"
        )


def with_class_file(listing: Listing, root: Path) -> Listing:
    """Add ``classes.csv`` of ``root`` to a listing; the table overrides the listing.

    Raises:
        DataError: The table is damaged.
    """
    class_file = read_class_file(root)
    if class_file is None:
        return listing
    pictures = (os_path.relpath(path, root) for path in class_file.thumbnails.values())
    used = {NAME, *(PurePath(path).parts[0] for path in pictures)}
    return replace(
        listing,
        class_infos=update_class_infos(listing.class_infos, class_file.classes),
        groups={**listing.groups, **class_file.groups},
        thumbnails=class_file.thumbnails,
        ignored=[name for name in listing.ignored if name not in used],
    )


def update_class_infos(
    old: Mapping[str, ClassInfo], new: Mapping[str, ClassInfo]
) -> dict[str, ClassInfo]:
    """The classes of both; for a class in both, ``new`` completes and corrects ``old``."""
    updated = {name: old[name].updated(info) for name, info in new.items() if name in old}
    return {**old, **new, **updated}

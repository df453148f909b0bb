"""What the layouts of published data sets share: photos that lists name, and names of classes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from florilege.data.layouts.class_file import NAME, read_class_file
from florilege.data.records import Listing, count_of
from florilege.errors import DataError, first
from florilege.models.classes import ClassInfo


def demand_photos(listing: Listing, root: Path, splits: Sequence[str] | None) -> None:
    """Refuse a listing whose ``splits`` (all by default) name photos that are not there.

    Raises:
        DataError: The message says how many, names the first five, and where to get them.
    """
    for name, records in listing.splits.items():
        if splits is None or name in splits:
            missing = [each for each in records.names if not (root / each).is_file()]
            if missing:
                photos = count_of(len(records.names), "photo", "photos")
                raise DataError(
                    f"{listing.source}: {len(missing):,} of {photos} of {name} are missing in "
                    f"{root}: {first(missing)}{listing.to_be_had}"
                )


def with_class_file(listing: Listing, root: Path) -> Listing:
    """The listing with what ``classes.csv`` in ``root`` says of its classes, which comes first.

    Raises:
        DataError: The table is damaged.
    """
    about = read_class_file(root)
    if about is None:
        return listing
    return replace(
        listing,
        known=told_over(listing.known, about.known),
        groups={**listing.groups, **about.groups},
        thumbnails=about.thumbnails,
        ignored=[name for name in listing.ignored if name != NAME],
    )


def told_over(
    known: Mapping[str, ClassInfo], told: Mapping[str, ClassInfo]
) -> dict[str, ClassInfo]:
    """What is known of each class, and over it what a person's own table tells."""
    return {
        **known,
        **{
            name: known[name].updated(info) if name in known else info
            for name, info in told.items()
        },
    }

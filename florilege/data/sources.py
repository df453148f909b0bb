"""Open whatever ``--data`` names: a folder, a manifest, lists, or the flora; pool its splits."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from florilege.data.corrections import with_corrections
from florilege.data.flora import Flora
from florilege.data.flora import renderer as flora_drawing
from florilege.data.layouts import list_manifest
from florilege.data.layouts.folder import SUFFIXES, list_classes, list_images
from florilege.data.layouts.image_lists import list_inaturalist, list_lists
from florilege.data.options import (
    FloraOptions,
    TrainingOptions,
    hold_out,
    parse_options,
    with_options,
)
from florilege.data.records import Dataset, Listing, Split, assemble, refuse, usual_name
from florilege.errors import (
    DataError,
    count_of,
    did_you_mean,
    nearest,
    nearest_paths,
    os_error_as,
)
from florilege.hooks import data_layouts
from florilege.models.classes import ClassTable
from florilege.terminal import command, warn


class OwnPictures(NamedTuple):
    """The common side of all pictures in pixels, and statistics of red, green and blue."""

    side: int
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class DataLayout:
    """A way in which people keep photos and labels; `florilege.hooks` lets a plugin add one.

    Args:
        name: What ``--data`` takes, in words, such as ``an iNaturalist folder``.
        list: Lists what is at a path, or returns None if it is something else. The text is the
            value of ``--data``, for messages. Raises `DataError` if it is damaged.
        pictures: The side and the colours of its pictures where all are alike.
    """

    name: str
    list: Callable[[Path, str], Listing | None]
    pictures: Callable[[Path], OwnPictures | None] = lambda _: None


def _accepted() -> str:
    """What ``--data`` takes, in words."""
    layouts = "".join(f"{layout.name}, " for layout in data_layouts())
    return (
        f"a folder with train/val/test/<class>/<photo>, {layouts}iNaturalist or ImageNet-LT lists, "
        "a .csv, .tsv or .parquet manifest, or flora"
    )


def open_dataset(
    source: str,
    *,
    splits: Sequence[str] | None = None,
    classes: ClassTable | None = None,
    check_files: bool = True,
) -> Dataset:
    """Open a data set; pictures are read one by one, on demand.

    Args:
        source: Path of a folder or a manifest, or ``flora[:train=..,val=..,test=..,seed=..]``.
            Options such as ``:noise=..`` may follow; see `florilege.data.options`.
        splits: The required splits; all existing ones by default. The others are not checked.
        classes: A bundle's class table, which labels then index.
        check_files: Whether the files that tables name must exist; otherwise reading one fails.

    Raises:
        DataError: The source is unknown or damaged, lacks a split, has fewer than two classes, or
            holds a class that ``classes`` (or the train split) lacks.
    """
    listing = list_source(source, splits=splits if check_files else ())
    return assemble(listing, splits=splits, classes=classes)


def list_source(source: str, *, splits: Sequence[str] | None = None) -> Listing:
    """List the contents of a source without checking its classes.

    The files that a manifest or a list names for ``splits`` (all by default) must exist. A
    `DataError` if the source is unknown, damaged or unreadable.
    """
    base, options = parse_options(source)
    return replace(with_options(list_whole(base, options, splits=splits), options), source=source)


def list_whole(
    base: str, options: TrainingOptions, *, splits: Sequence[str] | None = None
) -> Listing:
    """`list_source` without thinning and label noise, but with corrected labels."""
    names = None if splits is None else list(map(usual_name, splits))
    if isinstance(options, FloraOptions):
        if Path(base).is_dir():
            warn("flora is the set of drawings that comes with Florilege; your folder is ./flora")
        listing = Flora(options.seed, options.rows).listing()
    elif not base:
        raise DataError(f"the data source is empty; --data takes {_accepted()}")
    else:
        listing = _list_path(Path(base), base, options.listed(names))
    if options.labels is not None:
        listing = with_corrections(listing, Path(options.labels))
    return listing if options.hold_out is None else hold_out(listing, options.hold_out)


def _list_path(path: Path, source: str, splits: Sequence[str] | None) -> Listing:
    of_plugins = (layout.list for layout in data_layouts())
    # The first that knows a folder lists it. Lists come before folders: the photos of iNaturalist
    # 2021 are in `train` and `val`, whose class folders do not say what the lists do.
    layouts = (list_manifest, *of_plugins, list_inaturalist, list_lists, list_images)
    with os_error_as(DataError, f"{source} cannot be read"):
        with suppress(FileNotFoundError, NotADirectoryError):
            # For the errors that `Path.exists` hides, such as a folder that may not be entered.
            path.stat()
        listing = next(filter(None, (layout(path, source) for layout in layouts)), None)
        if listing is not None:
            _demand_photos(listing, splits)
            return listing
    if path.is_dir():
        raise DataError(f"{source} holds no folder train, val or test; {_remedy(path, source)}")
    if path.exists():
        raise DataError(
            f"{source} is neither a .csv nor a .tsv or .parquet file; --data takes {_accepted()}"
        )
    near = did_you_mean([*nearest(source, ["flora"]), *nearest_paths(path)])
    remedy = near or f"; --data takes {_accepted()}"
    raise DataError(f"no such file or folder: {source}{remedy}")


def _demand_photos(listing: Listing, splits: Sequence[str] | None) -> None:
    """Refuse a listing whose tables name photos of ``splits`` (all by default) that are missing.

    The `DataError` counts those of every split, names the first five, and says where to download
    them.
    """
    if listing.root is None:
        return
    missing, counts = list[str](), list[str]()
    for name in (name for name in listing.splits if splits is None or name in splits):
        photos = listing.splits[name].names
        # Not Path.is_file, which raises for a name that is too long.
        absent = [photo for photo in photos if not os.path.isfile(listing.root / photo)]  # noqa: PTH113
        missing += absent
        if absent:
            counts.append(f"{len(absent):,} of {count_of(len(photos), 'photo')} of {name}")
    fault = f"{', '.join(counts)} are missing from {listing.root}"
    refuse(listing.source, fault, missing, listing.download_hint)


def _remedy(path: Path, source: str) -> str:
    """What to do with a folder that is no data set."""
    others = list[str]()
    if list_classes(path, path, others).names:
        return (
            f"split its photos with {command('data', 'split', source, '--out', 'photos.csv')}, or "
            f"let {command('fit', source)} do everything"
        )
    if any(Path(name).suffix.lower() in SUFFIXES for name in others):
        return "sort its photos into one folder for each species, and name the folder of these"
    return f"--data takes {_accepted()}"


def own_pictures(source: str) -> OwnPictures | None:
    """The known properties of the pictures of the flora and of some layouts; None for others."""
    # Whoever opens the source reports them.
    with suppress(DataError, OSError):
        base, options = parse_options(source)
        if isinstance(options, FloraOptions):
            return OwnPictures(flora_drawing.SIDE)
        return next(filter(None, (layout.pictures(Path(base)) for layout in data_layouts())), None)
    return None


@dataclass(frozen=True, kw_only=True)
class Pool(Split):
    """The photos of several splits as one."""

    splits: Sequence[str]  # the split of each photo

    def of(self, rows: Sequence[int]) -> "Pool":
        """Some photos, in the given order."""
        splits = [self.splits[row] for row in rows]
        return self.select(rows, labels=self.labels[list(rows)], splits=splits)


def _read(parts: Sequence[Split], row: int) -> bytes:
    """A photo of several splits that follow each other."""
    for part in parts:
        if row < len(part):
            return part.read(row)
        row -= len(part)
    raise IndexError(row)


def pool_of(dataset: Dataset, names: Sequence[str]) -> Pool:
    """The photos of the splits ``names``, in their order."""
    parts = [dataset.split(name) for name in dict.fromkeys(names)]
    return Pool(
        name=",".join(part.name for part in parts),
        labels=np.concatenate([part.labels for part in parts]),
        names=[name for part in parts for name in part.names],
        observations=_observations(parts),
        read=partial(_read, parts),
        splits=[part.name for part in parts for _ in range(len(part))],
    )


def _observations(parts: Sequence[Split]) -> list[str] | None:
    if not any(part.observations for part in parts):
        return None
    # A photo of unknown plant, with an empty name, is a plant of its own.
    return [name for part in parts for name in part.observations or [""] * len(part)]

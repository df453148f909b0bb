"""Write a manifest: with splits drawn or repaired, or with photos that people gave as feedback.

Each class is cut separately, so that all three splits hold it in the same proportions; photos of a
plant stay in one split. If a class is too small for that, chance decides, so that val does not lack
all rare classes. The draw is a hash of the seed and the observation, so photos added later move few
of the old ones.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from florilege.data.copies import joined_groups
from florilege.data.layouts import (
    class_columns,
    demand_pictures,
    is_manifest,
    observation_ids,
)
from florilege.data.layouts.folder import list_classes
from florilege.data.options import fraction, is_flora, parse_options, shuffled
from florilege.data.records import SPLITS, FileReader, Listing, refuse, split_name
from florilege.data.sources import list_source
from florilege.errors import DataError, count_of
from florilege.feedback_store import NOT_LISTED, Row, open_feedback
from florilege.files import write_atomic
from florilege.models.classes import plain_id
from florilege.tables import Table, demand_columns, read_table, write_table


def split_source(
    source: str, out: Path, *, val: float, test: float, seed: int, copies: bool = False
) -> Table:
    """The manifest to write at ``out``: every picture of ``source`` once, with its split.

    ``source`` is a manifest (its split column may be missing), an ImageFolder, a Pl@ntNet-300K
    folder, iNaturalist or ImageNet-LT lists, or a folder of class folders. Existing splits are
    drawn again. A manifest keeps its columns; for other sources, their class information becomes
    columns. Paths are relative to the folder of ``out``. ``val`` and ``test`` are shares of the
    pictures, 0 or more, and together less than 1. With ``copies`` every photo is read, and those
    that are the same picture stay in one split.

    Raises `DataError` as in `pictures_of`, or if a split with a share would stay empty.
    """
    table, groups = pictures_of(source, out)
    if copies:
        # Without `..`: nothing can be opened by way of a folder that does not exist yet.
        paths = [os.path.normpath(out.resolve().parent / path) for path in table["path"]]
        groups = joined_groups(groups, list(map(Path, paths)))
    splits = draw_splits(table["class_id"], groups, val=val, test=test, seed=seed)
    empty = [name for name, share in (("val", val), ("test", test)) if share and name not in splits]
    if empty:
        raise DataError(
            f"{source} has too few photos for {' and '.join(empty)}: one of each class stays in "
            "train, and so do photos of one plant together, and copies; add photos, or split them "
            "yourself with larger shares, such as `florilege data split --val 0.3 --test 0.3`"
        )
    return {**table, "split": splits}


def mend_source(source: str, out: Path) -> Table:
    """Like `split_source`, but keep the splits except that groups stay together.

    Raises `DataError` as in `pictures_of`, or if some pictures have no split.
    """
    table, groups = pictures_of(source, out)
    splits = [name for cell in table.get("split", ()) if (name := split_name(cell))]
    if len(splits) < len(groups):
        raise DataError(
            f"{source}: {count_of(len(groups) - len(splits), 'picture')} without a "
            "split to keep; draw splits without --keep"
        )
    return {**table, "split": _keep_groups_together(splits, groups)}


def unknown_observations(table: Table) -> str | None:
    """A warning if a manifest does not say which photos show the same plant; None if it does.

    ``table`` is the result of `split_source` or `mend_source`.
    """
    if any(cell.strip() for cell in table.get("observation_id", ())):
        return None
    return (
        "nothing says which photos show the same plant, so photos of one plant may be in several "
        "splits, and results on val and test too good. If you know the plants, add a column "
        "observation_id to the manifest, with the same text for all photos of a plant, and split "
        "the manifest again"
    )


def _keep_groups_together(splits: Sequence[str], groups: Sequence[str]) -> list[str]:
    """The split of each picture, or ``train`` if its group is in several splits.

    Val and test only lose pictures, and share no group with train.

    Example:
        >>> _keep_groups_together(["train", "val", "val", "test"], ["a", "a", "b", "c"])
        ['train', 'train', 'val', 'test']
    """
    splits_of = defaultdict[str, set[str]](set)
    for split, group in zip(splits, groups, strict=True):
        splits_of[group].add(split)
    pairs = zip(splits, groups, strict=True)
    return [split if len(splits_of[group]) == 1 else "train" for split, group in pairs]


def draw_splits(
    class_ids: Sequence[str], groups: Sequence[str], *, val: float, test: float, seed: int
) -> list[str]:
    """``train``, ``val`` or ``test`` for each picture; every class keeps a group in train.

    A group, such as the photos of one observation, is never divided. A group with several classes
    counts as its most frequent one. Shares and seed are those of `split_source`.
    """
    counts_of = defaultdict[str, Counter[str]](Counter)
    groups_of = defaultdict[str, set[str]](set)
    for class_id, group in zip(class_ids, groups, strict=True):
        counts_of[group][class_id] += 1
        groups_of[class_id].add(group)
    strata = defaultdict[str, dict[str, int]](dict)
    for group, counts in counts_of.items():
        strata[min(counts, key=lambda name: (-counts[name], name))][group] = counts.total()
    split_of: dict[str, str] = {}
    for class_id, sizes in strata.items():
        split_of |= _cut(class_id, sizes, {"test": test, "val": val}, seed)
    # For classes whose groups all count as another class.
    for members in groups_of.values():
        if "train" not in {split_of[group] for group in members}:
            split_of[shuffled(members, seed)[0]] = "train"
    return [split_of[group] for group in groups]


def _cut(
    class_id: str, sizes: Mapping[str, int], shares: Mapping[str, float], seed: int
) -> dict[str, str]:
    """Cut the groups of one class; the first drawn stays in train whatever the shares."""
    _, *remaining = shuffled(sizes, seed)
    split_of = dict.fromkeys(sizes, "train")
    total = sum(sizes.values())
    for name, share in shares.items():
        room, chance = total * share, fraction(f"{name}/{class_id}", seed)
        while remaining and room > 0:
            # A group larger than the remaining room is taken with probability room / size, so
            # that the shares hold on average over many small classes.
            if chance < 1 - room / sizes[remaining[0]]:
                break
            group = remaining.pop(0)
            split_of[group] = name
            room -= sizes[group]
    return split_of


def pictures_of(source: str, out: Path) -> tuple[Table, Sequence[str]]:
    """A manifest of every picture, to write at ``out``, and the group of each picture.

    Raises `DataError` if ``source`` cannot be listed or has options, or its pictures are not files.
    """
    base, _ = parse_options(source)
    if base != source and not is_flora(source):
        raise DataError(
            f"{source}: a manifest cannot store options; leave them out here and add them when "
            "you use the manifest"
        )
    table, root = _table(source)
    paths, class_ids = demand_pictures(source, table)
    moved = [os.path.relpath(root / path, out.resolve().parent) for path in paths]
    return {**table, "path": moved, "class_id": class_ids}, observation_ids(table, paths) or paths


def _table(source: str) -> tuple[Table, Path]:
    """The manifest columns of ``source``, and the folder that its paths are relative to."""
    path = Path(source)
    if is_manifest(path):
        table = read_table(path)
        demand_columns(source, table, ("path", "class_id"))
        return table, path.resolve().parent
    listing = _listing(source, path)
    root, columns = path, {name: list[str]() for name in ("path", "class_id", "split")}
    for split in ("", *SPLITS):
        if (part := listing.splits.get(split)) is None:
            continue
        if not isinstance(part.read, FileReader):
            raise DataError(f"{source} has no picture files that a manifest could list")
        root = part.read.root
        columns["path"] += part.names
        columns["class_id"] += part.class_ids
        columns["split"] += [split] * len(part.names)
        if part.observations:
            columns.setdefault("observation_id", []).extend(part.observations)
    return {**columns, **class_columns(listing, columns["class_id"])}, root.resolve()


def _listing(source: str, path: Path) -> Listing:
    """The listing of a source; class folders without splits form a split without a name."""
    try:
        return list_source(source)
    except DataError:
        with suppress(OSError):
            records = list_classes(path, path, [])
            if records.names:
                return Listing(source=source, splits={"": records})
        raise


_PHOTO_NAME = re.compile(r"[0-9a-f]{32}-[0-9]+\.jpg")


@dataclass(frozen=True, kw_only=True)
class _FeedbackImport:
    """A written manifest, and how many answers it holds and leaves out."""

    table: Table
    photos: int  # feedback photos in the manifest
    answers: int  # answers that these photos belong to
    left_out: Mapping[str, int]  # answers by reason


def import_feedback(store: Path, out: Path, data: str | None = None) -> _FeedbackImport:
    """Write the photos whose feedback names a class, and a manifest that puts them into train.

    The last feedback on an answer counts, and the photos of an answer are one observation. With
    ``data``, its pictures come first, and feedback on classes that it lacks is left out. Photos of
    an earlier import into ``out`` are deleted if people have withdrawn their consent.

    Raises:
        DataError: ``store`` has no feedback, or none with a usable photo; ``data`` cannot be
            listed, or has pictures without a split.
        OSError: A file cannot be written.
    """
    left_out, folder = Counter[str](), out.with_name(f"{out.stem}-feedback")
    with open_feedback(store) as feedback:
        others = [] if data is None else _others(data, feedback.answer_ids(), out)
        classes = {row["class_id"] for row in others} if data else None
        feedback_rows = list(_usable_rows(feedback.latest_rows(), classes, left_out))
        if not feedback_rows:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            raise DataError(f"{store} holds no photo to train on; left out: {counts or 'nothing'}")
        rows = _write_photos(feedback.photos, feedback_rows, folder)
    table = _table_of([*others, *rows])
    write_table(out, table)
    # After the manifest is written: a crash between the two leaves photos too many, none that is
    # missing.
    for path in set(folder.iterdir()) - {out.parent / row["path"] for row in rows}:
        if _PHOTO_NAME.fullmatch(path.name):
            path.unlink()
    return _FeedbackImport(
        table=table, photos=len(rows), answers=len(feedback_rows), left_out=left_out
    )


def _usable_rows(
    feedback_rows: Iterable[Row], classes: set[str] | None, left_out: Counter[str]
) -> Iterator[Row]:
    """The last row of each usable answer; ``left_out`` counts the others by reason."""
    for row in feedback_rows:
        if row["class_id"] in (None, NOT_LISTED):
            left_out["without a class"] += 1
        elif not row["photos"]:
            left_out["without photos"] += 1
        elif classes is not None and plain_id(row["class_id"]) not in classes:
            left_out["of classes that the data set lacks"] += 1
        else:
            yield row


def _write_photos(
    photos_of: Callable[[str], list[bytes]], feedback_rows: Iterable[Row], folder: Path
) -> list[dict[str, str]]:
    """Write the photos of the answers, and return the rows of the manifest beside ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in feedback_rows:
        for number, jpeg in enumerate(photos_of(row["answer_id"]), start=1):
            path = folder / f"{row['answer_id']}-{number}.jpg"
            write_atomic(path, jpeg)
            rows.append(
                {
                    "path": f"{folder.name}/{path.name}",
                    "class_id": row["class_id"],
                    "split": "train",
                    "observation_id": row["answer_id"],
                    "licence": row["licence"] or "",
                }
            )
    return rows


def _others(data: str, answer_ids: set[str], out: Path) -> list[dict[str, str]]:
    """The rows of ``data`` except those of an earlier import."""
    table, _ = pictures_of(data, out)
    rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
    unsplit = [row["path"] for row in rows if not row.get("split")]
    fault = f"{count_of(len(unsplit), 'picture')} without a split"
    refuse(data, fault, unsplit, "; run `florilege data split`")
    return [row for row in rows if row.get("observation_id") not in answer_ids]


def _table_of(rows: Sequence[Mapping[str, str]]) -> Table:
    """The rows as a table; cells of a column that a row lacks are empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, "") for row in rows] for name in names}

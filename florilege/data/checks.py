"""Find every problem of a data set in one pass.

Errors stop training or invalidate later measurements; warnings deserve a look. Pictures of one
plant in several splits are an error, but only a warning if the splits are published.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np

from florilege.data.copies import WORDS, Hashes, Picture, fingerprint, look_at, same_photos
from florilege.data.options import noise_groups, parse_options, with_options
from florilege.data.records import SPLITS, Listing, Records, sort_ids
from florilege.data.sources import list_whole
from florilege.errors import count_of, reason_of
from florilege.models.images import ImageError
from florilege.terminal import with_bar

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Finding:
    """All problems of one kind."""

    kind: str  # stable word for scripts, such as ``unreadable_file``
    message: str  # one line: the problem and its remedy
    items: Sequence[str] = ()  # the pictures or classes concerned


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a check."""

    source: str  # the ``--data`` argument
    rows: Mapping[str, int]  # pictures per split
    counts: Mapping[str, Mapping[str, int]]  # pictures per class and split, in class order
    errors: Sequence[Finding]  # must be repaired
    warnings: Sequence[Finding]  # may stay
    thinned: Mapping[str, int] | None = None  # training pictures in total and kept
    noise: Mapping[str, int] | None = None  # labels, those changed, and groups of classes
    corrected: Mapping[str, int] | None = None  # labels that the file of corrections changed


class _Picture(NamedTuple):
    """One checked picture."""

    split: str
    row: int  # in its split
    name: str
    class_id: str
    sha256: str  # of its bytes; empty if they cannot be read
    words: Hashes | None  # `fingerprint`; None if it cannot be read
    problem: str  # code such as ``unsupported_image_type``, or empty
    detail: str  # the problem in words


def check(source: str, *, threads: int | None = None) -> Report:
    """Read every picture of a data set in ``threads`` threads and report all problems.

    Raises `DataError` if the source cannot be listed at all.
    """
    base, options = parse_options(source)
    # () reports missing files instead of raising.
    whole = list_whole(base, options, splits=())
    listing = with_options(whole, options)
    pictures = list(_read_pictures(listing, threads))
    counts = _counts(listing)
    identical = _identical(pictures)
    leaks = [
        *_copies_across_splits(identical),
        *_near_copies_across_splits(listing, pictures),
        *_observations_across_splits(listing),
    ]
    lacking = list(_missing_in_train(listing))
    # Published results rest on these splits as they are.
    published = listing.published is not None
    # Where a source fixes its classes, one may lack pictures; elsewhere it is mostly a misspelt
    # name.
    fixed = listing.order is not None
    train = listing.splits.get("train")
    thinned = None
    if options.thins and train is not None:
        thinned = {"pictures": len(whole.splits["train"].names), "kept": len(train.names)}
    return Report(
        source=source,
        rows={name: len(records.names) for name, records in _splits(listing).items()},
        counts=counts,
        errors=[
            *_class_errors(listing),
            *([] if fixed else lacking),
            *_picture_errors(pictures, listing.download_hint),
            *([] if published else leaks),
        ],
        warnings=[
            *(leaks if published else []),
            *(lacking if fixed else []),
            *_table_and_class_warnings(listing, counts),
            *_duplicates(identical),
            *_name_warnings(listing, counts),
        ],
        thinned=thinned,
        noise=_noise(listing),
        corrected={n: len(photos) for n, photos in listing.corrected.items()} or None,
    )


def _splits(listing: Listing) -> dict[str, Records]:
    return {name: listing.splits[name] for name in SPLITS if name in listing.splits}


def _noise(listing: Listing) -> dict[str, int] | None:
    train = listing.splits.get("train")
    if train is None or train.noisy_ids is None:
        return None
    group_of = noise_groups(listing)
    pairs = zip(train.class_ids, train.noisy_ids, strict=True)
    return {
        "labels": len(train.names),
        "changed": sum(before != after for before, after in pairs),
        "groups": len(set(group_of.values())),
        "classes": len(group_of),
    }


def _read_pictures(listing: Listing, threads: int | None) -> Iterator[_Picture]:
    splits = listing.splits.items()
    rows = [(split, records, row) for split, records in splits for row in range(len(records.names))]
    return with_bar(_read_picture, rows, "reading pictures", threads=threads)


def _read_picture(place: tuple[str, Records, int]) -> _Picture:
    split, records, row = place
    sha256, problem, detail, words = "", "", "", None
    try:
        data = records.read(row)
        sha256 = hashlib.sha256(data).hexdigest()
        words = fingerprint(look_at(data))
    except ImageError as error:
        problem, detail = error.code, str(error)
    except OSError as error:
        problem, detail = "unreadable_file", reason_of(error)
    name, class_id = records.names[row], records.class_ids[row]
    return _Picture(split, row, name, class_id, sha256, words, problem, detail)


def _counts(listing: Listing) -> dict[str, dict[str, int]]:
    present = {name: Counter(records.taught_ids) for name, records in _splits(listing).items()}
    ids = listing.class_table().ids
    return {
        class_id: {name: counts[class_id] for name, counts in present.items()} for class_id in ids
    }


def _class_errors(listing: Listing) -> Iterator[Finding]:
    classes = listing.class_table()
    if len(classes) < 2:
        message = f"{count_of(len(classes), 'class', 'classes')}; a classifier needs at least 2"
        yield Finding("too_few_classes", message, list(classes.ids))
    for name, records in listing.splits.items():
        if not records.names:
            yield Finding("empty_split", f"{name} holds no pictures")


def _missing_in_train(listing: Listing) -> Iterator[Finding]:
    for name, ids in listing.missing_in_train().items():
        message = f"classes of {name} without a picture in train: they cannot be learnt"
        yield Finding("missing_in_train", message, ids)


def _picture_errors(pictures: Sequence[_Picture], download_hint: str) -> Iterator[Finding]:
    messages = {
        "unreadable_file": f"files that cannot be read{download_hint}",
        "unsupported_image_type": "files of an unsupported type; convert or remove them",
        "image_too_large": "pictures over the size limits; shrink or remove them",
        "image_unreadable": "damaged pictures; replace or remove them",
    }
    items_of = defaultdict[str, list[str]](list)
    for picture in pictures:
        if picture.problem:
            items_of[picture.problem].append(f"{picture.name}: {picture.detail}")
    for problem, items in items_of.items():
        yield Finding(problem, messages[problem], items)


def _identical(pictures: Iterable[_Picture]) -> Iterable[Sequence[_Picture]]:
    return _shared((picture.sha256, picture) for picture in pictures if picture.sha256).values()


def _copies_across_splits(identical: Iterable[Sequence[_Picture]]) -> Iterator[Finding]:
    copies = [
        " = ".join(f"{picture.name} ({picture.split})" for picture in same)
        for same in identical
        if len({picture.split for picture in same}) > 1
    ]
    return _listed("same_file_across_splits", "the same file in several splits", copies)


def _near_copies_across_splits(listing: Listing, pictures: Sequence[_Picture]) -> Iterator[Finding]:
    parts = [
        [picture for picture in pictures if picture.split == name and picture.words is not None]
        for name in _splits(listing)
    ]
    copies = [
        f"{one.name} ({one.split}) = {other.name} ({other.split})"
        for ours, others in combinations(parts, 2)
        for one, other in _near_copies(listing, ours, others)
    ]
    message = (
        "the same photo in several splits, resized, re-encoded or cropped; keep one of each, or "
        "let `florilege data split --copies` draw splits that divide none: figures are too good"
    )
    return _listed("near_duplicate_across_splits", message, copies)


def _near_copies(
    listing: Listing, ours: Sequence[_Picture], others: Sequence[_Picture]
) -> Iterator[tuple[_Picture, _Picture]]:
    """Pairs of pictures that show the same photo in other bytes."""
    words, other_words = (
        np.array([picture.words for picture in part], dtype=np.uint64).reshape(-1, WORDS)
        for part in (ours, others)
    )

    def look(row: int) -> Picture:
        return look_at(listing.splits[others[row].split].read(others[row].row))

    def are_other_bytes(one: int, other: int) -> bool:
        return ours[one].sha256 != others[other].sha256

    pairs = same_photos(words, other_words, look, are_other_bytes)
    return ((ours[one], others[other]) for one, other in pairs)


def _observations_across_splits(listing: Listing) -> Iterator[Finding]:
    splits = _splits(listing).items()
    in_split = {name: split.observations for name, split in splits if split.observations}
    leaks = _shared((seen, name) for name, ids in in_split.items() for seen in dict.fromkeys(ids))
    photos = [
        f"{count_of(sum(map(leaks.__contains__, ids)), 'photo')} of {name}"
        for name, ids in in_split.items()
        if name != "train"
    ]
    message = (
        f"observations with photos in several splits, including {' and '.join(photos)}; "
        "`florilege data split --keep` writes a manifest that moves them all to train"
    )
    items = [f"{observation}: {', '.join(names)}" for observation, names in leaks.items()]
    return _listed("observation_across_splits", message, items)


def _table_and_class_warnings(
    listing: Listing, counts: Mapping[str, Mapping[str, int]]
) -> Iterator[Finding]:
    hint = listing.download_hint
    missing = f"photos named in the tables of the data set but missing{hint}"
    yield from _listed("missing", missing, listing.missing)
    unlisted = "photos that the tables of the data set do not name, so their plant is unknown"
    yield from _listed("unlisted", unlisted + hint, listing.unlisted)
    single = [class_id for class_id, of_split in counts.items() if of_split.get("train") == 1]
    yield from _listed("one_picture", "classes with a single picture in train", single)
    for name in ("val", "test"):
        absent = [class_id for class_id, of_split in counts.items() if of_split.get(name, 1) == 0]
        message = f"classes without a picture in {name}, so {name} cannot measure them"
        yield from _listed(f"missing_in_{name}", message, absent)
    for name in SPLITS:
        if name not in listing.splits:
            yield Finding("no_split", f"there is no {name} split")


def _duplicates(identical: Iterable[Sequence[_Picture]]) -> Iterator[Finding]:
    within = [
        " = ".join(picture.name for picture in same)
        for same in identical
        if len({picture.split for picture in same}) == 1
    ]
    yield from _listed("duplicates", "identical files in one split", within)
    contradicting = [
        " = ".join(f"{picture.name} ({picture.class_id})" for picture in same)
        for same in identical
        if len({picture.class_id for picture in same}) > 1
    ]
    message = "identical files in different classes: one of the labels may be wrong"
    yield from _listed("duplicates_across_classes", message, contradicting)


def _name_warnings(listing: Listing, class_ids: Iterable[str]) -> Iterator[Finding]:
    ignored = "neither pictures nor class folders; move them elsewhere if they do not belong here"
    yield from _listed("ignored", ignored, listing.ignored)
    unnamed = "classes without a name; docs/data.md says which table of the data set names them"
    nameless = class_ids if listing.published and not listing.class_infos else ()
    yield from _listed("unnamed", unnamed, sort_ids(nameless))
    alike = _shared((re.sub(r"[\s_-]+", " ", name.casefold()), name) for name in class_ids)
    spelt = "classes that differ in case, blanks or dashes alone: rename them if they are one"
    yield from _listed("alike", spelt, [" = ".join(names) for names in alike.values()])


def _listed(kind: str, message: str, items: Sequence[str]) -> Iterator[Finding]:
    """The finding, if it concerns any picture or class."""
    if items:
        yield Finding(kind, message, list(items))


def _shared(pairs: Iterable[tuple[str, _Value]]) -> dict[str, list[_Value]]:
    """The values of each key that has several."""
    values_of = defaultdict[str, list[_Value]](list)
    for key, value in pairs:
        values_of[key].append(value)
    return {key: values for key, values in values_of.items() if len(values) > 1}

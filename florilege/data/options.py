"""Options after a source: ``DATA:noise=0.2,fraction=0.5``, ``flora:train=4000,seed=3``.

Corrections of labels come first, holding out second, thinning third, noise last. Corrections change
every split. Holding out makes val from training pictures and turns the existing val into test.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilege.data.records import SPLITS, Listing, Records, refuse, sort_ids, split_name
from florilege.errors import DataError, count_of
from florilege.models.classes import ClassInfo
from florilege.settings import complaint

# Of the flora, per split: the traits of all are drawn at once, 120 bytes a picture.
MOST_PICTURES = 10_000_000
# A value has no `/`: a path such as `C:/photos/noise=1` is no option. Only `labels` names a file; a
# comma or colon is part of the name unless an option follows.
_OPTION = r"\s*(?:labels\s*=[^,]*(?:,[^,=]+(?=,|$))*|\w+\s*=[^,:=/\\]*)"
_WITH_OPTIONS = re.compile(rf"(?P<base>.+?):(?P<options>{_OPTION}(?:,{_OPTION})*)")
_PART = re.compile(rf"{_OPTION}|[^,]+")


class TrainingOptions(BaseModel):
    """Options of the training split, and corrections of all; the defaults change nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    noise: float = Field(default=0.0, ge=0, le=1)  # share of labels drawn from their group
    noise_seed: int = Field(default=0, ge=0)  # chooses the noisy labels
    fraction: float = Field(default=1.0, gt=0, le=1)  # share of each class's pictures to keep
    per_class: int | None = Field(default=None, ge=1)  # most pictures to keep of each class
    imbalance: float = Field(default=1.0, ge=1)  # ratio of the largest class to the smallest
    sample_seed: int = Field(default=0, ge=0)  # chooses the pictures to keep, and the tail
    hold_out: int | None = Field(default=None, ge=1)  # pictures of each class that become val
    labels: str | None = Field(default=None, min_length=1)  # file of corrections

    @property
    def thins(self) -> bool:
        return self.fraction < 1 or self.per_class is not None or self.imbalance > 1

    def listed(self, splits: Sequence[str] | None) -> Sequence[str] | None:
        """The splits of the source that ``splits`` come from; None for all."""
        if splits is None or self.hold_out is None:
            return splits
        origins = {"val": ("train",), "test": ("val", "test")}
        return [origin for name in splits for origin in origins.get(name, (name,))]


class FloraOptions(TrainingOptions):
    """Options of the flora: pictures per split, and the seed."""

    train: int = Field(default=20_000, ge=0, le=MOST_PICTURES)
    val: int = Field(default=8_000, ge=0, le=MOST_PICTURES)
    test: int = Field(default=8_000, ge=0, le=MOST_PICTURES)
    seed: int = Field(default=0, ge=0)

    @property
    def rows(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in SPLITS}


Options = TypeVar("Options", bound=TrainingOptions)


def is_flora(source: str) -> bool:
    """Whether ``--data`` names the flora rather than a path."""
    return source == "flora" or source.startswith("flora:")


def parse_options(source: str) -> tuple[str, TrainingOptions]:
    """The source without options, and the options: `FloraOptions` for the flora.

    A source that exists as a path has no options, whatever it looks like.

    Raises:
        DataError: An option is unknown, given twice or has an invalid value.

    Example:
        >>> source, options = parse_options("photos.csv:noise=0.2")
        >>> source, options.noise
        ('photos.csv', 0.2)
        >>> parse_options("photos.csv:labels=of Ann, Bob.csv,noise=0.2")[1].labels
        'of Ann, Bob.csv'
    """
    if is_flora(source):
        return "flora", parse_flora_options(source)
    base, options = _parted(source)
    return base, _read(TrainingOptions, source, options)


def parse_flora_options(source: str) -> FloraOptions:
    """All options of ``flora[:train=4000,val=500,test=500,seed=3,noise=0.2]``.

    Errors are those of `parse_options`.
    """
    return _read(FloraOptions, source, _PART.findall(source.partition(":")[2]))


def _read(model: type[Options], source: str, options: Sequence[str]) -> Options:
    values = dict[str, str]()
    for option in filter(str.strip, options):
        name = split_name(_name(option)) or _name(option)
        if name in values:
            raise DataError(f"{source}: {name} is given twice")
        values[name] = option.partition("=")[2].strip()
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{source}: {complaint(error, model, null=False)}") from error


def add_options(source: str, options: str) -> str:
    """Add options to a source, except those that it already has.

    Example:
        >>> add_options("cifar-100-python:noise=0.5", "noise=0.2,noise_seed=1")
        'cifar-100-python:noise=0.5,noise_seed=1'
        >>> add_options("cifar-100-python", "noise=0.2")
        'cifar-100-python:noise=0.2'
    """
    base, present = _parted(source)
    names = {*map(_name, present)}
    added = [option for option in _PART.findall(options) if _name(option) not in names]
    return f"{base}:{','.join([*present, *added])}" if added else source


def without_option(source: str, name: str) -> str:
    """A source without one of its options.

    Example:
        >>> without_option("photos.csv:labels=review.csv,noise=0.2", "labels")
        'photos.csv:noise=0.2'
        >>> without_option("photos.csv:labels=review.csv", "labels")
        'photos.csv'
    """
    base, present = _parted(source)
    others = [option for option in present if _name(option) != name]
    return f"{base}:{','.join(others)}" if others else base


def _name(option: str) -> str:
    return option.partition("=")[0].strip()


def _parted(source: str) -> tuple[str, list[str]]:
    """A source without its options, and these; one that exists as a path has none."""
    match = _WITH_OPTIONS.fullmatch(source)
    if match is None or _exists(source):
        return source, []
    return match["base"], _PART.findall(match["options"])


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except OSError:  # such as a name that is too long to exist
        return False


def fraction(key: str, seed: int) -> float:
    """A number in [0, 1) that depends only on the key and the seed.

    Example:
        >>> 0.0 <= fraction("a", 0) < 1.0
        True
    """
    # 48 bits fit into a float64, so the largest of them does not round to 1.
    return int.from_bytes(_digest(key, seed)[:6], "big") / 2**48


def shuffled(keys: Iterable[str], seed: int) -> list[str]:
    """The keys in an order drawn by ``seed``; other keys do not change the order of two keys."""
    return sorted(keys, key=lambda key: (_digest(key, seed), key))


def _digest(key: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{key}".encode()).digest()


_HOLD_OUT_SEED = 0


def with_options(listing: Listing, options: TrainingOptions) -> Listing:
    """Thin out the training split and add noise to its labels, as ``options`` say.

    Errors are those of `noise_groups`.
    """
    train = listing.splits.get("train")
    if train is None:
        return listing
    if options.thins:
        train = train.select_rows(_sample_rows(train.class_ids, train.names, options))
    if options.noise > 0:
        class_ids = _noisy_ids(listing, train, rate=options.noise, seed=options.noise_seed)
        train = replace(train, noisy_ids=class_ids)
    return replace(listing, splits={**listing.splits, "train": train})


def _sample_rows(
    class_ids: Sequence[str], names: Sequence[str], options: TrainingOptions
) -> list[int]:
    """The rows of the pictures to keep, in their order, at least one of each class.

    Each class keeps the share ``fraction``, but at most ``per_class``. Then the ``i``-th of ``C``
    classes, in an order drawn by ``sample_seed``, keeps at most ``n imbalance^(-i / (C - 1))``,
    where ``n`` is the count of the largest class and ``i`` starts at 0. The choice within a class
    depends only on the seed and the names of the pictures. A smaller sample is a subset of a larger
    one.

    References:
        Cui et al., "Class-balanced loss based on effective number of samples", CVPR 2019, and
        Cao et al., "Learning imbalanced datasets with label-distribution-aware margin loss",
        NeurIPS 2019; both take the classes in label order and round down.
    """
    rows_of, seed = _rows_by_class(class_ids, names), options.sample_seed
    most = options.per_class or inf
    shares = {name: min(len(rows) * options.fraction, most) for name, rows in rows_of.items()}
    largest, steps = max(shares.values(), default=1.0), max(1, len(shares) - 1)
    sample: list[int] = []
    for place, class_id in enumerate(shuffled(shares, seed)):
        tail = largest * options.imbalance ** (-place / steps)
        size = max(1, round(min(shares[class_id], tail)))
        rows = rows_of[class_id]
        sample += [rows[name] for name in shuffled(rows, seed)[:size]]
    return sorted(sample)


def _rows_by_class(class_ids: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, int]]:
    """The row of each picture by class id and name."""
    rows_of = defaultdict[str, dict[str, int]](dict)
    for row, (class_id, name) in enumerate(zip(class_ids, names, strict=True)):
        rows_of[class_id][name] = row
    return rows_of


def hold_out(listing: Listing, per_class: int) -> Listing:
    """Move ``per_class`` pictures of each class from train to val; the old val becomes test.

    The choice depends only on the names of the pictures, so it is always the same. Without train
    nothing is held out. Raises `DataError` if there are already both val and test, a class has too
    few pictures, or the photos have observations, which this would divide.
    """
    records = {name: split for name, split in listing.splits.items() if split.names}
    if "val" in records and "test" in records:
        raise DataError(
            f"{listing.source}: hold_out takes val from train and turns the existing val into "
            "test, but the data set already has val and test; leave it out"
        )
    train, others = records.pop("train", None), list(records.values())
    splits = {"test": others[0]} if others else {}
    if train is not None:
        rows = set(_held_out_rows(listing, train, per_class))
        rest = [row for row in range(len(train.names)) if row not in rows]
        splits["train"] = train.select_rows(rest)
        splits["val"] = train.select_rows(sorted(rows))
    return replace(listing, splits=splits)


def _held_out_rows(listing: Listing, train: Records, per_class: int) -> list[int]:
    if train.observations is not None:
        raise DataError(
            f"{listing.source}: hold_out would divide photos of one plant between train and val; "
            "`florilege data split` keeps them together"
        )
    rows_of = _rows_by_class(train.class_ids, train.names)
    small = [class_id for class_id, rows in rows_of.items() if len(rows) <= per_class]
    classes = count_of(len(small), "class", "classes")
    fault = f"hold_out={per_class} leaves no training picture in {classes}"
    refuse(listing.source, fault, sort_ids(small), "; hold out fewer")
    samples = ((rows, shuffled(rows, _HOLD_OUT_SEED)[:per_class]) for rows in rows_of.values())
    return [rows[name] for rows, names in samples for name in names]


def _noisy_ids(listing: Listing, train: Records, *, rate: float, seed: int) -> list[str]:
    """The class ids of ``train`` with noise, one per picture; groups are those of ``listing``.

    Each label is drawn anew with probability ``rate``. A noisy label depends only on the seed, the
    picture's name, its class and the classes of its group. A label that is wrong at one rate is the
    same wrong label at every higher rate. Errors are those of `noise_groups`.
    """
    group_of = noise_groups(listing)
    members = defaultdict[str, list[str]](list)
    for class_id, group in group_of.items():
        members[group].append(class_id)

    def noisy_id(class_id: str, name: str) -> str:
        if fraction(f"noise/{name}", seed) >= rate:
            return class_id
        group = members[group_of[class_id]]
        return group[int(fraction(f"class/{name}", seed) * len(group))]

    return [noisy_id(*row) for row in zip(train.class_ids, train.names, strict=True)]


def noise_groups(listing: Listing) -> dict[str, str]:
    """The group of each class that may become a label: given by the source, or else its genus.

    Raises `DataError` if a class has no group or several, or no group has two classes.
    """
    train = listing.splits["train"]
    ids = sort_ids(set(train.class_ids)) if listing.order is None else listing.order
    several = [name for name in ids if len(listing.groups.get(name, ())) > 1]
    remedy = "; keep one in the column 'group'"
    refuse(listing.source, "classes of several groups, but a class belongs to one", several, remedy)
    group_of = {name: _group(listing, name) for name in ids}
    ungrouped = [name for name in ids if not group_of[name]]
    refuse(
        listing.source,
        "noise stays within groups of classes, and no group is known for "
        f"{count_of(len(ungrouped), 'class', 'classes')} of {len(ids):,}",
        ungrouped,
        "; add a column 'group' to the manifest or to a file classes.csv beside the splits, or "
        "give every class a genus or a scientific name such as 'Rosa canina'",
    )
    if len(set(group_of.values())) == len(group_of):
        raise DataError(
            f"{listing.source}: every class is alone in its group, so noise changes nothing; "
            "define groups of several classes"
        )
    return group_of


def _group(listing: Listing, class_id: str) -> str:
    """The group; without groups the genus, given or from a name like ``Rosa canina``; or empty."""
    if listing.groups:
        return "".join(listing.groups.get(class_id, ()))
    return listing.class_infos.get(class_id, ClassInfo(id=class_id)).genus_name

"""Change the training split: keep a share or a long tail of it, hold out val, add label noise.

Holding out is for data sets published with train and one other split. The published val becomes
test, as in Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
ICLR 2018, section 5.2, who hold out 50 pictures of each class of ImageNet.

Noise replaces a label, with a given probability, by a class drawn uniformly from its group, itself
included, as in section 5.1 of that paper, and in Garcin et al., "Stochastic smoothing of the top-K
calibrated hinge loss for deep imbalanced classification", ICML 2022, section 4.4.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from florilege.data.options import TrainingOptions
from florilege.data.records import Listing, Records, count_of, refuse, sort_ids
from florilege.errors import DataError
from florilege.models.classes import ClassInfo


def fraction(key: str, seed: int) -> float:
    """A number in [0, 1) that depends only on the key and the seed.

    Example:
        >>> 0.0 <= fraction("a", 0) < 1.0
        True
    """
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

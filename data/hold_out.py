"""Pictures of train held out as val, for data sets published with train and one other split.

What is published as val is then for test, as in Berrada, Zisserman and Kumar, "Smooth loss
functions for deep top-k classification", ICLR 2018, section 5.2, who hold out 50 pictures of each
class of ImageNet.
"""

from collections import defaultdict
from dataclasses import replace

from florilege.data.hash_random import shuffled
from florilege.data.records import Listing, Records, count_of, sort_ids
from florilege.data.subset import select_records
from florilege.errors import DataError, first

SEED = 0


def hold_out(listing: Listing, per_class: int) -> Listing:
    """The listing with as many pictures of each class of train as val, and its val as test.

    The same pictures always, as they depend on their names alone.

    Args:
        listing: With train, or val or test, but not both; without train nothing is held out.
        per_class: 1 or more.

    Raises:
        DataError: There are val and test already; a class has not enough pictures; or photos have
            observations, which this would cut.
    """
    there = {name: each for name, each in listing.splits.items() if each.names}
    if "val" in there and "test" in there:
        raise DataError(
            f"{listing.source}: hold_out takes val from train and makes test of the val that is "
            "there, but there are val and test already; leave it out"
        )
    train, others = there.pop("train", None), list(there.values())
    splits = {"test": others[0]} if others else {}
    if train is not None:
        rows = set(_held_out_rows(listing, train, per_class))
        training_rows = [row for row in range(len(train.names)) if row not in rows]
        splits["train"] = select_records(train, training_rows)
        splits["val"] = select_records(train, sorted(rows))
    return replace(listing, splits=splits)


def _held_out_rows(listing: Listing, train: Records, per_class: int) -> list[int]:
    if train.observations is not None:
        raise DataError(
            f"{listing.source}: hold_out would put photos of one plant into train and val; "
            "`florilege data split` keeps them together"
        )
    rows_of = defaultdict[str, dict[str, int]](dict)
    for row, (class_id, name) in enumerate(zip(train.class_ids, train.names, strict=True)):
        rows_of[class_id][name] = row
    small = [class_id for class_id, rows in rows_of.items() if len(rows) <= per_class]
    if small:
        raise DataError(
            f"{listing.source}: hold_out={per_class} leaves nothing to learn from in "
            f"{count_of(len(small), 'class', 'classes')}: {first(sort_ids(small))}; hold out fewer"
        )
    samples = ((rows, shuffled(rows, SEED)[:per_class]) for rows in rows_of.values())
    return [rows[name] for rows, names in samples for name in names]

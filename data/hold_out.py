"""Hold out training pictures as val, for data sets published with train and one other split.

The published val then becomes test, as in Berrada, Zisserman and Kumar, "Smooth loss functions for
deep top-k classification", ICLR 2018, section 5.2, who hold out 50 pictures of each class of
ImageNet.
"""

from collections import defaultdict
from dataclasses import replace

from florilege.data.hash_random import shuffled
from florilege.data.records import Listing, Records, count_of, sort_ids
from florilege.data.subset import select_records
from florilege.errors import DataError, first

SEED = 0


def hold_out(listing: Listing, per_class: int) -> Listing:
    """Move ``per_class`` pictures of each class from train to val; the old val becomes test.

    The choice depends only on the names of the pictures, so it is always the same.

    Args:
        listing: With train, and val or test but not both; without train nothing is held out.
        per_class: 1 or more.

    Raises:
        DataError: There are already both val and test; a class has too few pictures; or the photos
            have observations, which this would divide.
    """
    records = {name: each for name, each in listing.splits.items() if each.names}
    if "val" in records and "test" in records:
        raise DataError(
            f"{listing.source}: hold_out takes val from train and turns the existing val into "
            "test, but the data set already has val and test; leave it out"
        )
    train, others = records.pop("train", None), list(records.values())
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
            f"{listing.source}: hold_out would divide photos of one plant between train and val; "
            "`florilege data split` keeps them together"
        )
    rows_of = defaultdict[str, dict[str, int]](dict)
    for row, (class_id, name) in enumerate(zip(train.class_ids, train.names, strict=True)):
        rows_of[class_id][name] = row
    small = [class_id for class_id, rows in rows_of.items() if len(rows) <= per_class]
    if small:
        raise DataError(
            f"{listing.source}: hold_out={per_class} leaves no training picture in "
            f"{count_of(len(small), 'class', 'classes')}: {first(sort_ids(small))}; hold out fewer"
        )
    samples = ((rows, shuffled(rows, SEED)[:per_class]) for rows in rows_of.values())
    return [rows[name] for rows, names in samples for name in names]

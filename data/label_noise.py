"""Simulated labelling errors: training labels confused within a group of classes.

With a given probability a label is replaced by a class drawn uniformly from its group, itself
included, as in Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k
classification", ICLR 2018, section 5.1, and Garcin et al., "Stochastic smoothing of the top-K
calibrated hinge loss for deep imbalanced classification", ICML 2022, section 4.4.
"""

import re
from collections import defaultdict

from florilege.data.hash_random import fraction
from florilege.data.records import Listing, Records, count_of, refuse, sort_ids
from florilege.errors import DataError

_GENUS = re.compile(r"(?P<genus>[A-Z][a-z-]+)[ _](?:[x\u00d7][ _])?\u00d7?[a-z][\w-]+")


def noisy_ids(listing: Listing, train: Records, *, rate: float, seed: int) -> list[str]:
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
    """The group; without groups the genus, given or in a name like ``Rosa canina``; or empty."""
    if listing.groups:
        return "".join(listing.groups.get(class_id, ()))
    info = listing.class_infos.get(class_id)
    if info is not None and info.genus:
        return info.genus
    match = _GENUS.match(class_id if info is None else info.scientific_name)
    return match["genus"] if match else ""

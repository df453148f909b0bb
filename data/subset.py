"""Subsets of the training pictures: a share or number of each class, or a long-tailed sample."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from florilege.data.hash_random import shuffled
from florilege.data.records import Records
from florilege.data.split_parts import read_row


def sample_rows(
    class_ids: Sequence[str],
    names: Sequence[str],
    *,
    fraction: float,
    per_class: int | None = None,
    imbalance: float,
    seed: int,
) -> list[int]:
    """The rows to keep, in their order; `sample_sizes` says how many of each class.

    The choice within a class depends only on the seed and the names of the pictures. A smaller
    sample is a subset of a larger one.
    """
    names_of = defaultdict[str, dict[str, int]](dict)
    for row, (class_id, name) in enumerate(zip(class_ids, names, strict=True)):
        names_of[class_id][name] = row
    counts = sample_sizes(
        Counter(class_ids), fraction=fraction, per_class=per_class, imbalance=imbalance, seed=seed
    )
    return sorted(
        rows[name]
        for class_id, rows in names_of.items()
        for name in shuffled(rows, seed)[: counts[class_id]]
    )


def sample_sizes(
    counts: Mapping[str, int],
    *,
    fraction: float,
    per_class: int | None = None,
    imbalance: float,
    seed: int,
) -> dict[str, int]:
    """Number of pictures to keep of each class, at least one.

    Each class keeps the share ``fraction``, but at most ``per_class``. Then the ``i``-th of ``C``
    classes, in an order drawn by ``seed``, keeps at most ``n imbalance^(-i / (C - 1))``, where
    ``n`` is the count of the largest class and ``i`` starts at 0.

    Args:
        counts: Existing pictures of each class, 1 or more.
        fraction: Above 0, at most 1.
        per_class: 1 or more; None for no limit.
        imbalance: Ratio of the largest class to the smallest, 1 or more.
        seed: 0 or more.

    References:
        Cui et al., "Class-balanced loss based on effective number of samples", CVPR 2019, and
        Cao et al., "Learning imbalanced datasets with label-distribution-aware margin loss",
        NeurIPS 2019; both take the classes in label order and round down.

    Example:
        >>> sample_sizes(dict.fromkeys("abc", 100), fraction=0.5, imbalance=25, seed=0)
        {'a': 50, 'c': 10, 'b': 2}
    """
    most = inf if per_class is None else per_class
    shares = {name: min(count * fraction, most) for name, count in counts.items()}
    largest, steps = max(shares.values(), default=1.0), max(1, len(shares) - 1)
    return {
        name: max(1, round(min(shares[name], largest * imbalance ** (-place / steps))))
        for place, name in enumerate(shuffled(shares, seed))
    }


def select_records(records: Records, rows: Sequence[int]) -> Records:
    """Some pictures of a split, in the given order."""
    plants = records.observations
    return replace(
        records,
        class_ids=[records.class_ids[row] for row in rows],
        names=[records.names[row] for row in rows],
        observations=None if plants is None else [plants[row] for row in rows],
        read=partial(read_row, records.read, tuple(rows)),
    )

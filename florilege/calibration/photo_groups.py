"""Group validation photos to represent requests with several photos of one observation."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.sets import Bools, Ints

MadeFrom = Literal["observations", "same_class"]
# With fewer groups a threshold is too noisy.
FEWEST_GROUPS = 100
# Of so many observations a fifth, 100, tells a hit rate to three points.
FEWEST_TO_SPLIT = 500
_CHOOSING = 5  # one observation in so many chooses


class _PhotoGroups(NamedTuple):
    """Groups of photos of one observation each (``observations``), or one species (``same_class``).

    The latter often show several plants, with less correlated errors, so that hit rates measured on
    them are optimistic.
    """

    rows: Ints  # row of each photo, ``(groups, size)``; no photo is in two groups
    made_from: MadeFrom


def observation_numbers(ids: Sequence[str] | None) -> Ints | None:
    """Observation of each photo as an index from 0, shape ``(rows,)``; None where none is known.

    Photos of one observation, such as one plant, share an id; a photo with an empty id is an
    observation of its own.

    Example:
        >>> observation_numbers(["b", "a", "", "b", ""])
        array([0, 1, 2, 0, 3])
    """
    if ids is None:
        return None
    numbers: dict[object, int] = {}
    # An id is text, so the number of a row never equals one.
    keys = (name or row for row, name in enumerate(ids))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def one_of_each(observations: ArrayLike, *, seed: int = 0) -> Bools:
    """Draw one photo of each observation at random, as a mask; both are ``(rows,)``.

    Example:
        >>> mask = one_of_each([0, 1, 0, 2, 0])
        >>> mask[[1, 3]].all(), mask.sum()
        (np.True_, np.int64(3))
    """
    numbers = np.asarray(observations)
    order = np.random.default_rng(seed).permutation(numbers.size)
    # The first of a shuffled order is one drawn evenly.
    _, first = np.unique(numbers[order], return_index=True)
    mask = np.zeros(numbers.size, dtype=np.bool_)
    mask[order[first]] = True
    return mask


def choosing_rows(observations: Ints | None, rows: int) -> Bools | None:
    """Draw the fifth of the observations whose photos choose, as a mask; the others calibrate.

    Photos that both choose among candidates and calibrate make every promise dearer: with 1,000
    photos and twelve candidates, sets for a coverage of 0.9 hold 6.1 classes instead of 5.4
    (``python -m benchmarks.rules.chosen_candidates``). With fewer than 500 observations a fifth is
    too few to choose; then None is returned, all photos do both, and promises allow for it.

    Example:
        >>> mask = choosing_rows(None, 500)
        >>> mask.sum(), choosing_rows(None, 499)
        (np.int64(100), None)
    """
    numbers = np.arange(rows) if observations is None else observations
    names = np.unique(numbers)
    if names.size < FEWEST_TO_SPLIT:
        return None
    choosing = np.random.default_rng(0).permutation(names)[: names.size // _CHOOSING]
    return np.isin(numbers, choosing)


def groups_of(
    labels: ArrayLike,
    *,
    size: int,
    observations: Sequence[str] | Ints | None = None,
    seed: int = 0,
    fewest: int = FEWEST_GROUPS,
) -> _PhotoGroups:
    """Make groups of ``size`` photos: of one observation where the data name any, else one species.

    An observation yields at most one group, so that groups are as independent as observations; a
    class yields as many as it has photos for. Photos are drawn at random, but the same arguments
    give the same groups.

    Args:
        labels: True class indices, shape ``(rows,)``.
        size: Photos per group, 1 or more.
        observations: Id or index of each row, shared by the photos of one observation; an empty id
            where unknown. Photos of one observation with different labels are not grouped together.
        seed: Seed of the draw, at least 0.
        fewest: With fewer groups of one observation than this, make groups of one species.

    Raises:
        ValueError: ``size`` below 1, or not one observation per row.

    Example:
        >>> groups = groups_of([0, 0, 0, 0, 1], size=2)
        >>> groups.rows.shape, groups.made_from
        ((2, 2), 'same_class')
    """
    classes = np.asarray(labels)
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if observations is not None:
        if len(observations) != len(classes):
            raise ValueError(
                f"observations must have {len(classes)} entries, one per label, got "
                f"{len(observations)}"
            )
        groups = _of_one_observation(classes, observations, size, np.random.default_rng(seed))
        if len(groups) >= fewest:
            return _PhotoGroups(groups, "observations")
    groups = _of_one_species(classes, size, np.random.default_rng(seed))
    return _PhotoGroups(groups, "same_class")


def _of_one_observation(
    labels: Ints, observations: Sequence[str] | Ints, size: int, random: np.random.Generator
) -> Ints:
    photos: dict[tuple[Hashable, int], list[int]] = defaultdict(list)
    for row, (observation, label) in enumerate(zip(observations, labels.tolist(), strict=True)):
        if observation != "":
            photos[observation, label].append(row)
    largest: dict[Hashable, list[int]] = {}  # of each observation, the most photos with one label
    for (observation, _), rows in photos.items():
        if len(rows) > len(largest.get(observation, ())):
            largest[observation] = rows
    groups = [random.permutation(rows)[:size] for rows in largest.values() if len(rows) >= size]
    return np.array(groups, dtype=np.int64).reshape(-1, size)


def _of_one_species(labels: Ints, size: int, random: np.random.Generator) -> Ints:
    order = random.permutation(len(labels))
    parts = [order[labels[order] == label] for label in np.unique(labels)]
    complete = [part[: len(part) // size * size] for part in parts]
    return np.concatenate([np.empty(0, dtype=np.int64), *complete]).reshape(-1, size)

"""Which classes of a model are confused with each other, as a bundle holds it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.errors import BundleError
from florilege.models.bundle.bundle import Bundle

LOOK_ALIKES: Final = "look_alikes.json"  # of a bundle
MOST: Final = 4  # of a class: with 10,000 classes the file has 400 kB at most
FEWEST_PHOTOS: Final = 2  # whose sets hold the other class: one is an accident
LARGEST_SET: Final = 20  # a larger set confuses its class with everything
Ints = NDArray[np.signedinteger[Any]]


class PairCounts:
    """How often two classes are confused: by a photo of one of them whose set holds the other.

    Memory grows with the pairs that occur.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._pairs, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def update(self, sets: NDArray[np.bool_], labels: Ints) -> None:
        """Count sets, ``(rows, classes)``, of photos with these labels, ``(rows,)``."""
        small = sets & (sets.sum(axis=1) <= LARGEST_SET)[:, np.newaxis]
        rows, others = np.nonzero(small)
        true = labels[rows]
        keys = np.minimum(true, others) * self._classes + np.maximum(true, others)
        keys = np.concatenate([self._pairs, keys[true != others]])
        weights = np.concatenate([self._counts, np.ones(len(keys) - len(self._counts), np.int64)])
        self._pairs, places = np.unique(keys, return_inverse=True)
        self._counts = np.bincount(places, weights, minlength=len(self._pairs)).astype(np.int64)

    def by_class(self) -> dict[int, list[int]]:
        """For each class the classes it is confused with, most often first; ties in their order."""
        result = dict[int, list[int]]()
        for place in np.lexsort((self._pairs, -self._counts)):
            if self._counts[place] < FEWEST_PHOTOS:
                break
            first, second = divmod(int(self._pairs[place]), self._classes)
            for own, other in ((first, second), (second, first)):
                if len(row := result.setdefault(own, [])) < MOST:
                    row.append(other)
        return result


def look_alikes_file(by_class: Mapping[int, Sequence[int]]) -> bytes:
    """The content of ``look_alikes.json``: class indices by class index, the most similar first."""
    return json.dumps({str(own): list(row) for own, row in sorted(by_class.items())}).encode()


def read_look_alikes(bundle: Bundle) -> dict[int, list[int]]:
    """The classes that each class is confused with, by index; empty where nothing was counted.

    Raises:
        BundleError: The file is damaged.
    """
    classes = len(bundle.classes)
    try:
        content = bundle.read_object(LOOK_ALIKES).items()
        rows = {int(own): [int(index) for index in row] for own, row in content}
        if not all(0 <= index < classes for own, row in rows.items() for index in (own, *row)):
            raise ValueError("it names classes that do not exist")
    except (ValueError, TypeError) as error:
        raise BundleError(
            f"{LOOK_ALIKES} of {bundle.path} is damaged ({error}): calibrate the bundle again"
        ) from error
    return rows

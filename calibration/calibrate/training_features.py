"""Features of the training photos that a bundle compares new photos with."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.calibrate.photo_outputs import SplitOutputs, outputs_of
from florilege.calibration.rejection.reference import Reference
from florilege.data.dataset import Split, split_name
from florilege.data.sources import open_dataset
from florilege.data.split_parts import Part
from florilege.errors import DataError
from florilege.models.session import FEATURES, Session
from florilege.ray_tasks import Workers

TRAIN = "train"
MOST_PHOTOS = 1000
"""The most training photos to compare with; one per class, if there are more classes. With 2,000 or
4,000 photos the area under the ROC curve grows by .002 or .006 on average over eight networks; the
work of a server, 0.1 ms per photo with 1,000, grows in proportion."""


def training_photos(session: Session, data: str, part: Part) -> Split | None:
    """The training photos to compare with, without those of ``part``; None if there are none."""
    if session.dimensions is None:
        return None  # the graph has no features
    try:
        train = open_dataset(data, splits=[TRAIN], classes=session.bundle.classes).split(TRAIN)
    except DataError:
        return None
    rows = part.rest(train) if split_name(part.name) == TRAIN else np.arange(len(train))
    if not rows.size:
        return None
    most = max(MOST_PHOTOS, len(session.bundle.classes))
    return train.select_rows(rows[balanced_rows(train.labels[rows], most)], name=TRAIN)


def training_reference(
    session: Session, photos: Split, calibrated: SplitOutputs, workers: Workers | None = None
) -> Reference:
    """The reference of training photos, without those that are also calibration photos.

    Raises:
        DataError: Photos cannot be read, or all of them are also calibration photos.
    """
    with closing(outputs_of(session, photos, features=True, workers=workers)) as outputs:
        hashes = set(calibrated.photos)
        rows = [row for row, photo in enumerate(outputs.photos) if photo not in hashes]
        if not rows:
            raise DataError(
                f"every training photo is also in {calibrated.split!r}: name another --split"
            )
        blocks = [values for (values,), _ in outputs.blocks(FEATURES)]
        return Reference.of(np.concatenate(blocks)[rows], outputs.labels[rows])


def balanced_rows(labels: ArrayLike, most: int) -> NDArray[np.intp]:
    """Ascending rows of at most ``most`` photos, drawn from the classes in turn."""
    of_class = np.asarray(labels)
    shuffled = np.random.default_rng(0).permutation(len(of_class))
    numbers = defaultdict[int, Iterator[int]](count)
    turns = [next(numbers[label]) for label in of_class[shuffled].tolist()]
    return np.sort(shuffled[np.argsort(turns, kind="stable")][:most])

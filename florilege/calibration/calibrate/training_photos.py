"""Photos that trained a network: their features as a reference, their overlap with other photos."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.calibrate.photo_outputs import SplitOutputs, outputs_of
from florilege.calibration.calibrate.score_sources import LabelledPhotos
from florilege.calibration.photo_groups import FEWEST_TO_SPLIT, choosing_rows
from florilege.calibration.record.record_file import PROVENANCE, parse_file
from florilege.calibration.reference import Reference
from florilege.calibration.rejection import RejectionRule, UnseenThreshold, parts
from florilege.calibration.scores import Distribution, DistributionOf
from florilege.calibration.sets import Bools, Floats
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import Scoring
from florilege.data.copies import count_copies
from florilege.data.records import Part, Split, split_name
from florilege.data.sources import open_dataset
from florilege.errors import DataError
from florilege.models.bundle import Bundle
from florilege.models.photo_hashes import PHOTOS, PhotoHashes
from florilege.models.session import FEATURES, Session

TRAIN = "train"
_CHOSEN_ON = "checkpoint_chosen_on"  # in ``provenance.json``: the split that did, or null
NETWORKS = "networks_compared"  # in ``provenance.json``: how many it chose among, if counted
MOST_PHOTOS = 1000
"""The most training photos to compare with; one per class, if there are more classes. With 2,000 or
4,000 photos the area under the ROC curve grows by .002 or .006 on average over eight networks; the
work of a server, 0.1 ms per photo with 1,000, grows in proportion."""


_UNCOMPARED = "the run is of an older version: copies of its photos in other bytes are not known"
_REMEDY = "copy or export the bundle again"


class PhotoOverlap(NamedTuple):
    """How many photos for measuring a network also trained it or chose its checkpoint."""

    train_photos: int | None = None  # how many trained it; None where the bundle has no hashes
    selection_photos: int | None = None  # how many chose its checkpoint
    chose_checkpoint: bool | None = None  # whether any did either; None where unknown
    networks: int | None = None  # how many these photos compared; None where nobody counted
    near_copies: int | None = None  # training photos in other bytes; None where not compared

    @classmethod
    def of(
        cls, bundle: Bundle, split: str, photos: Sequence[bytes], pictures: Split | None = None
    ) -> "PhotoOverlap":
        """Count the photos, given by their SHA-256, that trained the network or chose it.

        Those that show a training photo in other bytes count like it; ``pictures`` reads them. A
        bundle without hashes was imported, possibly with the name of the split that chose the
        checkpoint, or exported by an older version. BundleError if a file is damaged.
        """
        provenance = bundle.read_object(PROVENANCE) if bundle.has(PROVENANCE) else {}
        networks = _compared(provenance)
        if not bundle.has(PHOTOS):
            chose = _declared(provenance, split)
            return cls(chose_checkpoint=chose, networks=networks if chose else 1)
        hashes = parse_file(bundle, PHOTOS, PhotoHashes.from_bytes, _REMEDY)
        trained, selection = hashes.trained(photos), int(hashes.chose(photos).sum())
        near = count_copies(pictures, ~trained, hashes.fingerprints) if hashes.train.size else 0
        train = int(trained.sum()) + (near or 0)
        overlaps = train > 0 or selection > 0
        chose = overlaps if overlaps or hashes.complete else None
        return cls(train, selection, chose, networks if selection else 1, near)

    @staticmethod
    def choosing(bundle: Bundle, outputs: SplitOutputs) -> Bools | None:
        """The rows that choose, as a mask; None where all rows choose and calibrate.

        If photos of some observations chose the checkpoint, they choose the scores too, and those
        that the network has not met calibrate.
        """
        rows, observations = len(outputs.labels), outputs.observations
        if bundle.has(PHOTOS):
            hashes = parse_file(bundle, PHOTOS, PhotoHashes.from_bytes, _REMEDY)
            numbers = np.arange(rows) if observations is None else observations
            chose = np.isin(numbers, numbers[hashes.chose(outputs.photos)])
            if chose.any() and np.unique(numbers[~chose]).size >= FEWEST_TO_SPLIT // 2:
                return chose
        return choosing_rows(observations, rows)

    def warnings(self, rows: int) -> list[str]:
        """Warnings about figures on these ``rows`` photos, one sentence each."""
        train, selection = self.train_photos, self.selection_photos
        if self.chose_checkpoint and train is None:  # declared at the import
            selection = rows
        uses = {
            "trained the network: figures on them are too optimistic": train,
            "chose the network: hit rates on them are a little too optimistic": selection,
        }
        lines = [
            f"{'all' if photos == rows else f'{photos:,} of the'} {rows:,} photos also {what}"
            for what, photos in uses.items()
            if photos
        ]
        if self.near_copies:
            lines.append(
                f"{self.near_copies:,} of them in other bytes, resized, re-encoded or cropped: "
                "`florilege data check` names such photos"
            )
        elif self.near_copies is None and train is not None:
            lines.append(_UNCOMPARED)
        return lines


def _compared(provenance: Mapping[str, Any]) -> int | None:
    """How many networks the photos of a run compared; None where nobody counted."""
    counted = provenance.get(NETWORKS)
    return counted if isinstance(counted, int) and counted > 0 else None


def _declared(provenance: Mapping[str, Any], split: str) -> bool | None:
    """Whether a split chose the checkpoint, as the import was told; None where it was not."""
    if _CHOSEN_ON not in provenance or "data" in provenance:  # of a run without hashes
        return None
    return split_name(Part.parse(split).name) in ("train", provenance[_CHOSEN_ON])


def photos_to_compare(
    session: Session, data: str, part: Part, *, skip_damaged: Callable[[str], None] | None = None
) -> Split | None:
    """The training photos to compare with, without those of ``part``; None if there are none.

    ``skip_damaged`` leaves out damaged photos, and is told which.
    """
    if session.dimensions is None:
        return None  # the graph has no features
    try:
        classes, check_files = session.bundle.classes, skip_damaged is None
        dataset = open_dataset(data, splits=[TRAIN], classes=classes, check_files=check_files)
        train = dataset.split(TRAIN)
    except DataError:
        return None
    rows = part.rest(train) if split_name(part.name) == TRAIN else np.arange(len(train))
    if not rows.size:
        return None
    most = max(MOST_PHOTOS, len(session.bundle.classes))
    photos = train.select_rows(rows[balanced_rows(train.labels[rows], most)], name=TRAIN)
    return photos if skip_damaged is None else photos.readable(skip_damaged)


def training_reference(
    session: Session,
    photos: Split,
    calibrated: SplitOutputs,
    score: Callable[..., SplitOutputs] = outputs_of,
) -> Reference:
    """The reference of training photos, without those that are also calibration photos.

    Raises:
        DataError: Photos cannot be read, or all of them are also calibration photos.
    """
    with closing(score(session, photos, features=True)) as outputs:
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
    # The n-th photo of each class, in shuffled order, has its turn in round n.
    turns = [next(numbers[label]) for label in of_class[shuffled].tolist()]
    return np.sort(shuffled[np.argsort(turns, kind="stable")][:most])


def fit_familiarity(
    photos: LabelledPhotos, scoring: Scoring, plan: CalibrationPlan, reference: Reference | None
) -> tuple[Distribution, RejectionRule | None]:
    """The distribution of the scores, and the rule that marks unfamiliar photos as suspect."""
    distribution, kind = DistributionOf(), scoring.score_kind
    familiarity, of_others = list[Floats](), list[Floats]()
    names = (scoring.head,) if reference is None else (scoring.head, FEATURES)
    counted, first = photos.one_of_each, 0
    for (logits, *features), labels in photos.outputs.blocks(*names):
        mask = counted[first : first + len(labels)]
        first += len(labels)
        if mask.any():
            distribution.update(logits[mask], scoring.scores(logits[mask, np.newaxis]))
        if plan.rejection_method is not None:
            # Of unscaled logits, as when it is served: the temperature was chosen for sets.
            familiarity.append(parts(logits, kind, next(iter(features), None), reference))
        if reference is not None:
            nearest = reference.nearest_of_others(features[0], labels)
            of_others += [] if nearest is None else [nearest]
    if not familiarity:
        return distribution.result(), None
    values, unseen = np.concatenate(familiarity), tuple[UnseenThreshold, ...]()
    if of_others:
        nearest = np.concatenate(of_others)
        unseen = UnseenThreshold.fit(nearest, values[:, 0], photos.outputs.labels, plan.coverages)
    sha256 = None if reference is None else reference.sha256
    rule = partial(RejectionRule.fit, plan.suspect_share, values, reference_sha256=sha256)
    return distribution.result(), rule(head=scoring.head, score_kind=kind, unseen=unseen)

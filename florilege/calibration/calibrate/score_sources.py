"""Scores that thresholds are chosen and measured on: those of the rows that show a view.

If the classes outside a list were removed after scoring, their share of the scores would be lost,
and sets at the same threshold would shrink. So scores are computed among the classes of the list.
Its own threshold brings the mean size back to K.

The table of occurrences says how much more common each class is at the place of a photo
(:meth:`florilege.models.regions.Occurrences.log_lift`). This is multiplied by a strength, which
the photos choose, and added to the logits of the network.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.photo_groups import FEWEST_GROUPS, MadeFrom, groups_of, one_of_each
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import open_occurrences
from florilege.calibration.rules import NoisyLabels, class_prior
from florilege.calibration.sets import Bools, Floats, Ints
from florilege.calibration.view import PLAIN, Indices, Scoring, View
from florilege.data.layouts import photo_places
from florilege.data.records import Split
from florilege.errors import DataError, first
from florilege.models.bundle import Bundle
from florilege.models.classes import ClassTable, SpeciesNames
from florilege.models.regions import COLUMNS, Occurrences, Place, PlaceKind, month_of
from florilege.tables import Table, demand_columns, read_table

_FEWEST_PLACES = 100


def _read_occurrences(path: Path, classes: ClassTable, say: Callable[[str], None]) -> Occurrences:
    """Read ``region,month,class_id,weight``; ``say`` is called about species the model lacks.

    A species is named by its class id, GBIF key or scientific name, as `SpeciesNames` reads them.

    Raises:
        DataError: The file is unreadable, a month or weight is invalid, or no species is a class.
    """
    table = read_table(path)
    demand_columns(str(path), table, COLUMNS)
    names = SpeciesNames(classes)
    index_of = {name: names.index(name) for name in dict.fromkeys(table["class_id"])}
    unknown = [name for name, index in index_of.items() if index is None]
    regions, months, indices, weights = _records(path, table, index_of)
    if not regions:
        raise DataError(
            f"{path}: none of its species is a class of the model, by id, GBIF key or scientific "
            f"name: {first(unknown) or 'it has no rows'}"
        )
    if unknown:
        say(f"{len(unknown):,} species of {path} are not among the classes of the model")
    return Occurrences.of(regions, months, indices, weights, classes=len(classes))


def _records(
    path: Path, table: Table, index_of: Mapping[str, int | None]
) -> "tuple[list[str], array[int], array[int], array[float]]":
    """Regions, months, class indices and weights of the rows whose species is a class."""
    regions, months, indices, weights = list[str](), array("b"), array("i"), array("d")
    # Rows are numbered as an editor shows them: the header is the first.
    for number, cells in enumerate(zip(*(table[name] for name in COLUMNS), strict=True), 2):
        try:
            place, weight = _checked(cells)
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
        if (class_index := index_of[cells[2]]) is not None:
            regions.append(place.region)
            months.append(place.month)
            indices.append(class_index)
            weights.append(weight)
    return regions, months, indices, weights


def _checked(cells: Sequence[str]) -> tuple[Place, float]:
    region, month, _, weight = (cell.strip() for cell in cells)
    if not region:
        raise ValueError("the region is empty")
    if not 0 < float(weight) < np.inf:
        raise ValueError(f"the weight must be above 0, got {weight}")
    return Place(region, month_of(month)) if month else Place(region), float(weight)


class PhotoPlaces(NamedTuple):
    """The places of the photos of a split."""

    occurrences: Occurrences
    places: Sequence[Place | None]  # one for each photo
    simulated: bool  # whether they were drawn from the records of the photo's species

    @classmethod
    def of(
        cls, occurrences: Occurrences, places: Sequence[Place | None] | None, labels: Ints
    ) -> "PhotoPlaces":
        """The places that the data name; drawn if there are fewer than 100 with records."""
        usable = [
            place if place and occurrences.knows(place.region) else None for place in places or ()
        ]
        if len(usable) - usable.count(None) < _FEWEST_PLACES:
            return cls(occurrences, occurrences.draw(labels), simulated=True)
        return cls(occurrences, usable, simulated=False)

    def known(self, kind: PlaceKind) -> list[Place | None]:
        """What a request of this kind says of each photo; None where that is not known."""
        if kind == "region":
            return [place and Place(place.region) for place in self.places]
        return [place if place and place.kind == kind else None for place in self.places]


def places_of(
    bundle: Bundle, data: str, photos: Split, file: str | None, say: Callable[[str], None]
) -> PhotoPlaces | None:
    """The table of occurrences, from ``file`` or the bundle, and the places of the photos."""
    occurrences = None
    if file is None:
        occurrences = open_occurrences(bundle)
    elif file != "none":
        occurrences = _read_occurrences(Path(file), bundle.classes, say)
    if occurrences is None:
        return None
    places = photo_places(data, photos.names, occurrences.cell_degrees)
    return PhotoPlaces.of(occurrences, places, photos.labels)


Block = tuple[Floats, Ints | None]  # scores, and labels if known
# A table takes four passes over its scores: those of small views are kept for all of them.
_KEPT_BYTES = 16 * 2**20
_KEPT_LIFTS = 256  # places whose lifts are kept while the photos are scored


@dataclass(frozen=True, kw_only=True)
class Source:
    """Scores of one view, in blocks of rows."""

    blocks: Callable[[], Iterator[Block]]  # starts a new pass over the scores
    rows: int  # total number of rows
    classes: int  # number of scored classes
    scoring: Scoring
    view: View = PLAIN
    made_from: MadeFrom | None = None  # what the photos of a row have in common; None for one
    observations: Ints | None = None  # the observation of each row; None where they are unknown
    candidates: int = 1  # how many scores the photos compared
    noise: NoisyLabels | None = None  # the assumption about wrong labels
    counts: ArrayLike = ()  # training images of the scored classes, (classes,), to weight them by

    @property
    def enough(self) -> bool:
        """Whether a view gets thresholds of its own: from 100 rows on, or for a list alone one."""
        return self.rows >= (1 if self.view == View(list=self.view.list) else FEWEST_GROUPS)

    @property
    def independent(self) -> bool:
        """Whether each row shows an observation of its own, as far as the data tell."""
        return self.made_from != "same_class" and self.one_of_each is None

    @cached_property
    def one_of_each(self) -> Bools | None:
        """A mask of one row of each observation, ``(rows,)``; None where every row is."""
        if self.observations is None or np.unique(self.observations).size == self.rows:
            return None
        return one_of_each(self.observations)


class _Shown(NamedTuple):
    """The rows of a split that show a view."""

    rows: Ints  # row of each photo, (groups, photos)
    labels: Ints  # true class among those that are scored, (groups,)
    made_from: MadeFrom | None
    classes: Indices | None  # the scored classes; None for all
    places: Sequence[Place] | None  # of each group


def _kept(blocks: Callable[[], Iterator[Block]]) -> Callable[[], Iterator[Block]]:
    """The same blocks, computed in the first pass alone; nothing may write to them."""
    every = list[Block]()

    def again() -> Iterator[Block]:
        if not every:
            every.extend(blocks())
            for scores, _ in every:
                scores.setflags(write=False)
        return iter(every)

    return again


@dataclass(frozen=True, kw_only=True)
class LabelledPhotos:
    """The outputs of a split, with what is known beside the pictures."""

    outputs: SplitOutputs
    counts: Ints  # training images of each class, (classes,)
    lists: Mapping[str, Sequence[int]]  # classes of each list, ascending
    places: PhotoPlaces | None = None
    noise: NoisyLabels | None = None  # the assumption about wrong labels
    _shown: dict[View, _Shown] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        record: CalibrationRecord,
        outputs: SplitOutputs,
        noise: NoisyLabels | None = None,
        places: PhotoPlaces | None = None,
    ) -> "LabelledPhotos":
        """Other photos, to be scored as a record says."""
        lists = {region.name: region.classes for region in record.lists}
        counts = np.array(record.class_counts)
        return cls(outputs=outputs, counts=counts, lists=lists, places=places, noise=noise)

    def part(self, mask: Bools) -> "LabelledPhotos":
        """The photos under a mask, ``(photos,)``."""
        places = self.places
        if places is not None:
            places = places._replace(places=list(compress(places.places, mask)))
        # Groups that were made of the whole have other rows.
        return replace(self, outputs=self.outputs.part(mask), places=places, _shown={})

    def source(
        self,
        view: View,
        scoring: Scoring,
        *,
        strength: float = 0.0,
        candidates: int = 1,
        most: int | None = None,
    ) -> Source:
        """The scores of the rows that show a view; with ``most``, evenly drawn from them.

        ``strength`` is that of a place, if the view has one.
        """
        outputs, showing = self.outputs, self._showing(view)
        step = 1 if most is None else max(1, -(-len(showing.rows) // most))
        rows, labels = showing.rows[::step], showing.labels[::step]
        places = None if showing.places is None else showing.places[::step]
        noise, prior, counts = self._noise(view), class_prior(self.counts), self.counts
        if showing.classes is not None:
            counts = counts[showing.classes]
        at_once = max(1, outputs.rows_at_once(scoring.head) // view.photos)

        def blocks() -> Iterator[Block]:
            lift = self._lifts(strength)
            for start in range(0, len(rows), at_once):
                part = slice(start, start + at_once)
                groups = rows[part]
                logits = outputs.rows(scoring.head, groups.reshape(-1)).reshape(*groups.shape, -1)
                lifts = (
                    None if places is None else np.stack([lift(place) for place in places[part]])
                )
                scores = scoring.scores(logits, lift=lifts, classes=showing.classes, prior=prior)
                yield scores, labels[part]

        observations = outputs.observations
        small = 8 * len(rows) * len(counts) <= _KEPT_BYTES
        return Source(
            blocks=_kept(blocks) if small else blocks,
            rows=len(rows),
            classes=len(counts),
            scoring=scoring,
            view=view,
            made_from=showing.made_from,
            observations=None
            if observations is None or view.photos > 1
            else observations[rows[:, 0]],
            candidates=candidates,
            noise=noise,
            counts=counts,
        )

    def _noise(self, view: View) -> NoisyLabels | None:
        """The assumption about the labels of the rows that show a view."""
        noisy = self.noise
        if noisy is None:
            return None
        if view.list is not None:
            classes = np.array(self.lists[view.list], dtype=np.int64)
            noisy = noisy.among(classes, self.outputs.labels)
        return noisy if view.photos == 1 else noisy.together

    def _showing(self, view: View) -> _Shown:
        """The rows that show a view: single photos, or groups of photos of one observation.

        Where the data name too few observations, groups show one species.
        """
        if view not in self._shown:
            alone = View(photos=view.photos)
            self._shown[view] = (
                self._groups(view.photos)
                if view == alone
                else self._part(self._showing(alone), view)
            )
        return self._shown[view]

    def _groups(self, photos: int) -> _Shown:
        labels, made_from = self.outputs.labels, None
        rows = np.arange(len(labels))[:, np.newaxis]
        if photos > 1:
            rows, made_from = groups_of(labels, size=photos, observations=self.outputs.observations)
        return _Shown(rows, labels[rows[:, 0]], made_from, None, None)

    def _part(self, whole: _Shown, view: View) -> _Shown:
        """The groups of a list's classes whose place is known."""
        rows, labels, classes, places = whole.rows, whole.labels, None, None
        if view.list is not None:
            classes = np.array(self.lists[view.list], dtype=np.intp)
            listed = np.isin(labels, classes)
            # The classes of a list ascend, so a label's place among them is its index in the
            # scores.
            rows, labels = rows[listed], np.searchsorted(classes, labels[listed])
        if view.place is not None:
            assert self.places is not None  # views with a place need a table of occurrences
            of_photos = self.places.known(view.place)
            of_rows = [of_photos[row] for row in rows[:, 0].tolist()]  # a request names one place
            mask = np.array([place is not None for place in of_rows], dtype=np.bool_)
            rows, labels = rows[mask], labels[mask]
            places = [place for place in of_rows if place is not None]
        return _Shown(rows, labels, whole.made_from, classes, places)

    @property
    def one_of_each(self) -> Bools:
        """A mask of one photo of each observation, ``(photos,)``; of all where none is named."""
        rows, observations = len(self.outputs.labels), self.outputs.observations
        return one_of_each(np.arange(rows) if observations is None else observations)

    def _lifts(self, strength: float) -> Callable[[Place], Floats]:
        """What a place adds to scaled logits, ``(classes,)``."""

        @lru_cache(_KEPT_LIFTS)
        def lift(place: Place) -> Floats:
            assert self.places is not None
            return strength * self.places.occurrences.log_lift(place)

        return lift

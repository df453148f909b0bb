"""Thresholds for photos whose place, or place and month, is known.

Their logits are those of the network plus a strength times how much more common each class is
there (:meth:`florilege.models.occurrences.Occurrences.log_lift`). The photos choose the strength,
and each kind of place has thresholds of its own, since the scores have other sizes.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import compress, islice
from typing import NamedTuple, get_args

import numpy as np

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.score_sources import Block, Source
from florilege.calibration.calibrate.threshold_tables import sets_by_k, tabulate
from florilege.calibration.nested_cross_validation import choose_simplest
from florilege.calibration.record.origin import PlacePrior
from florilege.calibration.record.schema import Table
from florilege.calibration.scores import scale_logits, scores
from florilege.calibration.validation import Floats, Ints
from florilege.models.occurrences import Occurrences, Place, PlaceKind

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # 1 is Bayes' rule, if observers were everywhere
FEWEST_PLACES = 100
NOWHERE = Place("")


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
        if len(usable) - usable.count(None) < FEWEST_PLACES:
            return cls(occurrences, occurrences.draw(labels), simulated=True)
        return cls(occurrences, usable, simulated=False)


def place_tables(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    single: Source,
    photos: PhotoPlaces,
    weights: Floats,
) -> tuple[PlacePrior, list[Table]]:
    """The strength of the prior, and tables of every rule at the requested K and coverages.

    There are tables for photos with a region and for those with region and month, if 100 photos or
    more have one; none where the prior gains nothing. ``single`` are the served scores of single
    photos, ``weights`` those of the balanced rules, ``(classes,)``.
    """
    source = partial(_source, outputs, single, photos)
    kinds = [kind for kind in get_args(PlaceKind) if source(kind, 0).rows >= FEWEST_PLACES]
    strength, gain = 0.0, 0.0
    if kinds:
        hits = np.stack([sets_by_k(source(kinds[-1], each), plan)[1] for each in STRENGTHS])
        choice, gains = choose_simplest(hits, plants=source(kinds[-1], 0).plants)
        strength, gain = STRENGTHS[choice], float(gains[plan.compared.index(plan.default_k)])
    tables = list[Table]()
    for kind in kinds if strength else ():
        tables += tabulate(source(kind, strength), plan, plan.compared, weights=weights).tables
    prior = PlacePrior(
        strength=strength,
        gain=gain,
        rows=source(kinds[-1], 0).rows if kinds else 0,
        simulated=photos.simulated,
        occurrences_sha256=photos.occurrences.sha256,
    )
    return prior, tables


def _source(
    outputs: SplitOutputs, single: Source, photos: PhotoPlaces, kind: PlaceKind, strength: float
) -> Source:
    """The scores of the photos of which this much is known."""
    places = [each or NOWHERE for each in photos.places]
    if kind == "region":
        places = [Place(each.region) for each in places]
    mask = np.array([(each.kind, bool(each.region)) == (kind, True) for each in places])
    lift = lru_cache(photos.occurrences.log_lift)

    def blocks() -> Iterator[Block]:
        lifts = (lift(place) for place in compress(places, mask))
        for (logits,), labels in outputs.blocks(single.head, among=mask):
            scaled = scale_logits(logits, single.temperature)
            added = strength * np.stack(list(islice(lifts, len(labels))))
            yield scores(scaled + added, single.score_kind), labels

    return single.of_rows(mask, blocks, place=kind)

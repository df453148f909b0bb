"""Choose the scores to serve: head and kind, temperature, strength of a place, fusion of photos.

Each choice is made by hits at every requested K. A choice after the first departs from the simplest
candidate only if it clearly hits more, see :mod:`florilege.calibration.comparison`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from florilege.calibration.calibrate.score_sources import LabelledPhotos, Source
from florilege.calibration.calibrate.threshold_tables import (
    Tabulated,
    sets_by_k,
    tabulate,
)
from florilege.calibration.comparison import choose, choose_simplest
from florilege.calibration.record import Table
from florilege.calibration.scores import EXPONENTS, Fusion
from florilege.calibration.sets import Bools
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import PLAIN, Scoring, View
from florilege.terminal import Advance

SIZE_TOLERANCE = 1.05
"""Sets larger than this times K hit more because of their size, not because of their scores.

Where many scores are equal, as in a barely trained network, ties at the cut enlarge the sets."""
TEMPERATURE_ROWS = 5000  # photos that choose the temperature; more would only cost time
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # 1 is Bayes' rule, if observers were everywhere
_FUSION_ROWS = 2000  # groups that choose how several photos are fused


class Choice(NamedTuple):
    """The scores to serve, and what the photos compared to choose them."""

    scoring: Scoring
    compared: int  # pairs of head and kind, and temperatures, that were measured
    possible: int  # choices that were possible, for a promise to allow for
    honest_hit_rate: float  # of such a choice on other photos
    others: list[Table]  # tables of the pairs that do not serve


class PlaceChoice(NamedTuple):
    """How much a place counts."""

    strength: float
    gain: float  # hit rate at the default K that it gains, on photos that did not choose
    rows: int  # photos that chose it


def choose_scoring(photos: LabelledPhotos, plan: CalibrationPlan, advance: Advance) -> Choice:
    """Choose head and kind of score by their hits, then the temperature."""
    results = list[Tabulated]()
    for head, kind, temperature in plan.candidates(photos.outputs.heads):
        scoring = Scoring(head=head, score_kind=kind, temperature=temperature)
        results.append(tabulate(photos.source(PLAIN, scoring), plan, plan.compared))
        advance()
    eligible = _eligible(results, plan.default_k)
    choice, honest_hit_rate = choose(
        [result.hits for result in eligible], observations=photos.observations
    )
    served, gain = eligible[choice].table.scoring, 0.0
    softmax = [result for result in eligible if result.table.scoring.score_kind == "softmax"]
    temperatures = plan.temperatures_for(len(results))[1:] if softmax else ()
    if temperatures:
        head = max(softmax, key=lambda result: result.hits.sum()).table.scoring.head
        served, gain = _choose_temperature(photos, plan, served, head, temperatures)
    return Choice(
        scoring=served,
        compared=len(results) + len(temperatures),
        possible=len(results) + len(softmax) * len(temperatures),  # any head could have got any
        honest_hit_rate=min(1.0, honest_hit_rate + gain),
        others=[result.table for result in results if result.table.scoring != served],
    )


def _eligible(results: Sequence[Tabulated], k: float) -> list[Tabulated]:
    """The candidates with sets of the requested size; the smallest sets if ties enlarge all."""
    sizes = np.array([measurement.sizes.mean() for measurement in results])
    rows = np.flatnonzero(sizes <= SIZE_TOLERANCE * k).tolist() or [int(sizes.argmin())]
    return [results[row] for row in rows]


def _choose_temperature(
    photos: LabelledPhotos,
    plan: CalibrationPlan,
    base: Scoring,
    head: str,
    temperatures: Sequence[float],
) -> tuple[Scoring, float]:
    """Softmax scores at a temperature that clearly hits more than ``base``, or else ``base``."""
    step = -(-len(photos.labels) // TEMPERATURE_ROWS)
    softmax = partial(Scoring, head=head, score_kind="softmax")
    candidates = [base, *(softmax(temperature=temperature) for temperature in temperatures)]
    sources = [photos.source(PLAIN, scoring, step=step) for scoring in candidates]
    index, gain = _choose_source(sources, plan)
    return candidates[index], gain


def choose_fusion(
    photos: LabelledPhotos, plan: CalibrationPlan, base: Scoring, number: int
) -> tuple[Fusion, int]:
    """How so many photos are fused, and how many ways were compared.

    Groups of one species would not tell: their photos err too independently. Sigmoid scores have no
    product.
    """
    view = View(photos=number)
    if number == 1 or base.score_kind != "softmax" or not photos.shows(view):
        return None, 1
    if photos.showing(view).made_from == "same_class":
        return None, 1
    fusions: list[Fusion] = [None, *EXPONENTS]
    step = -(-len(photos.showing(view).rows) // _FUSION_ROWS)
    sources = [photos.source(view, replace(base, fusion=fusion), step=step) for fusion in fusions]
    return fusions[_choose_source(sources, plan)[0]], len(fusions)


def choose_strength(photos: LabelledPhotos, plan: CalibrationPlan, scoring: Scoring) -> PlaceChoice:
    """How much a place counts: 0 where it gains nothing, or no view has one."""
    kinds = [kind for kind in plan.place_kinds if photos.places and photos.shows(View(place=kind))]
    if not kinds:
        return PlaceChoice(0.0, 0.0, 0)
    view = View(place=kinds[-1])
    sources = [photos.source(view, scoring, strength=strength) for strength in STRENGTHS]
    index, gain = _choose_source(sources, plan)
    return PlaceChoice(STRENGTHS[index], gain, sources[0].rows)


def _choose_source(sources: Sequence[Source], plan: CalibrationPlan) -> tuple[int, float]:
    """The index of the simplest scores that hit clearly most, the simplest first, and their gain.

    The gain is that in the hit rate at the default K. Scores whose ties enlarge sets are left out.
    """
    hits = list[Bools]()
    for source in sources:
        sizes, of_source = sets_by_k(source, plan)
        too_large = sizes.mean(axis=0) > SIZE_TOLERANCE * np.array(plan.compared)
        hits.append(hits[0] if hits and too_large.any() else of_source)
    index, gains = choose_simplest(np.stack(hits), observations=sources[0].observations)
    return index, float(gains[plan.compared.index(plan.default_k)])

"""Choose the scores to serve: head and kind, temperature, strength of a place, fusion of photos.

Each choice is made by hits at every requested K. A choice after the first departs from the simplest
candidate only if it clearly hits more, see :mod:`florilege.calibration.comparison`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from florilege.calibration.calibrate.score_sources import LabelledPhotos
from florilege.calibration.calibrate.threshold_tables import (
    Tabulated,
    tabulate,
)
from florilege.calibration.comparison import choose, choose_simplest
from florilege.calibration.record import PlacePrior, Table
from florilege.calibration.scores import EXPONENTS, Fusion
from florilege.calibration.sets import Bools, Floats
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import PLAIN, Scoring, View
from florilege.terminal import Advance

SIZE_TOLERANCE = 1.05
"""Sets larger than this times K hit more because of their size, not because of their scores.

Where many scores are equal, as in a barely trained network, ties at the cut enlarge the sets."""
TEMPERATURE_ROWS = 5000  # photos that choose the temperature; more would only cost time
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # 1 is Bayes' rule, if observers were everywhere
_FUSION_ROWS = 2000  # groups that choose how several photos are fused


class ViewScores(NamedTuple):
    """How the logits of a view become scores."""

    view: View
    scoring: Scoring
    strength: float = 0.0  # of the place
    candidates: int = 1  # how many such scores the photos compared that calibrate


class Choice(NamedTuple):
    """The scores to serve, and what the photos compared to choose them."""

    scoring: Scoring  # of single photos
    compared: int  # pairs of head and kind, and temperatures, that were measured
    possible: int  # choices that were possible
    honest_hit_rate: float  # of such a choice on other photos
    others: list[Table]  # tables of the pairs that do not serve
    place: PlacePrior | None = None
    views: Sequence[ViewScores] = ()  # the plain one comes first


def choose_scores(
    photos: LabelledPhotos,
    plan: CalibrationPlan,
    candidates: Sequence[Sequence[Scoring]],
    views: Sequence[View],
    advance: Advance,
) -> Choice:
    """Choose the scores of all views, those of single photos among the candidates of the plan."""
    choice = _choose_scoring(photos, plan, candidates, advance)
    place = _choose_strength(photos, plan, choice.scoring, views)
    strength = 0.0 if place is None else place.strength
    fusions = {
        number: _choose_fusion(photos, plan, choice.scoring, number)
        for number in dict.fromkeys(view.photos for view in views)
    }
    served = list[ViewScores]()
    for view in views:
        fusion, ways = fusions[view.photos]
        compared = choice.possible * ways * (1 if view.place is None else len(STRENGTHS))
        if photos.among is not None:  # others calibrate, which compared nothing
            compared = 1
        scoring = replace(choice.scoring, fusion=fusion)
        served.append(ViewScores(view, scoring, strength, compared))
    return choice._replace(place=place, views=served)


def _choose_scoring(
    photos: LabelledPhotos,
    plan: CalibrationPlan,
    candidates: Sequence[Sequence[Scoring]],
    advance: Advance,
) -> Choice:
    """Choose head and kind of score by their hits, then the temperature."""
    results = list[Tabulated]()
    for scoring, *_ in candidates:
        source = photos.source(PLAIN, scoring)
        results.append(tabulate(source, plan, "unweighted"))
        advance()
    place, k = plan.compared.index(plan.default_k), plan.default_k
    hits = np.stack([result.hits[:, place] for result in results])  # (candidates, rows)
    eligible = _eligible(np.array([result.sizes[:, place].mean() for result in results]), k)
    index, honest_hit_rate = choose(hits[eligible], observations=photos.observations)
    served, temperatures, gain = candidates[eligible[index]][0], list[Scoring](), 0.0
    softmax = [index for index in eligible if len(candidates[index]) > 1]
    if softmax:
        best = max(softmax, key=lambda index: hits[index].sum())
        temperatures += candidates[best][1:]
        options = [ViewScores(PLAIN, scoring) for scoring in (served, *temperatures)]
        index, gain = _simplest(photos, plan, options, most=TEMPERATURE_ROWS)
        served = options[index].scoring
    return Choice(
        scoring=served,
        compared=len(results) + len(temperatures),
        possible=len(results) + len(softmax) * len(temperatures),  # any head could have got any
        honest_hit_rate=min(1.0, honest_hit_rate + gain),
        others=[result.table for result in results if result.table.scoring != served],
    )


def _eligible(sizes: Floats, k: float) -> list[int]:
    """The candidates with sets of the requested size; the smallest sets if ties enlarge all."""
    return np.flatnonzero(sizes <= SIZE_TOLERANCE * k).tolist() or [int(sizes.argmin())]


def _choose_strength(
    photos: LabelledPhotos, plan: CalibrationPlan, scoring: Scoring, views: Sequence[View]
) -> PlacePrior | None:
    """How much a place alone counts, by the last such view that enough photos show: 0 by default.

    None without places.
    """
    if photos.places is None:
        return None
    prior = PlacePrior(
        strength=0.0,
        gain=0.0,
        rows=0,
        simulated=photos.places.simulated,
        occurrences_sha256=photos.places.occurrences.sha256,
    )
    placed = [view for view in views if view.place and view == View(place=view.place)]
    sources = [source for view in placed if (source := photos.source(view, scoring)).enough]
    if not sources:
        return prior
    options = [ViewScores(sources[-1].view, scoring, strength) for strength in STRENGTHS]
    index, gain = _simplest(photos, plan, options)
    rate = 0.0 if photos.noise is None else photos.noise.noise.rate
    gain /= 1 - rate  # both sizes are K
    return replace(prior, strength=STRENGTHS[index], gain=gain, rows=sources[-1].rows)


def _choose_fusion(
    photos: LabelledPhotos, plan: CalibrationPlan, base: Scoring, number: int
) -> tuple[Fusion, int]:
    """How so many photos are fused, and how many ways were compared.

    Groups of one species would not tell: their photos err too independently. Sigmoid scores have no
    product.
    """
    source = photos.source(View(photos=number), base)
    if number == 1 or base.score_kind != "softmax" or not source.enough:
        return None, 1
    if source.made_from == "same_class":
        return None, 1
    fusions: list[Fusion] = [None, *EXPONENTS]
    options = [ViewScores(source.view, replace(base, fusion=fusion)) for fusion in fusions]
    index, _ = _simplest(photos, plan, options, most=_FUSION_ROWS)
    return fusions[index], len(fusions)


def _simplest(
    photos: LabelledPhotos,
    plan: CalibrationPlan,
    options: Sequence[ViewScores],
    *,
    most: int | None = None,
) -> tuple[int, float]:
    """The index of the simplest scores that hit clearly most, the simplest first, and their gain.

    The gain is that in the hit rate at the default K. Scores whose ties enlarge sets are left out.
    At ``most`` so many rows choose.
    """
    hits = list[Bools]()
    for view, scoring, strength, _ in options:
        source = photos.source(view, scoring, strength=strength, most=most)
        tabulated = tabulate(source, plan, "sizes")
        too_large = tabulated.sizes.mean(axis=0) > SIZE_TOLERANCE * np.array(plan.compared)
        hits.append(hits[0] if hits and too_large.any() else tabulated.hits)
    index, gains = choose_simplest(np.stack(hits), observations=source.observations)
    return index, float(gains[plan.compared.index(plan.default_k)])

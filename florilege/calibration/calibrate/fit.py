"""Fit a calibration record to the logits of a split: choose the scores, then every threshold.

Head and kind, temperature, strength of a place, and fusion of photos are each chosen by hits at
every requested K. A choice after the first departs from the simplest candidate only if it clearly
hits more, see :mod:`florilege.calibration.comparison`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.score_sources import LabelledPhotos, PhotoPlaces
from florilege.calibration.calibrate.threshold_tables import (
    Tabulated,
    tabulate,
)
from florilege.calibration.calibrate.training_photos import PhotoOverlap, fit_familiarity
from florilege.calibration.comparison import choose, choose_simplest, interval_of_best
from florilege.calibration.record import (
    CalibratedList,
    CalibrationRecord,
    OperatingPoint,
    Origin,
    PlacePrior,
    Selection,
    ShotGroup,
    Table,
    measure_by_shots,
    size_bins,
)
from florilege.calibration.reference import Reference
from florilege.calibration.rules import NoisyLabels
from florilege.calibration.scores import EXPONENTS, Fusion
from florilege.calibration.sets import Bools, Floats, Ints
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import PLAIN, Scoring, View
from florilege.terminal import Advance, progress

SIZE_TOLERANCE = 1.05
"""Sets larger than this times K hit more because of their size, not because of their scores.

Where many scores are equal, as in a barely trained network, ties at the cut enlarge the sets."""
TEMPERATURE_ROWS = 5000  # photos that choose the temperature; more would only cost time
# 1 would be Bayes' rule, if observers were everywhere.
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_FUSION_ROWS = 2000  # groups that choose how several photos are fused


def fit_record(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    *,
    class_counts: Ints | None,
    overlap: PhotoOverlap = PhotoOverlap(),  # noqa: B008  # unknown overlap; immutable
    choosing: Bools | None = None,
    reference: Reference | None = None,
    places: PhotoPlaces | None = None,
    noise: NoisyLabels | None = None,
) -> CalibrationRecord:
    """Choose the scores to serve, calibrate every rule for every view, and measure all of them.

    ``class_counts`` are training images, ``(classes,)``; None counts the photos of the split. The
    rows under ``choosing`` choose head, kind of score, temperature, strength and fusion, the others
    calibrate; None lets all do both. ``overlap`` is that of the rows that calibrate. A
    ``reference``, for a plan with a rejection method, needs outputs with features. ``noise`` is
    what is assumed of wrong labels; None takes them as right.
    """
    counts = class_counts
    if counts is None:
        counts = np.bincount(outputs.labels, minlength=plan.classes)
    photos = choosers = LabelledPhotos(
        outputs=outputs,
        counts=counts,
        lists={region.name: region.classes for region in plan.lists},
        places=places,
        noise=noise,
    )
    if choosing is not None:
        photos, choosers = photos.part(~choosing), photos.part(choosing)
    views = plan.views(places=places is not None)
    candidates = plan.candidates(outputs.heads)
    with progress(len(candidates) + len(views) + 1, "choosing thresholds") as advance:
        choice = _choose_scores(choosers, plan, candidates, views, advance)
        # Other photos calibrate, which compared nothing.
        if choosing is not None:
            choice = choice._replace(views=[view._replace(candidates=1) for view in choice.views])
        tabulated = _tabulate_views(photos, plan, choice, overlap.networks or 1, advance)
        single = next(tabulated)
        tables = [single.table, *(other.table for other in tabulated)]
        distribution, rejection = fit_familiarity(photos, choice.scoring, plan, reference)
        advance()
    record = CalibrationRecord(
        calibration_id="",
        created=datetime.now(UTC).isoformat(),
        classes=plan.classes,
        scoring=choice.scoring,
        asked_k=plan.ks,
        asked_coverage=plan.coverages,
        measured=_origin(outputs, photos, overlap, choice),
        selection=_selection(choice, single, plan, photos),
        class_counts=tuple(counts.tolist()),
        class_counts_from=outputs.split if class_counts is None else "train",
        macro_weight=plan.macro_weight,
        size_bins=tuple(size_bins(plan.classes).tolist()),
        distribution=distribution,
        rejection=rejection,
        shots=(),
        lists=tuple(CalibratedList.of(region, photos.outputs.labels) for region in plan.lists),
        tables=(*tables, *choice.others),
        place_prior=choice.place,
    )
    # From the record that is not complete yet: it alone knows the certificate and the largest set.
    shots = _shots(single, plan, photos, class_counts, record.default_point)
    return replace(record, selection=_known(record), shots=shots).with_id()


class _ViewScores(NamedTuple):
    """How the logits of a view become scores."""

    view: View
    scoring: Scoring
    strength: float = 0.0  # of the place
    candidates: int = 1  # how many such scores the photos compared that calibrate


class _Choice(NamedTuple):
    """The scores to serve, and what the photos compared to choose them."""

    scoring: Scoring  # of single photos
    compared: int  # pairs of head and kind, and temperatures, that were measured
    possible: int  # choices that were possible
    honest_hit_rate: float  # of such a choice on other photos
    others: list[Table]  # tables of the pairs that do not serve
    place: PlacePrior | None = None
    views: Sequence[_ViewScores] = ()  # the plain one comes first


def _choose_scores(
    photos: LabelledPhotos,
    plan: CalibrationPlan,
    candidates: Sequence[Sequence[Scoring]],
    views: Sequence[View],
    advance: Advance,
) -> _Choice:
    """Choose the scores of all views, those of single photos among the candidates of the plan."""
    choice = _choose_scoring(photos, plan, candidates, advance)
    place = _choose_strength(photos, plan, choice.scoring, views)
    strength = 0.0 if place is None else place.strength
    fusions = {
        number: _choose_fusion(photos, plan, choice.scoring, number)
        for number in dict.fromkeys(view.photos for view in views)
    }
    served = list[_ViewScores]()
    for view in views:
        fusion, ways = fusions[view.photos]
        compared = choice.possible * ways * (1 if view.place is None else len(STRENGTHS))
        scoring = replace(choice.scoring, fusion=fusion)
        served.append(_ViewScores(view, scoring, strength, compared))
    return choice._replace(place=place, views=served)


def _choose_scoring(
    photos: LabelledPhotos,
    plan: CalibrationPlan,
    candidates: Sequence[Sequence[Scoring]],
    advance: Advance,
) -> _Choice:
    """Choose head and kind of score by their hits, then the temperature."""
    results = list[Tabulated]()
    for scoring, *_ in candidates:
        source = photos.source(PLAIN, scoring)
        results.append(tabulate(source, plan, "unweighted"))
        advance()
    place, k = plan.compared.index(plan.default_k), plan.default_k
    hits = np.stack([result.hits[:, place] for result in results])  # (candidates, rows)
    eligible = _eligible(np.array([result.sizes[:, place].mean() for result in results]), k)
    index, honest_hit_rate = choose(hits[eligible], observations=photos.outputs.observations)
    served, temperatures, gain = candidates[eligible[index]][0], list[Scoring](), 0.0
    softmax = [index for index in eligible if len(candidates[index]) > 1]
    if softmax:
        best = max(softmax, key=lambda index: hits[index].sum())
        temperatures += candidates[best][1:]
        options = [_ViewScores(PLAIN, scoring) for scoring in (served, *temperatures)]
        index, gain = _simplest(photos, plan, options, most=TEMPERATURE_ROWS)
        served = options[index].scoring
    return _Choice(
        scoring=served,
        compared=len(results) + len(temperatures),
        # Any head could have been the best, and then have got any temperature.
        possible=len(results) + len(softmax) * len(temperatures),
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
    options = [_ViewScores(sources[-1].view, scoring, strength) for strength in STRENGTHS]
    index, gain = _simplest(photos, plan, options)
    rate = 0.0 if photos.noise is None else photos.noise.noise.rate
    # Sets hold the label in (1 - e) hits + e chance of all cases. The mean size is K at every
    # strength, and so is the chance: only the factor remains of a difference.
    gain /= 1 - rate
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
    options = [_ViewScores(source.view, replace(base, fusion=fusion)) for fusion in fusions]
    index, _ = _simplest(photos, plan, options, most=_FUSION_ROWS)
    return fusions[index], len(fusions)


def _simplest(
    photos: LabelledPhotos,
    plan: CalibrationPlan,
    options: Sequence[_ViewScores],
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
        # Sets enlarged by ties get the hits of the simplest scores: with no gain they are never
        # chosen.
        hits.append(hits[0] if hits and too_large.any() else tabulated.hits)
    index, gains = choose_simplest(np.stack(hits), observations=source.observations)
    return index, float(gains[plan.compared.index(plan.default_k)])


def _tabulate_views(
    photos: LabelledPhotos, plan: CalibrationPlan, choice: _Choice, networks: int, advance: Advance
) -> Iterator[Tabulated]:
    """The thresholds of the plain view, then those of every other that enough photos show."""
    for view, scoring, strength, candidates in choice.views:
        total = networks * candidates
        source = photos.source(view, scoring, strength=strength, candidates=total)
        # Without strength a place changes no score, and the thresholds of the view without it
        # serve.
        if source.enough and (view.place is None or strength > 0):
            yield tabulate(source, plan)
        advance()


def _origin(
    outputs: SplitOutputs, photos: LabelledPhotos, overlap: PhotoOverlap, choice: _Choice
) -> Origin:
    measured = photos.outputs
    choosing_rows = len(outputs.labels) - len(measured.labels)
    return Origin(
        split=outputs.split,
        rows=len(measured.labels),
        choosing_rows=choosing_rows,
        classes_seen=np.unique(measured.labels).size,
        data_sha256=outputs.data_sha256,
        model_sha256=outputs.model_sha256,
        runtime=outputs.runtime.name,
        precision=outputs.runtime.precision,
        decoder=outputs.decoder,
        observations=measured.plants,
        **overlap._asdict(),
        chose_head=choice.compared > 1 and not choosing_rows,
        label_noise=None if photos.noise is None else photos.noise.noise,
    )


def _selection(
    choice: _Choice, single: Tabulated, plan: CalibrationPlan, photos: LabelledPhotos
) -> Selection:
    """The choice with an honest hit rate: on photos that did not choose, if there are any."""
    hits, table = single.hits[:, plan.compared.index(plan.default_k)], single.table
    hit_rate = float(hits.mean())
    honest = hit_rate if choice.views[0].candidates == 1 else choice.honest_hit_rate
    low, high = interval_of_best(hits, table.candidates, observations=photos.outputs.observations)
    if photos.noise is not None:
        noise, k = photos.noise.noise, plan.grid.index(plan.default_k)
        chance = table.rules[0].counts[k].mean_chance  # of average_k
        hit_rate, honest = (noise.corrected(share, chance) for share in (hit_rate, honest))
        low, high = noise.interval(low, high, chance)
    return Selection(
        k=plan.default_k,
        candidates=choice.compared,
        hit_rate=hit_rate,
        honest_hit_rate=honest,
        honest_ci95=(min(low, honest), high),
    )


def _known(record: CalibrationRecord) -> Selection:
    """The choice without a hit rate to expect that nobody can tell.

    It takes the outputs of all networks that these photos compared, and there are those of one; an
    interval that allows for their number remains.
    """
    choice = record.selection
    if record.default_point.certificate.reasons:
        choice = replace(choice, honest_hit_rate=None, honest_ci95=None)
    elif (record.measured.networks or 1) > 1:
        choice = replace(choice, honest_hit_rate=None)
    return choice


def _shots(
    single: Tabulated,
    plan: CalibrationPlan,
    photos: LabelledPhotos,
    class_counts: Ints | None,
    point: OperatingPoint,
) -> tuple[ShotGroup, ...]:
    # Of wrong labels, a rare species' are others'.
    if class_counts is None or photos.noise is not None:
        return ()
    place = plan.compared.index(plan.default_k)
    return measure_by_shots(
        single.sizes[:, place],
        single.hits[:, place],
        photos.outputs.labels,
        class_counts,
        largest=point.size_bounds[1],
        observations=photos.outputs.observations,
    )

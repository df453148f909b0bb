"""Fit a calibration record to the logits of a split."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import numpy as np

from florilege.calibration.calibrate.choice import Choice, choose_scores
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.score_sources import LabelledPhotos, PhotoPlaces
from florilege.calibration.calibrate.threshold_tables import (
    Tabulated,
    tabulate,
)
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.comparison import interval_of_best
from florilege.calibration.photo_groups import count_observations
from florilege.calibration.record import (
    CalibratedList,
    CalibrationRecord,
    Origin,
    Selection,
    ShotGroup,
    measure_by_shots,
    size_bins,
)
from florilege.calibration.reference import Reference
from florilege.calibration.rejection import (
    RejectionRule,
    UnseenThreshold,
    fit_rejection,
    fit_unseen,
    parts,
)
from florilege.calibration.scores import Distribution, DistributionOf
from florilege.calibration.sets import Bools, Floats, Ints, largest_set
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import Scoring
from florilege.models.regions import RegionList
from florilege.models.session import FEATURES
from florilege.terminal import Advance, progress


def fit_record(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    *,
    class_counts: Ints | None,
    overlap: PhotoOverlap = PhotoOverlap(),  # noqa: B008  # unknown overlap; immutable
    choosing: Bools | None = None,
    reference: Reference | None = None,
    places: PhotoPlaces | None = None,
) -> CalibrationRecord:
    """Choose the scores to serve, calibrate every rule for every view, and measure all of them.

    ``class_counts`` are training images, ``(classes,)``; None counts the photos of the split. The
    rows under ``choosing`` choose head, kind of score, temperature, strength and fusion, the others
    calibrate; None lets all do both. ``overlap`` is that of the rows that calibrate. A
    ``reference``, for a plan with a rejection method, needs outputs with features.
    """
    counts = class_counts
    if counts is None:
        counts = np.bincount(outputs.labels, minlength=plan.classes)
    choosers = LabelledPhotos(
        outputs=outputs,
        counts=counts,
        lists={region.name: region.classes for region in plan.lists},
        places=places,
        among=choosing,
        noise=plan.noise,
    )
    photos = choosers
    if choosing is not None:
        photos = replace(choosers, among=~choosing, _shown={})
    views = plan.views(places=places is not None)
    candidates = plan.candidates(outputs.heads)
    with progress(len(candidates) + len(views) + 1, "choosing thresholds") as advance:
        choice = choose_scores(choosers, plan, candidates, views, advance)
        tabulated = _tabulate_views(photos, plan, choice, overlap.networks or 1, advance)
        single = next(tabulated)
        tables = [single.table, *(other.table for other in tabulated)]
        distribution, rejection = _fit_familiarity(photos, choice.scoring, plan, reference)
        advance()
    return CalibrationRecord(
        calibration_id="",
        created=datetime.now(UTC).isoformat(),
        classes=plan.classes,
        scoring=choice.scoring,
        asked_k=plan.ks,
        asked_coverage=plan.coverages,
        measured=_origin(photos, overlap, choice),
        selection=_selection(choice, single, plan, photos.observations),
        class_counts=tuple(counts.tolist()),
        class_counts_from=outputs.split if class_counts is None else "train",
        macro_weight=plan.macro_weight,
        size_bins=tuple(size_bins(plan.classes).tolist()),
        distribution=distribution,
        rejection=rejection,
        shots=() if class_counts is None else _shots(single, plan, photos),
        lists=tuple(_calibrated_list(region, photos.labels) for region in plan.lists),
        tables=(*tables, *choice.others),
        place_prior=choice.place,
    ).with_id()


def _tabulate_views(
    photos: LabelledPhotos, plan: CalibrationPlan, choice: Choice, networks: int, advance: Advance
) -> Iterator[Tabulated]:
    """The thresholds of the plain view, then those of every other that enough photos show."""
    for view, scoring, strength, candidates in choice.views:
        total = networks * candidates
        source = photos.source(view, scoring, strength=strength, candidates=total)
        if source.enough and (view.place is None or strength > 0):
            yield tabulate(source, plan)
        advance()


def _origin(photos: LabelledPhotos, overlap: PhotoOverlap, choice: Choice) -> Origin:
    outputs = photos.outputs
    return Origin(
        split=outputs.split,
        rows=len(photos.labels),
        choosing_rows=len(outputs.labels) - len(photos.labels),
        classes_seen=np.unique(photos.labels).size,
        data_sha256=outputs.data_sha256,
        model_sha256=outputs.model_sha256,
        runtime=outputs.runtime.name,
        precision=outputs.runtime.precision,
        decoder=outputs.decoder,
        observations=count_observations(photos.observations),
        **overlap._asdict(),
        chose_head=choice.compared > 1 and photos.among is None,
        label_noise=None if photos.noise is None else photos.noise.noise,
    )


def _selection(
    choice: Choice, single: Tabulated, plan: CalibrationPlan, observations: Ints | None
) -> Selection:
    """The choice with an honest hit rate: on photos that did not choose, if there are any."""
    hits, compared = single.hits[:, plan.compared.index(plan.default_k)], choice.compared
    hit_rate, chose_nothing = float(hits.mean()), choice.views[0].candidates == 1
    honest = hit_rate if chose_nothing else choice.honest_hit_rate
    low, high = interval_of_best(hits, 1 if chose_nothing else compared, observations=observations)
    if plan.noise is not None:
        noise, k = plan.noise.noise, plan.grid.index(plan.default_k)
        chance = single.table.rules[0].counts[k].mean_chance  # of average_k
        hit_rate, honest = (noise.corrected(share, chance) for share in (hit_rate, honest))
        low, high = noise.interval(low, high, chance)
    return Selection(
        k=plan.default_k,
        candidates=compared,
        hit_rate=hit_rate,
        honest_hit_rate=honest,
        honest_ci95=(min(low, honest), high),
    )


def _shots(
    single: Tabulated, plan: CalibrationPlan, photos: LabelledPhotos
) -> tuple[ShotGroup, ...]:
    if photos.noise is not None:  # a rare species' labels are others'
        return ()
    place = plan.compared.index(plan.default_k)
    counts = single.table.rules[0].counts[plan.grid.index(plan.default_k)]  # of average_k
    return measure_by_shots(
        single.sizes[:, place],
        single.hits[:, place],
        photos.labels,
        photos.counts,
        largest=largest_set(
            plan.classes, single.table.scoring.score_kind, counts.lambda_val or 0.0
        ),
        observations=photos.observations,
    )


def _calibrated_list(region: RegionList, labels: Ints) -> CalibratedList:
    return CalibratedList(
        name=region.name,
        classes=region.classes,
        rows=int(np.isin(labels, region.classes).sum()),
        classes_seen=np.intersect1d(labels, region.classes).size,
    )


def _fit_familiarity(
    photos: LabelledPhotos, scoring: Scoring, plan: CalibrationPlan, reference: Reference | None
) -> tuple[Distribution, RejectionRule | None]:
    """The distribution of the scores, and the rule that marks unfamiliar photos as suspect."""
    distribution, kind = DistributionOf(), scoring.score_kind
    familiarity, of_others = list[Floats](), list[Floats]()
    names = (scoring.head,) if reference is None else (scoring.head, FEATURES)
    counted, first = photos.one_of_each, 0
    for (logits, *features), labels in photos.outputs.blocks(*names, among=photos.among):
        mask = counted[first : first + len(labels)]
        first += len(labels)
        if mask.any():
            distribution.update(logits[mask], scoring.scores(logits[mask, np.newaxis]))
        if plan.rejection_method is not None:
            familiarity.append(parts(logits, kind, next(iter(features), None), reference))
        if reference is not None:
            nearest = reference.nearest_of_others(features[0], labels)
            of_others += [] if nearest is None else [nearest]
    if not familiarity:
        return distribution.result(), None
    values, unseen = np.concatenate(familiarity), tuple[UnseenThreshold, ...]()
    if of_others:
        nearest = np.concatenate(of_others)
        unseen = fit_unseen(nearest, values[:, 0], photos.labels, plan.coverages)
    sha256 = None if reference is None else reference.sha256
    rule = partial(fit_rejection, plan.suspect_share, values, reference_sha256=sha256)
    return distribution.result(), rule(head=scoring.head, score_kind=kind, unseen=unseen)

"""From logits to the answer. Pure: the HTTP interface and ``florilege predict`` both call it."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.certificate import Reason
from florilege.calibration.marginals import LARGEST_K, top_k_marginals
from florilege.calibration.record import CalibrationRecord, OperatingPoint
from florilege.calibration.record.statement import statement
from florilege.calibration.reference import Reference
from florilege.calibration.scores import logits_among
from florilege.calibration.view import Indices, View
from florilege.models.classes import ClassInfo
from florilege.models.session import Outputs
from florilege.server import schemas
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.dial import BELOW, dial
from florilege.server.answers.plan import Plan
from florilege.server.answers.query import IdentifyQuery

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Logits = Mapping[str, NDArray[np.float32]]  # by head, each ``(photos, classes)``

RANKS: Final[tuple[Literal["genus", "family"], ...]] = ("genus", "family")


def answer(
    outputs: Outputs,
    plan: Plan,
    reference: Reference | None,
    *,
    taxa: TaxonTable,
    model: schemas.Model,
    answer_id: str,
) -> tuple[schemas.Answer, Mask]:
    """The prediction set of one observation, with its mask, ``(classes,)``.

    ``outputs`` are those of all its photos; ``reference`` is that of `judge`.
    """
    query, record, classes = plan.query, plan.planner.record, len(taxa.classes)
    logits, features = outputs
    rejection, none = judge(logits, query, record, features=features, reference=reference), None
    if query.none and record.rejection is not None:
        none = record.rejection.none_of_these(features, reference, query.coverage)
    selection = _draw(logits, plan, taxa.classes, accepted=rejection.verdict != "rejected")
    warnings = _warnings(selection, plan, classes=classes, none=none)
    stops = None
    if "dial" in query.include:
        accepted, calibrated = selection.accepted, selection.calibrated
        point, scores = selection.point, selection.scores
        stops = dial(point, record, scores, accepted=accepted, calibrated=calibrated)
    results = _results(selection, plan, taxa, _reported(query, len(selection.members), stops))
    prediction = schemas.Answer(
        id=answer_id,
        model=model,
        query=_query_info(selection, plan),
        set=_set_info(selection, plan, results, none),
        best_match=next(
            (selection.infos[index].scientific_name for index in selection.members), None
        ),
        results=results,
        dial=stops,
        rollup=_roll_up(selection.infos, selection.scores, selection.members)
        if "rollup" in query.include
        else None,
        rejection=rejection,
        warnings=warnings,
    )
    return prediction, _among_all(selection.inside, selection.classes, classes)


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """The set of one observation among the classes that are scored."""

    view: View  # of the request
    point: OperatingPoint
    accepted: bool  # by the rejection; otherwise the set is empty
    infos: Sequence[ClassInfo]  # (listed,)
    classes: Indices | None  # their output indices; None for all
    logits: NDArray[np.float32]  # of the head, (photos, classes)
    scores: Floats  # (listed,)
    inside: Mask  # (listed,)
    members: Sequence[int]  # those inside, best first
    others: Sequence[int]  # those outside that may be reported, best first

    @property
    def fits(self) -> bool:
        """Whether the threshold is for the view of the request, and for exactly its classes."""
        listed = self.classes is None or self.view.list is not None
        return self.point.table.view == self.view and listed

    @property
    def calibrated(self) -> bool:
        """Whether the figures of the threshold hold for the set."""
        return self.fits and self.accepted


def _draw(
    logits: Logits,
    plan: Plan,
    infos: Sequence[ClassInfo],
    *,
    accepted: bool,
) -> _Selection:
    """Score the classes of a plan and compare them with the threshold for its view."""
    record, photos, classes = plan.planner.record, len(next(iter(logits.values()))), None
    # Not calibrated for so many photos: the threshold of one is used, and a warning says so.
    point = plan.points.get(photos, plan.points[1])
    if plan.query.reject and record.rejection is not None:
        point = point.rejecting()
    head_logits = logits[point.table.scoring.head]
    if plan.restriction is not None:
        infos, classes = plan.restriction.infos, plan.restriction.classes
        if point.table.view.list is None:
            point = point.among(classes)
    # What the place adds is cut to the listed classes where these are scored.
    scores = point.scores(head_logits, plan.effect.lift, classes, record.prior)
    inside = point.sets(scores[np.newaxis])[0] & accepted
    ranking = point.rank_by(scores)
    return _Selection(
        view=replace(plan.view, photos=photos),
        point=point,
        accepted=accepted,
        infos=infos,
        classes=classes,
        logits=head_logits,
        scores=scores,
        inside=inside,
        members=_best_first(ranking, inside),
        others=_best_first(ranking, ~inside & _reports_others(plan)),
    )


def _query_info(selection: _Selection, plan: Plan) -> schemas.Query:
    """The query with every default filled in."""
    return schemas.Query.of(
        selection.point,
        images=selection.view.photos,
        lang=plan.lang,
        list=plan.query.list,
        only=None if plan.restriction is None else plan.restriction.only,
        region=plan.effect.region,
        month=plan.effect.month,
    )


def _results(
    selection: _Selection, plan: Plan, taxa: TaxonTable, count: int | None
) -> list[schemas.Result]:
    """The best ``count`` classes, all if it is None, and those that are always reported."""
    size, compared = len(selection.members), selection.point.compare(selection.scores)
    ranked = [*selection.members, *selection.others]
    listed = _listed(plan.query, selection.infos, ranked, count, compared, plan.always)
    marginals = _marginals(selection, plan.query)
    in_range = plan.effect.in_range
    if in_range is not None and selection.classes is not None:
        in_range = [in_range[at] for at in selection.classes]
    return [
        schemas.Result(
            rank=rank,
            class_id=selection.infos[index].id,
            score=float(compared[index]),
            in_set=rank <= size,
            top_k_probability=marginals[index],
            in_range=None if in_range is None else in_range[index],
            taxon=taxa.taxon(selection.infos[index], plan.languages),
        )
        for rank, index in listed
    ]


def _reported(query: IdentifyQuery, size: int, stops: Sequence[schemas.Stop] | None) -> int | None:
    """How many of the best classes to report; None for all."""
    if "scores" in query.include:
        return None
    return max(size, stops[-1].size + BELOW) if stops else size


def _reports_others(plan: Plan) -> bool:
    """Whether classes outside the set may be listed too."""
    return bool(plan.always) or not {"scores", "dial"}.isdisjoint(plan.query.include)


def _among_all(inside: Mask, classes: Indices | None, count: int) -> Mask:
    """A mask of the listed classes as one of all, ``(classes,)``."""
    if classes is None:
        return inside
    mask = np.zeros(count, dtype=np.bool_)
    mask[classes] = inside
    return mask


def _set_info(
    selection: _Selection, plan: Plan, results: Sequence[schemas.Result], none_of_these: bool | None
) -> schemas.SetInfo:
    """How the set was drawn; figures and statement only if they hold for it."""
    point, size = selection.point, len(selection.members)
    reasons = [reason.value for reason in point.certificate.reasons]
    figures = {
        **point.estimates,
        "hit_rate_at_size": point.hit_rate_at_size(size),
        "least_coverage": point.least_coverage,
        "statement": statement(point, plan.languages, empty=size == 0),
    }
    view, calibrated = point.table.view, selection.calibrated
    return schemas.SetInfo.of(
        point,
        head=point.table.scoring.head,
        score_kind=point.table.scoring.score_kind,
        guaranteed=calibrated and point.guaranteed,
        reasons=reasons if selection.fits else [*reasons, Reason.ANOTHER_VIEW.value],
        calibrated_for=schemas.ViewInfo(images=view.photos, list=view.list, place=view.place),
        size=size,
        calibrated=calibrated,
        truncated=sum(result.in_set for result in results) < size,
        none_of_these=none_of_these,
        **(figures if calibrated else dict.fromkeys(figures)),
    )


def _warnings(
    selection: _Selection, plan: Plan, *, classes: int, none: bool | None
) -> list[schemas.Warned]:
    """What the threshold was not calibrated for, of so many ``classes`` in all."""
    point, view = selection.point, selection.view
    details, used, effect = dict[str, str](), point.table.view, plan.effect
    if used.photos != view.photos:
        details["fusion_not_calibrated"] = (
            f"this model is not calibrated for {view.photos} photos with this rule, value, list "
            "and place: expect other set sizes and hit rates than those measured on single photos"
        )
    elif point.table.made_from == "same_class":
        details["fusion_from_same_class"] = (
            f"for {view.photos} photos this model is calibrated on photos of one species, not of "
            "one plant: real requests may do worse"
        )
    if plan.restriction is not None and used.list is None:
        details["list_not_calibrated"] = (
            f"the scores of the {len(plan.restriction.infos)} requested classes are compared with "
            f"the threshold of all {classes}: the model is not calibrated for these classes with "
            "this rule, value and number of photos; expect other set sizes and hit rates"
        )
    if effect.why_unused is not None:
        details["place_not_used"] = f"the place of the photo was not used: {effect.why_unused}"
    if used.place != view.place:
        details["place_not_calibrated"] = (
            "the place changed the scores, but the model is not calibrated for this with this "
            "rule, value, number of photos and list: expect other set sizes and hit rates"
        )
    if plan.query.none and none is None:
        details["none_not_calibrated"] = (
            "the model is not calibrated for `none` at this coverage: that needs features, "
            "training photos and, for a coverage of 0.9, 9 classes or more (0.95: 19)"
        )
    return [schemas.Warned(code=code, detail=detail) for code, detail in details.items()]


def _listed(
    query: IdentifyQuery,
    infos: Sequence[ClassInfo],
    ranked: Sequence[int],
    count: int | None,
    scores: Floats,
    always: Collection[str],
) -> list[tuple[int, int]]:
    """Rank and index of each class to report: the first ``count``, and those always reported."""
    listed = list(enumerate(ranked[:count], start=1))  # not all: 10,000 take 2 ms
    if query.min_score is not None:
        listed = [entry for entry in listed if scores[entry[1]] >= query.min_score]
    listed = listed[: query.max_results]
    if not always:
        return listed
    ranks = enumerate(ranked, start=1)
    return sorted({entry for entry in ranks if infos[entry[1]].id in always}.union(listed))


def _best_first(ranking: Floats, mask: Mask) -> list[int]:
    """Indices of the classes in a mask, ``(classes,)``: best first, ties in their order."""
    indices = np.flatnonzero(mask)
    order: list[int] = indices[np.argsort(-ranking[indices], kind="stable")].tolist()
    return order


def judge(
    logits: Logits,
    query: IdentifyQuery,
    record: CalibrationRecord,
    *,
    features: NDArray[np.float32] | None = None,
    reference: Reference | None = None,
) -> schemas.Rejection:
    """Judge whether the photos show one of the classes.

    If the record's rule needs ``features``, ``(photos, dimensions)``, and their ``reference``, but
    either is missing, the logits decide.
    """
    rule = record.rejection
    if rule is not None and (features is None or reference is None):
        rule = rule.from_logits
    if rule is None:
        return schemas.Rejection(verdict="not_judged", method=None, value=None, threshold=None)
    value, suspect = rule.verdict(logits[rule.head], features, reference)
    unfamiliar: schemas.Verdict = "rejected" if query.reject else "suspect"
    verdict = unfamiliar if suspect else "accepted"
    return schemas.Rejection.of(rule, verdict=verdict, value=value)


def _marginals(selection: _Selection, query: IdentifyQuery) -> Sequence[float | None]:
    """Mean probability over the photos to be among the k best; k is the requested size, rounded."""
    if "marginals" not in query.include:
        return [None] * len(selection.infos)
    logits, point = selection.logits, selection.point
    if selection.classes is not None:
        logits = logits_among(logits, selection.classes)
    # Not `round`, which takes 2.5 to 2 and 3.5 to 4.
    rounded = math.floor((point.k or len(selection.members)) + 0.5)
    k = min(max(1, rounded), LARGEST_K, logits.shape[1])
    return top_k_marginals(point.table.scoring.scaled(logits), k).mean(axis=0).tolist()  # type: ignore[no-any-return]  # NumPy's


def _roll_up(
    classes: Sequence[ClassInfo], scores: Floats, members: Sequence[int]
) -> list[schemas.Rollup]:
    """The genera, then the families, of the classes in a set, best first.

    The score of a group is its share of the ``scores`` of all ``classes``, ``(classes,)``, none
    negative: with softmax the plain sum, with sigmoid, whose scores do not sum to one, it stays
    between 0 and 1. ``members`` are the indices of the classes in the set.
    """
    groups: list[schemas.Rollup] = []
    for rank in RANKS:
        names = [getattr(item, rank) for item in classes]
        inside = {names[index] for index in members}
        sums = dict.fromkeys(inside, 0.0)
        for name, score in zip(names, scores.tolist(), strict=True):
            if name in sums:
                sums[name] += score
        sums.pop(None, None)
        # A class whose group is unknown counts as a group here: it may belong elsewhere.
        covers, total = len(inside) == 1, float(scores.sum()) or 1.0
        rollups = [
            schemas.Rollup(rank=rank, name=name, score=min(1.0, part / total), covers_set=covers)
            for name, part in sums.items()
        ]
        groups += sorted(rollups, key=lambda group: (-group.score, group.name))
    return groups

"""From logits to the answer. Pure: the HTTP interface and ``florilege predict`` both call it."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.marginals import LARGEST_K, top_k_marginals
from florilege.calibration.record.operating_point import NotCalibrated, OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.statement import statement
from florilege.calibration.rejection.reference import Reference
from florilege.calibration.rules import RULES
from florilege.calibration.scores import logits_among
from florilege.models.classes import ClassInfo
from florilege.models.occurrences import PlaceKind
from florilege.server import schemas
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.place import PLACE_UNKNOWN, PlaceEffect
from florilege.server.answers.query import IdentifyQuery, fallback_chain
from florilege.server.answers.restriction import Restriction
from florilege.server.problems import Code, Problem

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Logits = Mapping[str, NDArray[np.float32]]  # by head, each ``(photos, classes)``

RANKS: Final[tuple[Literal["genus", "family"], ...]] = ("genus", "family")


def answer(
    logits: Logits,
    query: IdentifyQuery,
    record: CalibrationRecord,
    rejection: schemas.Rejection,
    *,
    taxa: TaxonTable,
    model: schemas.Model,
    answer_id: str,
    restriction: Restriction | None = None,
    always: Collection[str] = (),
    effect: PlaceEffect = PLACE_UNKNOWN,
    none_of_these: bool | None = None,
) -> tuple[schemas.Answer, Mask]:
    """The prediction set of one organism, on one or several photos, and its mask, ``(classes,)``.

    ``rejection`` is the verdict of `judge`; ``always`` holds ids of classes to report whatever they
    score; ``none_of_these`` says whether the set holds "none of these", None if unknown. Raises a
    `Problem` as `operating_point` does.
    """
    photos, languages = len(next(iter(logits.values()))), query.languages
    point, calibrated = operating_point(record, query, photos, restriction, effect.kind)
    infos: Sequence[ClassInfo] = taxa.classes
    served, only = logits[point.table.head], None
    if restriction is not None:
        infos, only = restriction.infos, restriction.only
        served = logits_among(served, restriction.classes)  # (photos, listed), like all below
        effect = effect.among(restriction.classes)
    scores = point.fused_scores(served, effect.lift)  # (classes,)
    accepted = rejection.verdict != "rejected"
    inside = point.sets(scores[np.newaxis])[0] & accepted  # (classes,)
    ranking = point.rank_by(scores)
    members = _best_first(ranking, inside)
    size, compared = len(members), point.compare(scores)
    others = _best_first(ranking, ~inside) if always or "scores" in query.include else []
    marginals, chain = _marginals(point, query, served, size), fallback_chain(languages)
    results = [
        schemas.Result(
            rank=rank,
            class_id=infos[index].id,
            score=float(compared[index]),
            in_set=rank <= size,
            top_k_probability=marginals[index],
            in_range=effect.was_recorded(index),
            taxon=taxa.taxon(infos[index], chain),
        )
        for rank, index in _listed(query, infos, [*members, *others], size, compared, always)
    ]
    prediction = schemas.Answer(
        id=answer_id,
        model=model,
        query=schemas.Query.of(  # with every default filled in
            point,
            images=photos,
            lang=languages[0],
            list=query.list,
            only=only,
            region=effect.region,
            month=effect.month,
        ),
        set=_set_info(
            point,
            languages,
            size=size,
            none_of_these=none_of_these,
            calibrated=calibrated and accepted,
            truncated=sum(each.in_set for each in results) < size,
        ),
        best_match=infos[members[0]].scientific_name if members else None,
        results=results,
        rollup=_roll_up(infos, scores, members) if "rollup" in query.include else None,
        rejection=rejection,
        warnings=_warnings(
            point,
            query,
            effect,
            restriction,
            calibrated=calibrated,
            photos=photos,
            classes=len(taxa.classes),
            none_of_these=none_of_these,
        ),
    )
    if restriction is not None:
        scored_inside, inside = inside, np.zeros(len(taxa.classes), dtype=np.bool_)
        inside[restriction.classes] = scored_inside
    return prediction, inside


def _set_info(
    point: OperatingPoint,
    languages: Sequence[str],
    *,
    size: int,
    calibrated: bool,
    **fields: bool | None,
) -> schemas.SetInfo:
    """How the set was drawn; figures and statement only if they are ``calibrated``."""
    figures = {
        **point.estimates,
        "least_coverage": point.least_coverage,
        "statement": statement(point, languages, empty=size == 0),
    }
    return schemas.SetInfo.of(
        point,
        head=point.table.head,
        score_kind=point.table.score_kind,
        guaranteed=calibrated and point.guaranteed,
        size=size,
        calibrated=calibrated,
        **fields,
        **(figures if calibrated else dict.fromkeys(figures)),
    )


def _warnings(
    point: OperatingPoint,
    query: IdentifyQuery,
    effect: PlaceEffect,
    restriction: Restriction | None,
    *,
    calibrated: bool,
    photos: int,
    classes: int,
    none_of_these: bool | None,
) -> list[schemas.Warned]:
    """What the threshold was not calibrated for."""
    details = dict[str, str]()
    if point.table.images != photos:
        details["fusion_not_calibrated"] = (
            f"this model is not calibrated for the averaged scores of {photos} photos: "
            "expect other set sizes and hit rates than those measured on single photos"
        )
    elif point.table.made_from == "same_class":
        details["fusion_from_same_class"] = (
            f"for {photos} photos this model is calibrated on photos of one species, not of "
            "one plant: real requests may do worse"
        )
    if restriction is not None and not calibrated:
        details["list_not_calibrated"] = (
            f"the scores of the {len(restriction.infos)} requested classes are compared with the "
            f"threshold of all {classes}: the model is not calibrated for these classes with this "
            "rule, value and number of photos; expect other set sizes and hit rates"
        )
    if effect.why_unused is not None:
        details["place_not_used"] = f"the place of the photo was not used: {effect.why_unused}"
    if point.table.place != effect.kind:
        details["place_not_calibrated"] = (
            "the place changed the scores, but the model is not calibrated for this with this "
            "rule, value, number of photos and list: expect other set sizes and hit rates"
        )
    if query.none and none_of_these is None:
        details["none_not_calibrated"] = (
            "the model is not calibrated for `none` at this coverage: that needs features, "
            "training photos and, for a coverage of 0.9, 9 classes or more (0.95: 19)"
        )
    return [schemas.Warned(code=code, detail=detail) for code, detail in details.items()]


def _listed(
    query: IdentifyQuery,
    infos: Sequence[ClassInfo],
    ranked: Sequence[int],
    size: int,
    scores: Floats,
    always: Collection[str],
) -> list[tuple[int, int]]:
    """Rank and index of each class to report; the first ``size`` of ``ranked`` are the set."""
    ranks = list(enumerate(ranked, start=1))
    listed = ranks if "scores" in query.include else ranks[:size]
    if query.min_score is not None:
        listed = [each for each in listed if scores[each[1]] >= query.min_score]
    listed = listed[: query.max_results]
    if not always:
        return listed
    return sorted({each for each in ranks if infos[each[1]].id in always}.union(listed))


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


def operating_point(
    record: CalibrationRecord,
    query: IdentifyQuery,
    photos: int,
    restriction: Restriction | None = None,
    place: PlaceKind | None = None,
) -> tuple[OperatingPoint, bool]:
    """The calibrated setting, and whether it was calibrated for these photos, classes and place.

    Raises a `Problem` if ``k`` or ``coverage`` does not go with the rule, or if there is no
    threshold even for one photo and all classes.
    """
    _check_combination(query)
    try:
        single = record.point(
            query.rule, k=query.k, coverage=query.coverage, guarantee=query.guarantee
        )
    except NotCalibrated as error:
        raise Problem(Code.NOT_CALIBRATED, str(error), allowed=error.allowed) from error
    list_name = None if restriction is None else restriction.calibrated_as
    try:  # at the K of one photo, even if the query names none
        point = record.point(
            query.rule,
            k=single.k,
            coverage=single.coverage,
            images=photos,
            guarantee=query.guarantee,
            list_name=list_name if photos == 1 else None,
            place=place if photos == 1 and restriction is None else None,
        )
    except NotCalibrated:
        point = single
    if restriction is not None and point.table.list_name is None:
        return point.among(restriction.classes), False
    return point, (point.table.images, point.table.place) == (photos, place)


def _check_combination(query: IdentifyQuery) -> None:
    asks_coverage = RULES[query.rule].asks == "coverage"
    if asks_coverage and query.k is not None:
        raise Problem(Code.INVALID_PARAMETER, f"rule {query.rule} takes coverage, not k")
    if not asks_coverage and query.coverage is not None:
        detail = f"rule {query.rule} takes k, not coverage; coverage goes with rule=coverage"
        raise Problem(Code.INVALID_PARAMETER, detail)


def _marginals(
    point: OperatingPoint, query: IdentifyQuery, logits: NDArray[np.float32], size: int
) -> Sequence[float | None]:
    """Mean probability over the photos to be among the k best; k is the requested size, rounded."""
    if "marginals" not in query.include:
        return [None] * logits.shape[1]
    k = min(max(1, math.floor((point.k or size) + 0.5)), LARGEST_K, logits.shape[1])
    return top_k_marginals(point.scaled(logits), k).mean(axis=0).tolist()  # type: ignore[no-any-return]  # NumPy's


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
        covers, total = len(inside) == 1, float(scores.sum()) or 1.0
        rollups = [
            schemas.Rollup(rank=rank, name=name, score=min(1.0, part / total), covers_set=covers)
            for name, part in sums.items()
        ]
        groups += sorted(rollups, key=lambda group: (-group.score, group.name))
    return groups

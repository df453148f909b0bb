"""From logits to the answer. Pure: the HTTP interface and ``florilege predict`` both call it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.guarantees import COVERAGE_RULES
from calibration.marginals import LARGEST_K, top_k_marginals
from calibration.record.record import CalibrationRecord, NotCalibrated, OperatingPoint
from calibration.rejection.reference import Reference
from models.classes import ClassTable
from server.answers.ask import Ask
from server.answers.names import fallback_chain, taxon
from server.answers.rollup import roll_up
from server.errors import InvalidParameter, NotCalibratedFor
from server.schemas import Answer, Model, Query, Rejection, Result, SetInfo, Verdict, Warned

Floats = NDArray[np.float64]
Logits = Mapping[str, NDArray[np.float32]]
"""Outputs of the network by head, each ``(photos, classes)``."""

NOT_JUDGED = Rejection(verdict="not_judged", method=None, value=None, threshold=None)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The set rule applied to the scores of one organism.

    Attributes:
        point: The calibrated setting.
        calibrated: Whether it was calibrated for this number of photos.
        photos: How many photos there were.
        scores: Scores fused from all photos, float64 ``(classes,)``.
        compared: The numbers compared with lambda, float64 ``(classes,)``.
        inside: Which classes are in the set, ``(classes,)``.
        order: Output indices, members of the set first, best first, ``(classes,)``.
        marginals: Probabilities to be among the k best, ``(classes,)``; None if not asked for.
        rejection: Whether the photos show one of the classes at all.
    """

    point: OperatingPoint
    calibrated: bool
    photos: int
    scores: Floats
    compared: Floats
    inside: NDArray[np.bool_]
    order: NDArray[np.intp]
    marginals: Floats | None
    rejection: Rejection


def draw(logits: Logits, ask: Ask, record: CalibrationRecord, rejection: Rejection) -> Drawn:
    """Fuse the scores of one organism's photos, and compare with the threshold.

    Raises:
        Problem: As `operating_point`.
    """
    photos = len(next(iter(logits.values())))
    point, calibrated = operating_point(record, ask, photos)
    scores = point.fused_scores(logits[point.head])  # (classes,)
    inside = point.sets(scores[np.newaxis])[0]  # (classes,)
    if rejection.verdict == "rejected":
        inside = np.zeros_like(inside)
    marginals = None
    if "marginals" in ask.include:
        marginals = _marginals(point, logits[point.head], int(inside.sum()))
    return Drawn(
        point=point,
        calibrated=calibrated,
        photos=photos,
        scores=scores,
        compared=point.compare(scores),
        inside=inside,
        order=best_first(point.rank_by(scores), inside),
        marginals=marginals,
        rejection=rejection,
    )


def best_first(ranked: Floats, inside: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Indices of the classes, ``(classes,)``: members first, best first, equals as they come."""
    return np.lexsort((-ranked, ~inside))


def describe(
    drawn: Drawn, ask: Ask, *, classes: ClassTable, model: Model, request_id: str
) -> Answer:
    """Put a drawn set into the shape of the interface."""
    point, marginals = drawn.point, drawn.marginals
    size = int(drawn.inside.sum())
    members = drawn.order[:size].tolist()
    shown = drawn.order.tolist() if "scores" in ask.include else members
    shown = shown[: ask.max_results]
    chain = fallback_chain(ask.languages)
    holds = drawn.calibrated and drawn.rejection.verdict != "rejected"
    unknown = {} if holds else dict.fromkeys(("expected_size", "hit_rate", "statement"))
    return Answer(
        id=request_id,
        model=model,
        query=Query.of(point, images=drawn.photos, lang=ask.languages[0]),
        set=SetInfo.of(
            point,
            guaranteed=holds and point.guaranteed,
            size=size,
            calibrated=holds,
            truncated=len(shown) < size,
            **unknown,
        ),
        best_match=classes[members[0]].scientific_name if members else None,
        results=[
            Result(
                rank=rank,
                class_id=classes[index].id,
                score=float(drawn.compared[index]),
                in_set=bool(drawn.inside[index]),
                top_k_probability=None if marginals is None else float(marginals[index]),
                taxon=taxon(classes[index], chain),
            )
            for rank, index in enumerate(shown, start=1)
        ],
        rollup=roll_up(classes, drawn.scores, members) if "rollup" in ask.include else None,
        rejection=drawn.rejection,
        warnings=_fusion_warnings(drawn),
    )


def judge(
    logits: Logits,
    ask: Ask,
    record: CalibrationRecord,
    *,
    features: NDArray[np.float32] | None = None,
    reference: Reference | None = None,
) -> Rejection:
    """Whether the photos show one of the classes, as far as the record can tell.

    Where the record needs ``features``, ``(photos, dimensions)``, and the ``reference`` they are
    compared with, and these are not at hand, it judges by logits.
    """
    rule = record.rejection
    if rule is not None and (features is None or reference is None):
        rule = rule.from_logits
    if rule is None:
        return NOT_JUDGED
    value, suspect = rule.verdict(logits[rule.head], features, reference)
    refused: Verdict = "rejected" if ask.reject else "suspect"
    return Rejection(
        verdict=refused if suspect else "accepted",
        method=rule.method,
        value=value,
        threshold=rule.threshold,
    )


def operating_point(
    record: CalibrationRecord, ask: Ask, photos: int
) -> tuple[OperatingPoint, bool]:
    """The calibrated setting, and whether it was calibrated for this number of photos.

    Raises:
        InvalidParameter: A ``k`` for a coverage rule, or a coverage for another one.
        NotCalibratedFor: There is no threshold for this, not even for one photo.
    """
    _check_goes_together(ask)
    try:
        single = record.point(ask.rule, k=ask.k, coverage=ask.coverage, guarantee=ask.guarantee)
    except NotCalibrated as error:
        raise NotCalibratedFor(str(error), allowed=error.allowed) from error
    if photos == 1:
        return single, True
    try:  # at the very K that one photo would get, also where none was asked for
        several = record.point(
            ask.rule, k=single.k, coverage=single.coverage, images=photos, guarantee=ask.guarantee
        )
        return several, True
    except NotCalibrated:
        return single, False


def _check_goes_together(ask: Ask) -> None:
    if ask.rule in COVERAGE_RULES:
        if ask.k is not None:
            raise InvalidParameter(f"rule {ask.rule} takes coverage, not k")
    elif ask.coverage is not None:
        raise InvalidParameter(
            f"rule {ask.rule} takes k, not coverage; coverage goes with rule=coverage"
        )


def _fusion_warnings(drawn: Drawn) -> list[Warned]:
    """What to say where several photos were not calibrated, or only from makeshift groups."""
    if not drawn.calibrated:
        detail = (
            f"the scores of {drawn.photos} photos were averaged, for which this model is not "
            "calibrated: expect other set sizes and hit rates than those measured on single photos"
        )
        return [Warned(code="fusion_not_calibrated", detail=detail)]
    if drawn.point.made_from == "same_class":
        detail = (
            f"for {drawn.photos} photos this model is calibrated on photos of one species, not of "
            "one plant: real requests may do worse"
        )
        return [Warned(code="fusion_from_same_class", detail=detail)]
    return []


def _marginals(point: OperatingPoint, logits: NDArray[np.float32], size: int) -> Floats:
    """Mean over the photos; k is the set size asked for, rounded, as marginals need a whole k."""
    k = min(max(1, math.floor((point.k or size) + 0.5)), LARGEST_K, logits.shape[1])
    mean: Floats = top_k_marginals(point.adjusted(logits), k).mean(axis=0)
    return mean

"""From logits to the answer. Pure: the HTTP interface and ``florilege predict`` both call it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibration.guarantees import Guarantee
from calibration.marginals import LARGEST_K, top_k_marginals
from calibration.record.record import CalibrationRecord, NotCalibrated, OperatingPoint
from calibration.rejection.reference import Reference
from calibration.rules import RULES
from models.classes import ClassTable
from server.answers.measured import measured
from server.answers.names import FALLBACK, fallback_chain, taxon
from server.answers.rollup import roll_up
from server.errors import InvalidParameter, NotCalibratedFor
from server.schemas import (
    Answer,
    Model,
    Query,
    Rejection,
    Result,
    Rollup,
    Rule,
    SetInfo,
    Verdict,
    Warned,
)

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Logits = Mapping[str, NDArray[np.float32]]

INCLUDES = ("scores", "marginals", "rollup")
NOT_JUDGED = Rejection(verdict="not_judged", method=None, value=None, threshold=None)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a caller wants to know about a photo.

    Attributes:
        rule: The set rule.
        k: Average set size (exact size for ``top_k``); None is the default of the record.
        coverage: Level of the coverage rules, and only of these.
        guarantee: What the set is to promise; None is what the rule promises anyway.
        languages: Language tags for common names, the most wanted first.
        max_results: Most entries of `results`; None keeps them all.
        include: Some of `INCLUDES`.
        reject: Whether the set of a suspect photo is emptied.

    Raises:
        InvalidParameter: ``k`` or ``coverage`` do not go with the rule, or are missing.
    """

    rule: Rule = "average_k"
    k: float | None = None
    coverage: float | None = None
    guarantee: Guarantee | None = None
    languages: tuple[str, ...] = (FALLBACK,)
    max_results: int | None = None
    include: frozenset[str] = field(default_factory=frozenset)
    reject: bool = False

    def __post_init__(self) -> None:
        if RULES[self.rule].asks == "coverage":
            if self.k is not None:
                raise InvalidParameter(f"rule {self.rule} takes coverage, not k")
        elif self.coverage is not None:
            raise InvalidParameter(
                f"rule {self.rule} takes k, not coverage; coverage goes with rule=coverage"
            )


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
        order: Output indices, members of the set first, best first.
        rejection: Whether the photos show one of the classes at all.
    """

    point: OperatingPoint
    calibrated: bool
    photos: int
    scores: Floats
    compared: Floats
    inside: Mask
    order: list[int]
    rejection: Rejection


def answer(
    logits: Logits,
    ask: Ask,
    *,
    classes: ClassTable,
    record: CalibrationRecord,
    model: Model,
    request_id: str,
) -> Answer:
    """The prediction set of one organism, seen on one or several photos.

    Args:
        logits: Outputs of the network by head, each ``(photos, classes)``.
        ask: What to answer.
        classes: What each output stands for.
        record: The calibration of the bundle.
        model: Which model this is.
        request_id: Repeated in the answer.

    Raises:
        NotCalibratedFor: The record has no threshold for this rule, K or coverage.
    """
    drawn = draw(logits, ask, record, judge(logits, ask, record))
    return describe(drawn, logits, ask, classes=classes, model=model, request_id=request_id)


def describe(
    drawn: Drawn, logits: Logits, ask: Ask, *, classes: ClassTable, model: Model, request_id: str
) -> Answer:
    """Put a drawn set into the shape of the interface; arguments as for `answer`."""
    marginals = None
    if "marginals" in ask.include:
        marginals = _marginals(drawn.point.adjusted(logits[drawn.point.head]), drawn)
    chain = fallback_chain(ask.languages)
    shown = _shown(drawn, ask)
    members = drawn.order[: int(drawn.inside.sum())]
    return Answer(
        id=request_id,
        model=model,
        query=_query(ask, drawn),
        set=_set_info(ask, drawn, truncated=len(shown) < len(members)),
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
        rollup=_rollup(classes, drawn, members, ask),
        rejection=drawn.rejection,
        warnings=fusion_warnings(drawn),
    )


def draw(logits: Logits, ask: Ask, record: CalibrationRecord, rejection: Rejection) -> Drawn:
    """Fuse the scores of the photos, and compare with the threshold.

    Args:
        logits: As for `answer`.
        ask: What to answer.
        record: The calibration of the bundle.
        rejection: What `judge` says about the photos.

    Raises:
        NotCalibratedFor: See `answer`.
    """
    photos = len(next(iter(logits.values())))
    point, calibrated = operating_point(record, ask, photos)
    scores = point.fused_scores(logits[point.head])  # (classes,)
    compared = point.compare(scores)  # (classes,)
    inside = point.sets(scores[np.newaxis])[0]  # (classes,)
    if rejection.verdict == "rejected":
        inside = np.zeros_like(inside)
    ranked = point.rank_by(scores)
    order = sorted(range(len(scores)), key=lambda index: (not inside[index], -ranked[index]))
    return Drawn(
        point=point,
        calibrated=calibrated,
        photos=photos,
        scores=scores,
        compared=compared,
        inside=inside,
        order=order,
        rejection=rejection,
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

    Args:
        logits: As for `answer`.
        ask: What to answer.
        record: The calibration of the bundle.
        features: Of each photo, ``(photos, dimensions)``. Where the record needs them and they are
            not at hand it judges by logits.
        reference: What they are compared with.
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
        NotCalibratedFor: Not even for one photo.
    """
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


def fusion_warnings(drawn: Drawn) -> list[Warned]:
    """What to say where several photos were not calibrated, or only from makeshift groups."""
    if drawn.calibrated and drawn.point.made_from == "same_class":
        detail = (
            f"for {drawn.photos} photos this model is calibrated on photos of one species, not of "
            "one plant: real requests may do worse"
        )
        return [Warned(code="fusion_from_same_class", detail=detail)]
    if drawn.calibrated:
        return []
    detail = (
        f"the scores of {drawn.photos} photos were averaged, for which this model is not "
        "calibrated: expect other set sizes and hit rates than those measured on single photos"
    )
    return [Warned(code="fusion_not_calibrated", detail=detail)]


def _marginals(logits: NDArray[np.float32], drawn: Drawn) -> Floats:
    """Mean over the photos; k is the set size asked for, rounded, as marginals need a whole k."""
    wanted = drawn.point.k or int(drawn.inside.sum())
    k = min(max(1, math.floor(wanted + 0.5)), LARGEST_K, logits.shape[1])
    mean: Floats = top_k_marginals(logits, k).mean(axis=0)
    return mean


def _shown(drawn: Drawn, ask: Ask) -> list[int]:
    size = len(drawn.order) if "scores" in ask.include else int(drawn.inside.sum())
    return drawn.order[: size if ask.max_results is None else min(size, ask.max_results)]


def _query(ask: Ask, drawn: Drawn) -> Query:
    point = drawn.point
    return Query(
        images=drawn.photos,
        rule=ask.rule,
        k=point.k,
        coverage=point.coverage,
        guarantee=point.guarantee,
        lang=ask.languages[0],
    )


def _set_info(ask: Ask, drawn: Drawn, *, truncated: bool) -> SetInfo:
    point = drawn.point
    holds = drawn.calibrated and drawn.rejection.verdict != "rejected"
    return SetInfo(
        rule=ask.rule,
        k=point.k,
        coverage=point.coverage,
        guarantee=point.guarantee,
        guaranteed=holds and point.guaranteed,
        lambda_val=point.lambda_val,
        score_kind=point.score_kind,
        head=point.head,
        min_size=point.min_size,
        max_size=point.max_size,
        size=int(drawn.inside.sum()),
        calibrated=holds,
        truncated=truncated,
        expected_size=measured(point.expected_size) if holds else None,
        hit_rate=measured(point.hit_rate) if holds else None,
        statement=point.statement if holds else None,
    )


def _rollup(classes: ClassTable, drawn: Drawn, members: list[int], ask: Ask) -> list[Rollup] | None:
    return roll_up(classes, drawn.scores, members) if "rollup" in ask.include else None

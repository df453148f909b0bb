"""From logits to the answer. Pure: the HTTP interface and ``florilege predict`` both call it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibration.marginals import LARGEST_K, top_k_marginals
from calibration.record import CalibrationRecord, NotCalibrated, OperatingPoint
from calibration.scores import scores as to_scores
from models.classes import ClassTable
from server.errors import InvalidParameter, NotCalibratedFor
from server.measured import measured
from server.names import FALLBACK, fallback_chain, taxon
from server.rollup import roll_up
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

INCLUDES = ("scores", "marginals", "rollup")
COVERAGE_RULES = ("coverage", "balanced_coverage")
NOT_JUDGED: Verdict = "not_judged"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a caller wants to know about a photo.

    Attributes:
        rule: The set rule.
        k: Average set size (exact size for ``top_k``); None is the default of the record.
        coverage: Level of the coverage rules, and only of these.
        languages: Language tags for common names, the most wanted first.
        max_results: Most entries of `results`; None keeps them all.
        include: Some of `INCLUDES`.

    Raises:
        InvalidParameter: ``k`` or ``coverage`` do not go with the rule, or are missing.
    """

    rule: Rule = "average_k"
    k: float | None = None
    coverage: float | None = None
    languages: tuple[str, ...] = (FALLBACK,)
    max_results: int | None = None
    include: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        if self.rule in COVERAGE_RULES:
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
        scores: Mean score over the photos, float64 ``(classes,)``.
        compared: The numbers compared with lambda, float64 ``(classes,)``.
        inside: Which classes are in the set, ``(classes,)``.
        order: Output indices, members of the set first, best first.
    """

    point: OperatingPoint
    calibrated: bool
    scores: Floats
    compared: Floats
    inside: Mask
    order: list[int]


def answer(
    logits: Mapping[str, NDArray[np.float32]],
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
    photos = len(next(iter(logits.values())))
    drawn = draw(logits, ask, record)
    marginals, warnings = None, fusion_warnings(drawn, photos)
    if "marginals" in ask.include:
        marginals = _marginals(logits[drawn.point.head], drawn)
    chain = fallback_chain(ask.languages)
    shown = _shown(drawn, ask)
    members = drawn.order[: int(drawn.inside.sum())]
    return Answer(
        id=request_id,
        model=model,
        query=_query(ask, drawn, photos),
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
        rejection=Rejection(verdict=NOT_JUDGED, method=None, value=None, threshold=None),
        warnings=warnings,
    )


def draw(logits: Mapping[str, NDArray[np.float32]], ask: Ask, record: CalibrationRecord) -> Drawn:
    """Score the photos, average them, and compare with the threshold.

    Raises:
        NotCalibratedFor: See `answer`.
    """
    photos = len(next(iter(logits.values())))
    point, calibrated = operating_point(record, ask, photos)
    scores = to_scores(logits[point.head], point.score_kind).mean(axis=0)  # (classes,)
    compared = point.compare(scores)  # (classes,)
    inside = point.sets(scores[np.newaxis])[0]  # (classes,)
    order = sorted(range(len(scores)), key=lambda index: (not inside[index], -compared[index]))
    return Drawn(
        point=point,
        calibrated=calibrated,
        scores=scores,
        compared=compared,
        inside=inside,
        order=order,
    )


def operating_point(
    record: CalibrationRecord, ask: Ask, photos: int
) -> tuple[OperatingPoint, bool]:
    """The calibrated setting, and whether it was calibrated for this number of photos.

    Raises:
        NotCalibratedFor: Not even for one photo.
    """
    try:
        return record.point(ask.rule, k=ask.k, coverage=ask.coverage, images=photos), True
    except NotCalibrated as error:
        if photos > 1:
            return operating_point(record, ask, 1)[0], False
        raise NotCalibratedFor(str(error), allowed=error.allowed) from error


def fusion_warnings(drawn: Drawn, photos: int) -> list[Warned]:
    """What to say where the scores of several photos were averaged without a calibration."""
    if drawn.calibrated:
        return []
    detail = (
        f"the scores of {photos} photos were averaged, for which this model is not calibrated: "
        "expect other set sizes and hit rates than those measured on single photos"
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


def _query(ask: Ask, drawn: Drawn, photos: int) -> Query:
    point = drawn.point
    return Query(
        images=photos,
        rule=ask.rule,
        k=point.k,
        coverage=point.coverage,
        lang=ask.languages[0],
    )


def _set_info(ask: Ask, drawn: Drawn, *, truncated: bool) -> SetInfo:
    point = drawn.point
    return SetInfo(
        rule=ask.rule,
        k=point.k,
        coverage=point.coverage,
        lambda_val=point.lambda_val,
        score_kind=point.score_kind,
        head=point.head,
        min_size=point.min_size,
        size=int(drawn.inside.sum()),
        calibrated=drawn.calibrated,
        truncated=truncated,
        expected_size=measured(point.expected_size) if drawn.calibrated else None,
        hit_rate=measured(point.hit_rate) if drawn.calibrated else None,
        statement=point.statement if drawn.calibrated else None,
    )


def _rollup(classes: ClassTable, drawn: Drawn, members: list[int], ask: Ask) -> list[Rollup] | None:
    return roll_up(classes, drawn.scores, members) if "rollup" in ask.include else None

"""Fit a calibration record to the logits of a split."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.fusion_thresholds import group_tables
from florilege.calibration.calibrate.list_thresholds import PASSES, list_tables
from florilege.calibration.calibrate.photo_outputs import FEATURES, SplitOutputs
from florilege.calibration.calibrate.photo_overlap import PhotoOverlap
from florilege.calibration.calibrate.threshold_tables import (
    Advance,
    Block,
    Source,
    promised_tables,
    sets_by_k,
    tabulate,
)
from florilege.calibration.distribution import Distribution, DistributionOf
from florilege.calibration.measurement import size_bins
from florilege.calibration.nested_cross_validation import (
    choose,
    choose_simplest,
    interval_of_best,
)
from florilege.calibration.photo_groups import count_plants
from florilege.calibration.record.origin import Origin, Selection
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.schema import Table
from florilege.calibration.record.shot_groups import measure_by_shots
from florilege.calibration.rejection.ood_scores import FEATURE_METHODS, METHODS
from florilege.calibration.rejection.reference import Reference
from florilege.calibration.rejection.rejection_rule import RejectionRule, fit_rejection, parts
from florilege.calibration.rules import class_weights
from florilege.calibration.scores import ScoreKind, scores
from florilege.calibration.sets import largest_set

SIZE_TOLERANCE = 1.05
"""Sets larger than this times K hit more because of their size, not because of their scores."""
TEMPERATURE_ROWS = 5000
"""As many rows at most choose the temperature; more would only cost time."""


def fit_record(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    *,
    class_counts: NDArray[np.int64] | None,
    overlap: PhotoOverlap = PhotoOverlap(),  # noqa: B008  # unknown overlap; immutable
    reference: Reference | None = None,
    advance: Advance = lambda rows: None,
) -> CalibrationRecord:
    """Choose the head and scores to serve, calibrate every rule, and measure all of them.

    Args:
        outputs: Outputs for the calibration split.
        plan: Settings of the calibration.
        class_counts: Training images per class, shape ``(classes,)``; None to count the photos of
            the split itself.
        overlap: How many of its photos trained or chose the network.
        reference: The features to compare with, for the rejection methods that need them; the
            outputs must then hold features.
        advance: Called with the number of rows after each block; in total with
            ``passes(outputs, plan)`` times the rows.
    """
    labels, counts = outputs.labels, class_counts
    if counts is None:
        counts = np.bincount(labels, minlength=plan.classes)
    choice = _choose_source(outputs, plan, advance)
    served = choice.source
    weights = class_weights(counts, plan.macro_weight)
    single = tabulate(served, plan, plan.grid)
    tables = single.tables
    threshold = tables[0].columns.lambda_val[plan.grid.index(plan.default_k)]  # of average_k
    tables += tabulate(served, plan, plan.grid, weights=weights).tables
    tables += promised_tables(served, plan, weights)
    for images in plan.images:
        tables += group_tables(outputs, plan, served, images=images, weights=weights)
        advance(len(labels))
    lists = [
        list_tables(outputs, plan, served, region, class_counts=counts, advance=advance)
        for region in plan.lists
    ]
    for _, tables_of_list in lists:
        tables += tables_of_list
    tables += choice.other_tables
    low, high = interval_of_best(single.hits, choice.candidates, plants=outputs.plants)
    distribution, rejection = _fit_familiarity(outputs, served, plan, reference, advance)
    return CalibrationRecord(
        calibration_id="",
        created=datetime.now(UTC).isoformat(),
        classes=plan.classes,
        head=served.head,
        score_kind=served.score_kind,
        temperature=served.temperature,
        asked_k=plan.ks,
        asked_coverage=plan.coverages,
        measured=Origin(
            split=outputs.split,
            rows=len(labels),
            classes_seen=np.unique(labels).size,
            data_sha256=outputs.data_sha256,
            model_sha256=outputs.model_sha256,
            runtime=outputs.runtime.name,
            precision=outputs.runtime.precision,
            observations=count_plants(outputs.plants),
            **overlap._asdict(),
            chose_head=choice.candidates > 1,
        ),
        selection=Selection(
            k=plan.default_k,
            candidates=choice.candidates,
            hit_rate=float(single.hits.mean()),
            honest_hit_rate=choice.honest_hit_rate,
            honest_ci95=(min(low, choice.honest_hit_rate), high),
        ),
        class_counts=tuple(counts.tolist()),
        class_counts_from=outputs.split if class_counts is None else "train",
        macro_weight=plan.macro_weight,
        size_bins=tuple(size_bins(plan.classes).tolist()),
        distribution=distribution,
        rejection=rejection,
        shots=()
        if class_counts is None
        else measure_by_shots(
            single.sizes,
            single.hits,
            labels,
            class_counts,
            largest=largest_set(plan.classes, served.score_kind, threshold),
            plants=outputs.plants,
        ),
        lists=tuple(calibrated for calibrated, _ in lists),
        tables=tuple(tables),
    ).with_id()


class _SourceChoice(NamedTuple):
    """The scores to serve, and how they were chosen."""

    source: Source
    candidates: int
    honest_hit_rate: float
    other_tables: list[Table]  # of the candidates that do not serve


def _choose_source(outputs: SplitOutputs, plan: CalibrationPlan, advance: Advance) -> _SourceChoice:
    """Choose head and kind of score by their hits, then the temperature."""
    sources = [
        single_photos(outputs, *candidate, advance=advance)
        for candidate in plan.candidates(outputs.heads)
    ]
    results = [tabulate(source, plan, plan.compared) for source in sources]
    eligible = comparable([float(each.sizes.mean()) for each in results], plan.default_k)
    choice = choose([results[index].hits for index in eligible], plants=outputs.plants)
    best = eligible[choice.best]
    softmax = [index for index in eligible if sources[index].score_kind == "softmax"]
    temperatures = plan.temperatures_for(len(sources))[1:] if softmax else ()
    served, gain = sources[best], 0.0
    if temperatures:
        head = sources[max(softmax, key=lambda index: results[index].hits.sum())].head
        temperature, gain = _choose_temperature(outputs, plan, served, head, temperatures)
        if temperature is not None:
            served = single_photos(outputs, head, "softmax", temperature, advance=advance)
    return _SourceChoice(
        source=served,
        candidates=len(sources) + len(temperatures),
        honest_hit_rate=min(1.0, choice.honest_hit_rate + gain),
        other_tables=[
            table
            for source, each in zip(sources, results, strict=True)
            for table in each.tables
            if source is not served
        ],
    )


def _choose_temperature(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    base: Source,
    head: str,
    temperatures: Sequence[float],
) -> tuple[float | None, float]:
    """The temperature of softmax that clearly hits more than ``base``, or None, and the gain.

    The gain is in the hit rate at the default K. Scores whose ties enlarge sets are left out.
    """
    step = -(-base.rows // TEMPERATURE_ROWS)
    candidates = [(base.head, base.score_kind, base.temperature)]
    candidates += [(head, "softmax", temperature) for temperature in temperatures]
    hits = list[NDArray[np.bool_]]()
    for candidate in candidates:
        sizes, each = sets_by_k(single_photos(outputs, *candidate, step=step), plan)
        too_large = sizes.mean(axis=0) > SIZE_TOLERANCE * np.array(plan.compared)
        hits.append(hits[0] if hits and too_large.any() else each)
    plants = None if base.plants is None else base.plants[::step]
    index, gains = choose_simplest(np.stack(hits), plants=plants)
    gain = float(gains[plan.compared.index(plan.default_k)])
    return (None if index == 0 else candidates[index][2]), gain


def passes(outputs: SplitOutputs, plan: CalibrationPlan) -> int:
    """How often :func:`fit_record` reads all rows; each entry of ``plan.images`` counts once."""
    candidates = plan.candidates(outputs.heads)
    return 2 * len(candidates) + 8 + len(plan.images) + PASSES * len(plan.lists)


def single_photos(
    outputs: SplitOutputs,
    head: str,
    kind: ScoreKind,
    temperature: float,
    *,
    step: int = 1,
    advance: Advance = lambda rows: None,
) -> Source:
    """The scores of every ``step``-th photo alone, as a source that can be read repeatedly."""

    def blocks() -> Iterator[Block]:
        first = 0
        for (logits,), labels in outputs.blocks(head):
            rows = slice(-first % step, None, step)
            yield scores(logits[rows], kind, temperature=temperature), labels[rows]
            first += len(labels)
            advance(len(labels))

    return Source(
        blocks=blocks,
        rows=len(outputs.labels[::step]),
        head=head,
        score_kind=kind,
        temperature=temperature,
        plants=None if outputs.plants is None else outputs.plants[::step],
    )


def comparable(sizes: Sequence[float], average_k: float) -> list[int]:
    """The candidates whose hits may be compared: the mean size of their sets is about K.

    Where many scores are equal, as in a barely trained network, ties at the cut enlarge the sets,
    and larger sets hit more. If the sets of all candidates are too large, the one with the smallest
    sets remains.

    Example:
        >>> comparable([38.1, 3.0, 3.02], 3.0)
        [1, 2]
    """
    eligible = [index for index, size in enumerate(sizes) if size <= SIZE_TOLERANCE * average_k]
    return eligible or [int(np.argmin(sizes))]


def _fit_familiarity(
    outputs: SplitOutputs,
    served: Source,
    plan: CalibrationPlan,
    reference: Reference | None,
    advance: Advance,
) -> tuple[Distribution, RejectionRule | None]:
    """The distribution of the scores, and the rule that marks unfamiliar photos as suspect."""
    distribution, kind = DistributionOf(), served.score_kind
    familiarity = list[NDArray[np.float64]]()
    method = plan.rejection_method
    names = (served.head, FEATURES) if method in FEATURE_METHODS else (served.head,)
    for (logits, *features), labels in outputs.blocks(*names):
        distribution.update(logits, scores(logits, kind, temperature=served.temperature))
        if features:
            assert reference is not None  # the plan provides one where features are needed
            familiarity.append(parts(logits, kind, features[0], reference))
        elif method is not None:
            familiarity.append(METHODS[method](logits, kind)[:, np.newaxis])
        advance(len(labels))
    if method is None:
        return distribution.result(), None
    return distribution.result(), fit_rejection(
        method,
        plan.suspect_share,
        np.concatenate(familiarity),
        head=served.head,
        score_kind=kind,
        reference_sha256=None if reference is None else reference.sha256,
    )

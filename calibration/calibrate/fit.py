"""From the logits of a split to a calibration record."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

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
    tabulate,
)
from florilege.calibration.distribution import Distribution, DistributionOf
from florilege.calibration.measurement import size_bins
from florilege.calibration.nested_cross_validation import choose
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

SWOLLEN = 1.05  # times K: sets larger than this hit more for their size, not their scores


def fit_record(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    *,
    class_counts: NDArray[np.int64] | None,
    overlap: PhotoOverlap = PhotoOverlap(),  # noqa: B008  # nothing known, and it cannot change
    reference: Reference | None = None,
    advance: Advance = lambda rows: None,
) -> CalibrationRecord:
    """Calibrate every rule, choose what serves, and measure it all.

    Args:
        outputs: Those of the calibration split.
        plan: What is asked for.
        class_counts: Training images per class, shape ``(classes,)``; None to count the photos of
            the split itself.
        overlap: What its photos did for the network before.
        reference: What features are compared with, for the rejection methods that need it; the
            outputs then have to hold features.
        advance: Called with the number of rows after each block; in all
            ``passes(outputs, plan)`` times the rows.
    """
    labels, counts = outputs.labels, class_counts
    if counts is None:
        counts = np.bincount(labels, minlength=plan.classes)
    served, selection, other_tables = _choose_source(outputs, plan, advance)
    weights = class_weights(counts, plan.micro_weight)
    single = tabulate(served, plan, plan.grid)
    tables = single.tables
    threshold = tables[0].columns.lambda_val[plan.grid.index(plan.default_k)]  # of average_k
    tables += tabulate(served, plan, plan.grid, weights=weights).tables
    tables += promised_tables(served, plan)
    for images in plan.images:
        tables += group_tables(outputs, plan, served, images=images, weights=weights)
        advance(len(labels))
    lists = [
        list_tables(outputs, plan, served, region, class_counts=counts, advance=advance)
        for region in plan.lists
    ]
    for _, tables_of_list in lists:
        tables += tables_of_list
    tables += other_tables
    distribution, rejection = _familiarity(outputs, served, plan, reference, advance)
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
            chose_head=selection.candidates > 1,
        ),
        selection=selection,
        class_counts=tuple(counts.tolist()),
        class_counts_from=outputs.split if class_counts is None else "train",
        micro_weight=plan.micro_weight,
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


def _choose_source(
    outputs: SplitOutputs, plan: CalibrationPlan, advance: Advance
) -> tuple[Source, Selection, list[Table]]:
    """The scores that serve, how they were chosen, and the tables of those that do not serve."""
    sources = [
        single_photos(outputs, *candidate, advance=advance)
        for candidate in plan.candidates(outputs.heads)
    ]
    compared = [tabulate(source, plan, plan.compared) for source in sources]
    fair = comparable([float(each.sizes.mean()) for each in compared], plan.default_k)
    choice = choose([compared[index].hits for index in fair], plants=outputs.plants)
    best = fair[choice.best]
    selection = Selection(
        k=plan.default_k,
        candidates=len(sources),
        hit_rate=choice.hit_rate,
        honest_hit_rate=choice.honest_hit_rate,
        honest_ci95=choice.honest_ci95,
    )
    others = compared[:best] + compared[best + 1 :]
    return sources[best], selection, [table for other in others for table in other.tables]


def passes(outputs: SplitOutputs, plan: CalibrationPlan) -> int:
    """How often :func:`fit_record` reads all rows; each number of photos counts once."""
    candidates = plan.candidates(outputs.heads)
    return 2 * len(candidates) + 7 + len(plan.images) + PASSES * len(plan.lists)


def single_photos(
    outputs: SplitOutputs, head: str, kind: ScoreKind, temperature: float, *, advance: Advance
) -> Source:
    """The scores of single photos, which can be read any number of times."""

    def blocks() -> Iterator[Block]:
        for (logits,), labels in outputs.blocks(head):
            yield scores(logits, kind, temperature=temperature), labels
            advance(len(labels))

    return Source(
        blocks=blocks,
        rows=len(outputs.labels),
        head=head,
        score_kind=kind,
        temperature=temperature,
        plants=outputs.plants,
    )


def comparable(sizes: Sequence[float], average_k: float) -> list[int]:
    """The candidates whose hits may be compared: their sets hold K on average.

    Where many scores are equal, as with a network that has hardly learned, ties at the cut swell
    the sets, and larger sets hit more. If all are swollen, the least swollen is left.

    Example:
        >>> comparable([38.1, 3.0, 3.02], 3.0)
        [1, 2]
    """
    fair = [index for index, size in enumerate(sizes) if size <= SWOLLEN * average_k]
    return fair or [int(np.argmin(sizes))]


def _familiarity(
    outputs: SplitOutputs,
    served: Source,
    plan: CalibrationPlan,
    reference: Reference | None,
    advance: Advance,
) -> tuple[Distribution, RejectionRule | None]:
    """How the scores are distributed, and below which familiarity a photo is suspect."""
    gathered, familiarity, kind = DistributionOf(), list[NDArray[np.float64]](), served.score_kind
    method = plan.rejection_method
    names = (served.head, FEATURES) if method in FEATURE_METHODS else (served.head,)
    for (logits, *features), labels in outputs.blocks(*names):
        gathered.update(logits, scores(logits, kind, temperature=served.temperature))
        if features:
            assert reference is not None  # a method that needs features comes with one
            familiarity.append(parts(logits, kind, features[0], reference))
        elif method is not None:
            familiarity.append(METHODS[method](logits, kind)[:, np.newaxis])
        advance(len(labels))
    if method is None:
        return gathered.result(), None
    return gathered.result(), fit_rejection(
        method,
        plan.suspect_share,
        np.concatenate(familiarity),
        head=served.head,
        score_kind=kind,
        reference_sha256=None if reference is None else reference.sha256,
    )

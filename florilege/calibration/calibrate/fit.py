"""Fit a calibration record to the logits of a split."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.place_thresholds import PhotoPlaces, place_tables
from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.calibrate.threshold_tables import (
    Tabulated,
    promised_tables,
    sets_by_k,
    tabulate,
    top_k_tables,
)
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.distribution import Distribution, DistributionOf
from florilege.calibration.marginals import LARGEST_K
from florilege.calibration.measurement import measure_by_shots, size_bins
from florilege.calibration.nested_cross_validation import choose, choose_simplest, interval_of_best
from florilege.calibration.photo_groups import FEWEST_GROUPS, count_plants, groups_of
from florilege.calibration.record.origin import Origin, Selection
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.schema import CalibratedList, Table
from florilege.calibration.rejection.reference import Reference
from florilege.calibration.rejection.rejection_rule import (
    RejectionRule,
    UnseenThreshold,
    fit_rejection,
    fit_unseen,
    generalised_entropy,
    parts,
)
from florilege.calibration.rules import class_weights
from florilege.calibration.scores import scores
from florilege.calibration.sets import largest_set
from florilege.calibration.validation import Bools, Floats, Ints
from florilege.models.session import FEATURES
from florilege.progress import Advance, progress

SIZE_TOLERANCE = 1.05
"""Sets larger than this times K hit more because of their size, not because of their scores.

Where many scores are equal, as in a barely trained network, ties at the cut enlarge the sets."""
TEMPERATURE_ROWS = 5000  # photos that choose the temperature; more would only cost time
MARGINAL_GROUPS = 2000  # groups that measure ``top_k``: its marginals are slow


def fit_record(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    *,
    class_counts: Ints | None,
    overlap: PhotoOverlap = PhotoOverlap(),  # noqa: B008  # unknown overlap; immutable
    reference: Reference | None = None,
    places: PhotoPlaces | None = None,
) -> CalibrationRecord:
    """Choose the head and scores to serve, calibrate every rule, and measure all of them.

    ``class_counts`` are training images, ``(classes,)``; None counts the photos of the split. A
    ``reference``, for a plan with a rejection method, needs outputs with features.
    """
    labels, counts = outputs.labels, class_counts
    if counts is None:
        counts = np.bincount(labels, minlength=plan.classes)
    weights, prior = class_weights(counts, plan.macro_weight), None
    steps = len(plan.candidates(outputs.heads)) + 3 + len(plan.images) + len(plan.lists)
    with progress(steps, "choosing thresholds") as advance:
        served, candidates, honest_hit_rate, other_tables = _choose_source(outputs, plan, advance)
        single = tabulate(served, plan, plan.grid, weights=weights)
        tables = single.tables
        threshold = tables[0].columns.lambda_val[plan.grid.index(plan.default_k)]  # of average_k
        advance()
        tables += promised_tables(served, plan, weights)
        advance()
        for images in plan.images:
            tables += _group_tables(outputs, plan, served, images, weights)
            advance()
        for region in plan.lists:
            listed = served.of_list(outputs, region)
            if listed.rows:  # without further guarantees
                own_weights = class_weights(counts[list(region.classes)], plan.macro_weight)
                tables += tabulate(listed, plan, plan.compared, weights=own_weights).tables
            advance()
        tables += other_tables
        if places is not None:
            prior, of_places = place_tables(outputs, plan, served, places, weights)
            tables += of_places
        distribution, rejection = _fit_familiarity(outputs, served, plan, reference)
        advance()
    low, high = interval_of_best(single.hits, candidates, plants=outputs.plants)
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
            chose_head=candidates > 1,
        ),
        selection=Selection(
            k=plan.default_k,
            candidates=candidates,
            hit_rate=float(single.hits.mean()),
            honest_hit_rate=honest_hit_rate,
            honest_ci95=(min(low, honest_hit_rate), high),
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
        lists=tuple(
            CalibratedList(
                name=region.name,
                classes=region.classes,
                rows=int(np.isin(labels, region.classes).sum()),
                classes_seen=np.intersect1d(labels, region.classes).size,
            )
            for region in plan.lists
        ),
        tables=tuple(tables),
        place_prior=prior,
    ).with_id()


def _choose_source(
    outputs: SplitOutputs, plan: CalibrationPlan, advance: Advance
) -> tuple[Source, int, float, list[Table]]:
    """Choose head and kind of score by their hits, then the temperature.

    Returns the scores to serve, the number of candidates, the hit rate of such a choice on other
    photos, and the tables of the candidates that do not serve.
    """
    results = list[Tabulated]()
    for candidate in plan.candidates(outputs.heads):
        results.append(tabulate(Source.of_photos(outputs, *candidate), plan, plan.compared))
        advance()
    eligible = _eligible(results, plan.default_k)
    choice, honest_hit_rate = choose([each.hits for each in eligible], plants=outputs.plants)
    served, gain = eligible[choice].source, 0.0
    softmax = [each for each in eligible if each.source.score_kind == "softmax"]
    temperatures = plan.temperatures_for(len(results))[1:] if softmax else ()
    if temperatures:
        head = max(softmax, key=lambda each: each.hits.sum()).source.head
        served, gain = _choose_temperature(outputs, plan, served, head, temperatures)
    others = [table for each in results if each.source is not served for table in each.tables]
    return served, len(results) + len(temperatures), min(1.0, honest_hit_rate + gain), others


def _eligible(results: Sequence[Tabulated], k: float) -> list[Tabulated]:
    """The candidates with sets of the requested size; the smallest sets if ties enlarge all."""
    sizes = np.array([each.sizes.mean() for each in results])
    rows = np.flatnonzero(sizes <= SIZE_TOLERANCE * k).tolist() or [int(sizes.argmin())]
    return [results[row] for row in rows]


def _choose_temperature(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    base: Source,
    head: str,
    temperatures: Sequence[float],
) -> tuple[Source, float]:
    """Softmax scores at a temperature that clearly hits more than ``base``, or else ``base``.

    The second value is the gain in the hit rate at the default K. Scores whose ties enlarge sets
    are left out.
    """
    step = -(-base.rows // TEMPERATURE_ROWS)
    candidates = [(base.head, base.score_kind, base.temperature)]
    candidates += [(head, "softmax", temperature) for temperature in temperatures]
    hits = list[Bools]()
    for candidate in candidates:
        sizes, each = sets_by_k(Source.of_photos(outputs, *candidate, step=step), plan)
        too_large = sizes.mean(axis=0) > SIZE_TOLERANCE * np.array(plan.compared)
        hits.append(hits[0] if hits and too_large.any() else each)
    plants = None if base.plants is None else base.plants[::step]
    index, gains = choose_simplest(np.stack(hits), plants=plants)
    gain = float(gains[plan.compared.index(plan.default_k)])
    return (Source.of_photos(outputs, *candidates[index]) if index else base), gain


def _group_tables(
    outputs: SplitOutputs, plan: CalibrationPlan, single: Source, images: int, weights: Floats
) -> list[Table]:
    """Tables of every rule for groups of photos, at the requested K and coverages.

    Groups show one plant where the data name plants, else one species. Fewer than 100 groups get
    no tables.
    """
    groups = groups_of(outputs.labels, size=images, observations=outputs.observations)
    if len(groups.rows) < FEWEST_GROUPS:
        return []
    groups = groups._replace(rows=np.random.default_rng(0).permutation(groups.rows))
    source = single.of_groups(outputs, groups)
    tables = tabulate(source, plan, plan.compared, weights=weights).tables
    tables += promised_tables(source, plan, weights)
    few = groups._replace(rows=groups.rows[:MARGINAL_GROUPS])
    ks = (int(k) for k in plan.compared if 1 <= k == int(k) <= LARGEST_K)
    marginals = {k: single.of_groups(outputs, few, k=k) for k in ks}
    return tables + top_k_tables(marginals, plan)


def _fit_familiarity(
    outputs: SplitOutputs, served: Source, plan: CalibrationPlan, reference: Reference | None
) -> tuple[Distribution, RejectionRule | None]:
    """The distribution of the scores, and the rule that marks unfamiliar photos as suspect."""
    distribution, kind = DistributionOf(), served.score_kind
    familiarity, of_others = list[Floats](), list[Floats]()
    names = (served.head,) if reference is None else (served.head, FEATURES)
    for (logits, *features), labels in outputs.blocks(*names):
        distribution.update(logits, scores(logits, kind, temperature=served.temperature))
        if reference is not None:
            familiarity.append(parts(logits, kind, features[0], reference))
            nearest = reference.nearest_of_others(features[0], labels)
            of_others += [] if nearest is None else [nearest]
        elif plan.rejection_method is not None:
            familiarity.append(generalised_entropy(logits, kind)[:, np.newaxis])
    if not familiarity:
        return distribution.result(), None
    values, unseen = np.concatenate(familiarity), tuple[UnseenThreshold, ...]()
    if of_others:
        nearest = np.concatenate(of_others)
        unseen = fit_unseen(nearest, values[:, 0], outputs.labels, plan.coverages)
    return distribution.result(), fit_rejection(
        plan.suspect_share,
        values,
        head=served.head,
        score_kind=kind,
        reference_sha256=None if reference is None else reference.sha256,
        unseen=unseen,
    )

"""The page of ``florilege evaluate --report``: what the sets of a bundle do on a split."""

import html
import io
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from PIL import Image

from florilege.calibration.calibrate import diagnostic_plots as charts
from florilege.calibration.calibrate.diagnostics import (
    Findings,
    LargeSet,
    commonest_hit_rates,
    findings_of,
)
from florilege.calibration.calibrate.evaluate import Evaluated, Evaluation, asked
from florilege.calibration.calibrate.html_page import (
    Markup,
    drawing,
    interval,
    page,
    percent,
    section,
    side_by_side,
    table,
    words,
)
from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.metrics import shot_groups
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.shot_groups import ShotGroup, measure_by_shots
from florilege.calibration.rules import usual_guarantee
from florilege.calibration.scores import named
from florilege.data.dataset import Split
from florilege.models.classes import ClassTable
from florilege.models.images import ImageError, Preprocess, load
from florilege.progress import progress

_SIDE: Final = 128  # pixels of a small photo


class Seen(NamedTuple):
    """All that the sections of the page show."""

    evaluation: Evaluation
    findings: Findings
    record: CalibrationRecord
    classes: ClassTable
    photos: Split
    preprocess: Preprocess
    older: Findings | None


def evaluation_report(
    found: BundleOutputs, evaluation: Evaluation, older: Findings | None = None
) -> str:
    """The page as HTML, complete in itself, the photos with the largest sets inside it.

    ``older`` is of the same photos and of the bundle that this one is compared with.
    """
    bundle = found.bundle
    seen = Seen(
        evaluation=evaluation,
        findings=findings_of(found.record, found.outputs),
        record=found.record,
        classes=bundle.classes,
        photos=found.photos,
        preprocess=bundle.preprocess,
        older=older,
    )
    sections = []
    with progress(len(SECTIONS), "drawing the report") as advance:
        for name, shown in SECTIONS.items():
            if parts := list(shown(seen)):
                sections.append(section(name, *parts))
            advance(1, name)
    title = f"{evaluation.bundle} on {evaluation.rows:,} photos of {evaluation.split}"
    return page(title, sections)


def _summary(seen: Seen) -> Iterator[Markup]:
    findings, record = seen.findings, seen.record
    row = next(row for row in findings.average_k if row.value == findings.k)
    yield words(
        f"Asked for {findings.k:g} classes on average, the sets hold {row.size:.2f} "
        f"(95 %: {row.size_low:.2f}-{row.size_high:.2f}), and {percent(row.hit_rate)} of them "
        f"hold the right class (95 %: {interval(row.hit_low, row.hit_high)})."
        + (f" {percent(row.empty_rate)} are empty." if row.empty_rate else "")
    )
    absent = record.classes - np.unique(findings.labels).size
    yield words(
        f"{record.classes:,} classes, head {record.head}, "
        f"{named(record.score_kind, record.temperature)} scores. Thresholds were chosen on "
        f"{record.measured.rows:,} photos of {record.measured.split}."
        + (f" Classes without a photo here: {absent:,}." if absent else "")
    )


def _over_k(seen: Seen) -> Iterator[Markup]:
    findings = seen.findings
    counts = np.array(seen.record.class_counts)
    ks = np.array([int(row.value) for row in findings.top_k])
    random = (ks / len(counts)).tolist()
    baselines, unaided = {"K at random": random}, "K classes drawn at random"
    if seen.record.class_counts_from == "train":
        shares = commonest_hit_rates(findings.labels, counts)
        unaided = f"the K classes commonest in training, and {unaided}"
        baselines = {"the K commonest": shares[ks - 1].tolist(), **baselines}
    picture = charts.accuracy_over_k(findings.average_k, findings.top_k, baselines)
    sizes = charts.sizes_achieved(findings.average_k)
    k, one = findings.k, findings.top_k[0] if findings.top_k else None
    fixed = next((row for row in findings.top_k if row.value == k), None)
    wins = next(row for row in findings.average_k if row.value == k)
    told = ""
    if one is not None:
        told += f" The best class alone is right for {percent(one.hit_rate)} of the photos."
    if fixed is not None:
        told += (
            f" At K = {k:g}, sets of that size on average hold the right class for "
            f"{percent(wins.hit_rate)}, sets of exactly that size for {percent(fixed.hit_rate)}."
        )
    yield side_by_side(
        drawing(
            picture, f"Accuracy over K, with 95 % intervals.{told} Without a network: {unaided}."
        ),
        drawing(
            sizes,
            "Mean set size on these photos compared with K, with its 95 % interval: at "
            f"K = {k:g} it is {wins.size:.2f}, {(wins.size / k - 1) * 100:+.1f} %. The thresholds "
            f"were chosen for 0 % on {seen.record.measured.rows:,} photos of "
            f"{seen.record.measured.split}: the fewer those are, and the less like these, the "
            "further off.",
        ),
    )


def _rules(seen: Seen) -> Iterator[Markup]:
    evaluation = seen.evaluation
    yield table(
        ("rule", "asked", "mean size", "hit rate", "95 %", "mean over classes", "empty"),
        map(_rule, (*evaluation.rules, *evaluation.guaranteed)),
    )


def _rule(result: Evaluated) -> tuple[str, ...]:
    point, row, _ = result
    promise = "" if point.guarantee == usual_guarantee(point.rule) else f", {point.guarantee}"
    name, value = asked(point)
    return (
        f"{point.rule}{promise}",
        f"K = {value:g}" if name == "k" else percent(value),
        f"{row.size:.3f}",
        percent(row.hit_rate),
        interval(row.hit_low, row.hit_high),
        percent(row.macro_hit_rate),
        percent(row.empty_rate),
    )


def _sizes(seen: Seen) -> Iterator[Markup]:
    findings = seen.findings
    bars = charts.size_bars(findings.sizes)
    alone = (findings.sizes == 1).mean()
    half = int(np.median(findings.sizes))
    small, large = (
        percent(findings.hits[among].mean() if among.any() else None)
        for among in (findings.sizes == 1, findings.sizes > 1)
    )
    yield side_by_side(
        drawing(
            charts.sizes_of_hits(bars, findings.hits),
            f"Sets at K = {findings.k:g}: {percent(alone)} hold one class, half of all at most "
            f"{half:,}, the largest {int(findings.sizes.max()):,}.",
        ),
        drawing(
            charts.hits_of_sizes(bars, findings.hits, findings.plants),
            "How often sets of each size hold the right class, with 95 % intervals: "
            f"sets of one class {small}, larger ones {large}.",
        ),
    )


def _beside(seen: Seen) -> Iterator[Markup]:
    findings, older = seen.findings, seen.older
    if older is None:
        return
    before = {row.value: row for row in older.average_k}
    asked_for = {result.point.k for result in seen.evaluation.rules}
    yield table(
        ("K", "mean size, older", "this one", "hit rate, older", "this one"),
        (
            (
                f"{row.value:g}",
                f"{before[row.value].size:.3f}",
                f"{row.size:.3f}",
                percent(before[row.value].hit_rate),
                percent(row.hit_rate),
            )
            for row in findings.average_k
            if row.value in before and row.value in asked_for
        ),
    )
    if older.k != findings.k:
        return
    sizes = np.concatenate([older.sizes, findings.sizes])
    first = np.arange(len(sizes)) < len(older.sizes)
    yield drawing(
        charts.sizes_of_groups(
            charts.size_bars(sizes), {"the older bundle": first, "this bundle": ~first}
        ),
        f"How the set sizes of both are distributed at K = {findings.k:g}.",
    )


def _shots(seen: Seen) -> Iterator[Markup]:
    findings, record, evaluation = seen.findings, seen.record, seen.evaluation
    if record.class_counts_from != "train":
        yield words("The bundle does not say how many training photos each class has.")
        return
    counts = np.array(record.class_counts)
    groups = measure_by_shots(
        findings.sizes, findings.hits, findings.labels, counts, plants=findings.plants
    )
    among = {name: mask[findings.labels] for name, mask in shot_groups(counts).items()}
    present = {group.name: among[group.name] for group in groups}
    yield side_by_side(
        drawing(
            charts.sizes_of_groups(charts.size_bars(findings.sizes), present),
            f"Set sizes at K = {findings.k:g} of photos whose class has few training photos "
            "(fewer than 20), a medium number, or many (more than 100).",
        ),
        table(("group", "classes", "photos", "mean size", "hit rate", "95 %"), map(_group, groups)),
    )
    sized = [result for result in evaluation.rules if result.point.rule == "average_k"]
    yield words("Hit rate of average_k class by class, then the mean over the classes of a group:")
    yield table(
        ("K", *present, "all classes"),
        (
            (
                f"{result.point.k:g}",
                *(percent(result.shots[name]) for name in present),
                percent(result.row.macro_hit_rate),
            )
            for result in sized
        ),
    )


def _group(group: ShotGroup) -> tuple[str, ...]:
    return (
        group.name,
        f"{group.classes:,}",
        f"{group.rows:,}",
        f"{group.mean_size:.2f}",
        percent(group.hit_rate),
        interval(*group.hit_ci95),
    )


def _reliability(seen: Seen) -> Iterator[Markup]:
    best, every = seen.findings.best_scores, seen.findings.all_scores
    kind = named(seen.record.score_kind, seen.record.temperature)
    sigmoid = ""
    if seen.record.score_kind == "sigmoid":
        sigmoid = " Sigmoid scores do not compete: those of several classes may all be high."
    yield side_by_side(
        drawing(
            charts.reliability(best, every),
            f"Scores ({kind}) in bins of a tenth, and how often they are of the right class, with "
            "95 % intervals. Below the dotted line scores promise more than they hold. Best scores "
            f"are off by {best.gap * 100:.1f} points on average.{sigmoid}",
        ),
        drawing(
            charts.best_scores(best),
            "How sure the network is of its best class. The thresholds do not rely on scores being "
            "true: they are chosen by how large the sets become.",
        ),
    )


def _largest(seen: Seen) -> Iterator[Markup]:
    if not seen.findings.largest:
        yield words("No set holds more than one class.")
        return
    yield words(f"At K = {seen.findings.k:g}. Members with their scores, best first.")
    tiles = "".join(_tile(seen, large) for large in seen.findings.largest)
    yield Markup(f'<div class="photos">{tiles}</div>')


def _tile(seen: Seen, large: LargeSet) -> str:
    def name(label: int) -> str:
        return html.escape(seen.classes[label].scientific_name)

    shown = "".join(
        f"<li>{f'<b>{name(label)}</b>' if label == large.label else name(label)} {score:.3f}</li>"
        for label, score in large.members
    )
    rest = large.size - len(large.members)
    more = f'<span class="quiet">and {rest:,} more</span>' if rest else ""
    verdict = "in the set" if large.hit else "not in the set"
    return (
        f'<div class="photo">{_small(seen, large.row)}<div><b>{name(large.label)}</b>, {verdict}'
        f" of&nbsp;{large.size:,}<ol>{shown}</ol>{more}</div></div>\n"
    )


def _small(seen: Seen, row: int) -> str:
    """The photo as the network sees it, small; a photo that has gone meanwhile is no error."""
    try:
        size = replace(seen.preprocess, image_size=_SIDE)
        pixels = load(seen.photos.read(row), size)
    except (OSError, ImageError):
        return '<div class="missing">no picture</div>'
    jpeg = io.BytesIO()
    Image.fromarray(pixels).save(jpeg, "jpeg", quality=75)
    alt = html.escape(seen.photos.names[row])
    return f'<img alt="{alt}" src="data:image/jpeg;base64,{b64encode(jpeg.getvalue()).decode()}">'


def _pairs(seen: Seen) -> Iterator[Markup]:
    if not seen.findings.pairs:
        yield words("No set holds two classes.")
        return
    yield words(
        f"The pairs that most sets at K = {seen.findings.k:g} hold, and what the photos of these "
        "sets show."
    )
    yield table(
        ("classes", "sets with both", "shows the first", "the second", "another"),
        (
            (
                " + ".join(seen.classes[label].scientific_name for label in pair.classes),
                f"{pair.sets:,}",
                *(percent(true / pair.sets) for true in (*pair.true, pair.sets - sum(pair.true))),
            )
            for pair in seen.findings.pairs
        ),
    )


def _origin(seen: Seen) -> Iterator[Markup]:
    evaluation = seen.evaluation
    yield table(
        ("measured with", "first characters of the hash"),
        (
            ("bundle_sha256", evaluation.bundle_sha256[:16]),
            ("calibration_id", evaluation.calibration_id[:16]),
            ("data_sha256", evaluation.data_sha256[:16]),
        ),
    )


SECTIONS: Final[Mapping[str, Callable[[Seen], Iterator[Markup]]]] = {
    "In short": _summary,
    "Accuracy and size over K": _over_k,
    "Set sizes": _sizes,
    "Beside the older bundle": _beside,
    "Rare and common classes": _shots,
    "Are the scores to be believed?": _reliability,
    "Photos with the largest sets": _largest,
    "Classes that share sets": _pairs,
    "Every rule": _rules,
    "Where the figures come from": _origin,
}
"""The page from top to bottom."""

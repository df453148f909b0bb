"""The page of ``--report``: the sets of a bundle on a split."""

import io
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import Final, NamedTuple

import numpy as np
from PIL import Image

from florilege.calibration.calibrate import BundleOutputs, Evaluation
from florilege.calibration.record import CalibrationRecord, Row, measure_by_shots
from florilege.calibration.report import diagnostic_plots as charts
from florilege.calibration.report.diagnostics import Diagnostics, LargeSet, diagnose
from florilege.calibration.report.html_page import (
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
from florilege.calibration.scores import score_name
from florilege.calibration.sets import Ints
from florilege.models.images import ImageError, load

_PHOTO_SIDE: Final = 128  # pixels of a small photo


class _ReportContent(NamedTuple):
    measured: BundleOutputs
    record: CalibrationRecord
    labels: Ints  # true class indices, (rows,)
    evaluation: Evaluation
    diagnostics: Diagnostics
    baseline: Diagnostics | None

    @property
    def row(self) -> Row:
        """The figures of ``average_k`` at the default K."""
        return next(row for row in self.diagnostics.average_k if row.value == self.diagnostics.k)


def evaluation_report(
    measured: BundleOutputs, evaluation: Evaluation, baseline: Diagnostics | None = None
) -> str:
    """The page as a self-contained HTML file, with the photos of the largest sets.

    ``baseline`` are the diagnostics of the bundle to compare with, on the same photos.
    """
    _, record, outputs, _ = measured
    diagnostics = diagnose(record, outputs)
    content = _ReportContent(measured, record, outputs.labels, evaluation, diagnostics, baseline)
    parts = {name: list(parts_of(content)) for name, parts_of in SECTIONS.items()}
    name, _, version = evaluation.bundle.rpartition(" ")
    title = f"{name}, version {version}, on {evaluation.rows:,} photos of {evaluation.split}"
    return page(title, (section(name, *part) for name, part in parts.items() if part))


def _summary(content: _ReportContent) -> Iterator[Markup]:
    row, record = content.row, content.record
    yield words(
        f"Asked for {row.value:g} classes on average, the sets hold {row.size:.2f} "
        f"(95 %: {row.size_low:.2f}-{row.size_high:.2f}), and {percent(row.hit_rate)} of them "
        f"hold the right class (95 %: {interval(row.hit_low, row.hit_high)})."
        + (f" {percent(row.empty_rate)} are empty." if row.empty_rate else "")
    )
    absent = record.classes - np.unique(content.labels).size
    measured = record.measured
    chosen_on = f"{measured.rows:,} photos of {measured.split}"
    if content.evaluation.data_sha256 == measured.data_sha256:
        chosen_on = "these same photos: new photos may do a little worse"
    yield words(
        f"{record.classes:,} classes, head {record.head}, "
        f"{score_name(record.score_kind, record.temperature)} scores. Thresholds were chosen on "
        f"{chosen_on}." + (f" Classes without a photo here: {absent:,}." if absent else "")
    )
    if content.evaluation.noise_calibrated or content.evaluation.label_noise is not None:
        yield words(
            "This page takes labels as right. If some are wrong, its hit rates are too low, and "
            "lower than figures that allow for wrong labels."
        )


def _over_k(content: _ReportContent) -> Iterator[Markup]:
    diagnostics = content.diagnostics
    counts = np.array(content.record.class_counts)
    ks = np.array([int(row.value) for row in diagnostics.top_k])
    random = (ks / len(counts)).tolist()
    baselines, guesses = {"K at random": random}, "K classes drawn at random"
    if content.record.class_counts_from == "train":
        photos = np.bincount(content.labels, minlength=len(counts))
        commonest = np.argsort(-counts, kind="stable")
        shares = photos[commonest].cumsum() / photos.sum()  # (classes,), for each K from 1
        guesses = f"the K classes most common in training, and {guesses}"
        baselines = {"the K commonest": shares[ks - 1].tolist(), **baselines}
    picture = charts.accuracy_over_k(diagnostics.average_k, diagnostics.top_k, baselines)
    average, k = content.row, diagnostics.k
    rates = {row.value: percent(row.hit_rate) for row in diagnostics.top_k}
    accuracy = ""
    if rates:
        alone = next(iter(rates.values()))
        accuracy = f" The best class alone is right for {alone} of the photos."
    if k in rates:
        accuracy += (
            f" At K = {k:g}, sets of that size on average hold the right class for "
            f"{percent(average.hit_rate)}, sets of exactly that size for {rates[k]}."
        )
    caption = f"Accuracy over K, with 95 % intervals.{accuracy} Without a network: {guesses}."
    yield side_by_side(
        drawing(picture, caption),
        drawing(
            charts.sizes_achieved(diagnostics.average_k),
            "Mean set size on these photos compared with K, with its 95 % interval: at "
            f"K = {k:g} it is {average.size:.2f}, {(average.size / k - 1) * 100:+.1f} %. The "
            f"thresholds give {_excess(content):g} % on the "
            f"{content.record.measured.rows:,} photos of {content.record.measured.split} that "
            "chose them; the difference grows if those are few or unlike these.",
        ),
    )


def _excess(content: _ReportContent) -> float:
    """By how many percent ties make the sets of the calibration photos larger than K."""
    point = content.record.default_point
    return round(100 * (point.row.size / point.row.value - 1), 1) + 0.0  # never -0.0


def _rules(content: _ReportContent) -> Iterator[Markup]:
    rows = []
    for point, row, _, macro in (*content.evaluation.rules, *content.evaluation.guaranteed):
        promise = f", {point.guarantee}" if point.on_request else ""
        level = f"K = {point.k:g}" if point.coverage is None else f"{100 * point.coverage:.8g} %"
        hits = (percent(row.hit_rate), interval(row.hit_low, row.hit_high))
        shares = (percent(macro), percent(row.empty_rate))
        rows.append((f"{point.rule}{promise}", level, f"{row.size:.3f}", *hits, *shares))
    head = ("rule", "asked", "mean size", "hit rate", "95 %", "mean over classes", "empty")
    yield table(head, rows)


def _sizes(content: _ReportContent) -> Iterator[Markup]:
    sizes, hits = content.diagnostics.sizes, content.diagnostics.hits
    single = (sizes == 1).mean()
    small, large = (
        percent(hits[among].mean() if among.any() else None) for among in (sizes == 1, sizes > 1)
    )
    yield side_by_side(
        drawing(
            charts.sizes_of_hits(sizes, hits),
            f"Sets at K = {content.diagnostics.k:g}: {percent(single)} hold one class, half of all "
            f"at most {int(np.median(sizes)):,}, the largest {int(sizes.max()):,}.",
        ),
        drawing(
            charts.hits_of_sizes(sizes, hits, content.measured.outputs.observations),
            "How often sets of each size hold the right class, with 95 % intervals: "
            f"sets of one class {small}, larger ones {large}.",
        ),
    )


def _comparison(content: _ReportContent) -> Iterator[Markup]:
    diagnostics, baseline = content.diagnostics, content.baseline
    if baseline is None:
        return
    older = {row.value: row for row in baseline.average_k}
    asked_for = {result.point.k for result in content.evaluation.rules}
    rows = []
    for row in diagnostics.average_k:
        if row.value in asked_for & older.keys():
            old = older[row.value]
            sizes = (f"{old.size:.3f}", f"{row.size:.3f}")
            rows.append((f"{row.value:g}", *sizes, percent(old.hit_rate), percent(row.hit_rate)))
    yield table(("K", "mean size, older", "this one", "hit rate, older", "this one"), rows)
    if baseline.k != diagnostics.k:
        return
    both = np.concatenate([baseline.sizes, diagnostics.sizes])
    first = np.arange(len(both)) < len(baseline.sizes)
    groups = {"the older bundle": first, "this bundle": ~first}
    yield drawing(
        charts.sizes_of_groups(both, groups),
        f"Distribution of the set sizes of both bundles at K = {diagnostics.k:g}.",
    )


def _shots(content: _ReportContent) -> Iterator[Markup]:
    diagnostics, record, evaluation = content.diagnostics, content.record, content.evaluation
    if not record.shot_groups:
        yield words("The bundle does not say how many training photos each class has.")
        return
    counts = np.array(record.class_counts)
    sizes, hits = diagnostics.sizes, diagnostics.hits
    observations = content.measured.outputs.observations
    groups = measure_by_shots(sizes, hits, content.labels, counts, observations=observations)
    among = {name: mask[content.labels] for name, mask in record.shot_groups.items()}
    present = {group.name: among[group.name] for group in groups}
    cells = []
    for group in groups:
        numbers = (f"{group.classes:,}", f"{group.rows:,}", f"{group.mean_size:.2f}")
        cells.append((group.name, *numbers, percent(group.hit_rate), interval(*group.hit_ci95)))
    yield side_by_side(
        drawing(
            charts.sizes_of_groups(sizes, present),
            f"Set sizes at K = {diagnostics.k:g} of photos whose class has few training photos "
            "(fewer than 20), a medium number, or many (more than 100).",
        ),
        table(("group", "classes", "photos", "mean size", "hit rate", "95 %"), cells),
    )
    yield words("Mean over the classes of a group of the hit rate of average_k:")
    rows = (
        (f"{point.k:g}", *(percent(shots[name]) for name in present), percent(macro))
        for point, _, shots, macro in evaluation.rules
        if point.rule == "average_k"
    )
    yield table(("K", *present, "all classes"), rows)


def _reliability(content: _ReportContent) -> Iterator[Markup]:
    best, every = content.diagnostics.best_scores, content.diagnostics.all_scores
    kind = score_name(content.record.score_kind, content.record.temperature)
    sigmoid = ""
    if content.record.score_kind == "sigmoid":
        sigmoid = " Sigmoid scores are independent: several classes may have high scores."
    yield drawing(
        charts.reliability(best, every),
        f"Scores ({kind}) in bins of a tenth, and how often they are of the right class, with "
        "95 % intervals; the bars show how confident the network is of its best class. Below the "
        "dotted line scores are overconfident. Best scores are off by "
        f"{best.gap * 100:.1f} points on average.{sigmoid} The thresholds do not assume that "
        "scores are calibrated: the set sizes determine them.",
    )


def _largest(content: _ReportContent) -> Iterator[Markup]:
    if not content.diagnostics.largest:
        yield words("No set holds more than one class.")
        return
    yield words(f"At K = {content.diagnostics.k:g}. Members with their scores, best first.")
    tiles = "".join(_photo_tile(content.measured, large) for large in content.diagnostics.largest)
    yield Markup(f'<div class="photos">{tiles}</div>')


def _photo_tile(measured: BundleOutputs, large: LargeSet) -> Markup:
    """A photo, its class, and the best classes of its set; its own class is bold."""
    names = [escape(item.scientific_name) for item in measured.bundle.classes]
    truth, members = f"<b>{names[large.label]}</b>", ""
    for label, score in large.members:
        members += f"<li>{truth if label == large.label else names[label]} {score:.3f}</li>"
    caption = f"{truth}, {'in' if large.hit else 'not in'} the set of&nbsp;{large.size:,}"
    remaining = large.size - len(large.members)
    more = f'<span class="quiet">and {remaining:,} more</span>' if remaining else ""
    return Markup(
        f'<div class="photo">{_picture(measured, large.row)}<div>{caption}<ol>{members}</ol>'
        f"{more}</div></div>\n"
    )


def _picture(measured: BundleOutputs, row: int) -> str:
    """A thumbnail of the preprocessed photo, or a placeholder if it cannot be read."""
    try:
        size = replace(measured.bundle.preprocess, image_size=_PHOTO_SIDE)
        pixels = load(measured.photos.read(row), size)
    except (OSError, ImageError):
        return '<div class="missing">no picture</div>'
    jpeg = io.BytesIO()
    Image.fromarray(pixels).save(jpeg, "jpeg", quality=75)
    source = f"data:image/jpeg;base64,{b64encode(jpeg.getvalue()).decode()}"
    return f'<img alt="{escape(measured.photos.names[row])}" src="{source}">'


def _pairs(content: _ReportContent) -> Iterator[Markup]:
    if not content.diagnostics.pairs:
        yield words("No set holds two classes.")
        return
    k, classes = content.diagnostics.k, content.measured.bundle.classes
    yield words(
        f"The pairs of classes that share the most sets at K = {k:g}, and what these photos show."
    )
    yield table(
        ("classes", "sets with both", "shows the first", "the second", "another"),
        (
            (
                " + ".join(classes[label].scientific_name for label in pair.classes),
                f"{pair.sets:,}",
                *(percent(true / pair.sets) for true in (*pair.true, pair.sets - sum(pair.true))),
            )
            for pair in content.diagnostics.pairs
        ),
    )


def _origin(content: _ReportContent) -> Iterator[Markup]:
    hashes = ("bundle_sha256", "calibration_id", "data_sha256")
    rows = ((name, getattr(content.evaluation, name)[:16]) for name in hashes)
    yield table(("measured with", "first characters of the hash"), rows)


SECTIONS: Final[Mapping[str, Callable[[_ReportContent], Iterator[Markup]]]] = {
    "In short": _summary,
    "Accuracy and size over K": _over_k,
    "Set sizes": _sizes,
    "Beside the older bundle": _comparison,
    "Rare and common classes": _shots,
    "Reliability of the scores": _reliability,
    "Photos with the largest sets": _largest,
    "Classes that share sets": _pairs,
    "Every rule": _rules,
    "Where the figures come from": _origin,
}
"""The sections of the page in order."""

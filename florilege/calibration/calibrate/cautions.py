"""Warnings about a calibration, one sentence each."""

from collections.abc import Iterator, Mapping

import numpy as np

from florilege.calibration.calibrate.fit import SIZE_TOLERANCE
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.certificate import Reason
from florilege.calibration.conformal import fewest_rows
from florilege.calibration.record import CalibratedList, CalibrationRecord, PlacePrior
from florilege.calibration.view import PLAIN, Setting

FEW_ROWS = 1000
FEW_LISTED = 200


def cautions(record: CalibrationRecord, *, brief: bool = False) -> list[str]:
    """Warnings about a calibration, one sentence each.

    With ``brief`` one sentence says which of the rules that nobody asked for need more photos.
    """
    scarce = {
        "coverage": _coverage_scarcity(record),
        "guarantee": _guarantee_scarcity(record),
        "class_coverage": _class_scarcity(record),
    }
    sentences = [sentence for sentence in scarce.values() if sentence]
    if brief and sentences:
        rules = ", ".join(rule for rule, sentence in scarce.items() if sentence)
        remedy = "`florilege calibrate` by itself says how many"
        sentences = [f"other rules need more photos ({rules}): {remedy}"]
    return [
        *_photo_cautions(record),
        *_number_cautions(record),
        *sentences,
        *_noise_cautions(record),
        *_size_cautions(record),
        *_class_cautions(record),
        *(caution for region in record.lists for caution in _list_cautions(region)),
        *_place_cautions(record.place_prior),
    ]


_REASONS: Mapping[Reason, str] = {
    Reason.PHOTOS_TRAINED: "no guarantee holds: photos that trained the network calibrate it",
    Reason.ORIGIN_UNKNOWN: (
        "it is unknown which photos trained and chose the network, so no guarantee holds: "
        "`florilege train --resume` and `export` record it for a run, `florilege import "
        "--chosen-on` for a network trained elsewhere"
    ),
    Reason.CHOICE_UNCOUNTED: (
        "no guarantee holds, because these photos also chose the network, and nobody counted among "
        "how many, as with weights from a file: calibrate on photos that chose none, such as "
        "--split test:0-0.5, and evaluate on the rest"
    ),
    Reason.CLASS_COUNTS_FROM_PHOTOS: (
        "the bundle does not say how many training photos each class has: the rules for rare "
        "classes count these photos, and guarantee nothing; nor does any rule where a product of "
        "probabilities fuses several photos"
    ),
}
"""What a calibration says of the reasons of its certificates; the others are shown by views."""


def _photo_cautions(record: CalibrationRecord) -> Iterator[str]:
    """Warnings about photos that the network has seen."""
    measured = record.measured
    overlap = PhotoOverlap(*(getattr(measured, name) for name in PhotoOverlap._fields))
    yield from overlap.warnings(measured.rows)
    certificates = (point.certificate for point in record.requested_points())
    reasons = dict.fromkeys(reason for promise in certificates for reason in promise.reasons)
    yield from (_REASONS[reason] for reason in reasons if reason in _REASONS)


def _number_cautions(record: CalibrationRecord) -> Iterator[str]:
    """Warnings about too few photos; those of one observation count as about one."""
    if (record.measured.observations or record.measured.rows) < FEW_ROWS:
        coarse = "thresholds and intervals are coarse"
        yield f"only {_counted(record)}: {coarse}, {FEW_ROWS:,} or more are better"


def _counted(record: CalibrationRecord) -> str:
    plants, rows = record.measured.observations, record.measured.rows
    return f"{rows} photos" if plants in (None, rows) else f"{plants} plants"


def _coverage_scarcity(record: CalibrationRecord) -> str | None:
    # Of both guarantees of a level the usual one, which needs fewer photos, is named.
    short = {
        point.row.value: " with guarantee=probability" * point.on_request
        for point in reversed(record.requested_points())
        if point.rule == "coverage" and point.lambda_val == 0
    }
    levels = [f"{level:g}{short[level]}" for level in sorted(short)]
    verb = "needs" if len(levels) == 1 else "need"
    sentence = f"coverage {' and '.join(levels)} {verb} more than {_counted(record)}"
    return f"{sentence}: every set holds every class" if levels else None


def _noise_cautions(record: CalibrationRecord) -> Iterator[str]:
    """What was made of a review, and what it does not explain."""
    noise = record.measured.label_noise
    if noise is None or noise.source == "flag":
        return
    yield (
        f"a review of {noise.reviewed:,} photos gives a label noise of {noise.rate:.3f} "
        f"({noise.low:.3f} to {noise.high:.3f} at 95 % confidence), if they were drawn at random: "
        "hit rates are corrected for the first, promises allow for the second"
    )
    if noise.unexplained:
        yield (
            f"{noise.unexplained:,} corrections of the review leave the {noise.kind}, or name no "
            "class of the bundle, and are not allowed for: sets are larger than they need to be"
        )


def _size_cautions(record: CalibrationRecord) -> Iterator[str]:
    """Warnings about mean sizes far above K because of ties."""
    for k in record.asked_k:
        size = record.point(PLAIN, Setting.of("average_k", k)).row.size
        if size > SIZE_TOLERANCE * k:
            yield (
                f"K = {k:g} gives sets of {size:.1f}: many scores are equal; train longer, or try "
                "another --head and --score-kind"
            )


def _guarantee_scarcity(record: CalibrationRecord) -> str | None:
    """Whether guarantees hold only with the smallest sets."""
    short = list[str]()
    for guarantee in [guarantee for rule, guarantee in record.promises if rule == "average_k"]:
        values = record.values("average_k", guarantee)
        points = [record.point(PLAIN, Setting.of("average_k", k, guarantee)) for k in values]
        ks = [
            f"{point.k:g}" for point in points if point.row.size <= point.min_size < point.row.value
        ]
        short += [f"guarantee={guarantee} at K = {', '.join(ks)}"] if ks else []
    best = "those sets hold at most the best class"
    remedy = "calibrate on more photos, or with a smaller --max-size"
    return f"too few photos for {' and '.join(short)}: {best}; {remedy}" if short else None


def _class_scarcity(record: CalibrationRecord) -> str | None:
    everywhere = list[str]()
    for level in record.asked_coverage:
        point = record.point(PLAIN, Setting.of("class_coverage", level))
        if rare := int((np.asarray(point.class_thresholds) <= 0).sum()):
            fewest = fewest_rows(level, candidates=point.table.candidates)
            needed = f"the {fewest} photos that {level:g} needs"
            everywhere.append(f"{rare:,} have fewer than {needed}")
    sentence = f"class_coverage: of {record.classes:,} classes, {' and '.join(everywhere)}"
    remedy = "and are in every set; choose a --macro-weight below 1"
    return f"{sentence}, {remedy}" if everywhere else None


def _class_cautions(record: CalibrationRecord) -> Iterator[str]:
    """Warnings about classes without photos."""
    classes_seen = record.measured.classes_seen
    if classes_seen is not None and classes_seen < record.classes:
        absent = record.classes - classes_seen
        yield f"{absent} of {record.classes} classes have no photo in this split"


def _list_cautions(region: CalibratedList) -> Iterator[str]:
    name, absent = f"list {region.name!r}", len(region.classes) - region.classes_seen
    if not region.rows:
        yield f"{name} has no photo in this split: its answers are not calibrated"
        return
    if region.rows < FEW_LISTED:
        yield (
            f"{name} has only {region.rows} photos: its thresholds are coarse, {FEW_LISTED} or "
            "more are better"
        )
    if absent:
        yield f"{absent} of the {len(region.classes)} classes of {name} have no photo"


def _place_cautions(prior: PlacePrior | None) -> Iterator[str]:
    if prior is not None and not prior.strength:
        yield "the place of a photo gains no hits on these photos and will not be used"
    elif prior is not None and prior.simulated:
        yield (
            "fewer than 100 of these photos have a place with records (columns region, or latitude "
            "and longitude, and month or date): places were drawn from the records of each "
            "species, which looks better than real photos; nothing is guaranteed where a place is "
            "given"
        )

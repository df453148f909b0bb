"""Thresholds for photos of known places: the table that is read, the strength, the sizes."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.calibrate.fit import STRENGTHS, fit_record
from florilege.calibration.calibrate.score_sources import (
    LabelledPhotos,
    PhotoPlaces,
    _read_occurrences,
)
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.certificate import Reason
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.rules import LabelNoise, NoisyLabels, calibrate
from florilege.calibration.scores import EXPONENTS
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import Scoring, View
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.regions import COLUMNS, Occurrences, Place, RegionList
from tests.calibration.record.test_record import scoring_of
from tests.calibration.simulation import CLASSES, draw

ROWS = 900
REGIONS = 4
KS = (1.0, 2.0, 3.0)

INFOS = ClassTable(
    (
        ClassInfo(id="7", scientific_name="Iris lutescens", gbif="100"),
        ClassInfo(id="8", scientific_name="Iris foetidissima"),
    )
)

HEADER = "region,month,class_id,weight"


def sample() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    data = draw(np.random.default_rng(0), ROWS)
    return np.log(data.scores).astype(np.float32), data.labels


def fitted(photos: PhotoPlaces, noise: NoisyLabels | None = None) -> CalibrationRecord:
    logits, labels = sample()
    plan = CalibrationPlan(classes=CLASSES, ks=KS, coverages=(0.9,), images=())
    outputs = scoring_of({"linear": logits}, labels)
    return fit_record(outputs, plan, class_counts=None, places=photos, noise=noise)


def table_of(*, informative: bool, everywhere: bool = False) -> Occurrences:
    """Class c lives in region ``c % 4``, in month ``1 + c % 12``; or anywhere or at any time."""
    classes = np.repeat(np.arange(CLASSES), 48)
    region, month = np.tile(np.arange(48) // 12, CLASSES), np.tile(np.arange(48) % 12, CLASSES)
    weight = np.ones(classes.size)
    if informative:
        weight += 200.0 * (((region == classes % REGIONS) | everywhere) & (month == classes % 12))
    names = [f"r{index}" for index in region]
    return Occurrences.of(names, month + 1, classes, weight, classes=CLASSES)


def places_of(labels: NDArray[np.int64], *, with_month: bool = True) -> Sequence[Place]:
    months = labels % 12 + 1 if with_month else np.zeros_like(labels)
    return [Place(f"r{c % REGIONS}", int(m)) for c, m in zip(labels, months, strict=True)]


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_place_raises_the_hit_rate_at_the_same_mean_size(everywhere: bool) -> None:
    _, labels = sample()
    occurrences = table_of(informative=True, everywhere=everywhere)
    photos = PhotoPlaces.of(occurrences, places_of(labels), labels)
    record = fitted(photos)
    prior = record.place_prior
    assert prior is not None
    assert prior.strength > 0
    assert prior.gain > 0.02
    assert (prior.rows, prior.simulated) == (ROWS, False)
    assert prior.occurrences_sha256 == occurrences.sha256
    for k in KS:
        points = [
            record.point(View(place=p), record.setting("average_k", k))
            for p in (None, "region_and_month")
        ]
        assert all(point.row.size == pytest.approx(k, abs=0.01) for point in points)
        before, after = (point.row.hit_rate or 0 for point in points)
        assert after > before
    assert record.values("average_k", None, View(place="region")) == list(KS)
    with pytest.raises(ValueError, match="region"):
        record.point(View(place="region_and_month"), record.setting("average_k", 1.5))


def test_photos_of_a_part_keep_their_places() -> None:
    logits, labels = sample()
    places = PhotoPlaces.of(table_of(informative=True), places_of(labels), labels)
    mask = np.arange(len(labels)) % 7 > 2
    photos = LabelledPhotos(
        outputs=scoring_of({"linear": logits}, labels),
        counts=np.ones(CLASSES, np.int64),
        lists={},
        places=places,
    )
    scoring, view = Scoring(head="linear", score_kind="softmax"), View(place="region")
    everyone, part = (
        np.concatenate([scores for scores, _ in of.source(view, scoring, strength=1.0).blocks()])
        for of in (photos, photos.part(mask))
    )
    assert (part == everyone[mask]).all()


def test_a_list_at_a_place_needs_100_photos_alone_it_needs_one() -> None:
    logits, labels = sample()
    rare = RegionList(
        name="rare", classes=tuple(sorted(np.bincount(labels).argsort()[:8].tolist()))
    )
    plan = CalibrationPlan(
        classes=CLASSES, ks=KS, coverages=(0.9,), images=(), lists=(rare,), head="linear",
        score_kind="softmax",
    )  # fmt: skip
    places = PhotoPlaces.of(table_of(informative=True), places_of(labels), labels)
    outputs = scoring_of({"linear": logits}, labels)
    record = fit_record(outputs, plan, class_counts=None, places=places)
    assert 0 < record.lists[0].rows < 100
    assert [view for view in record.views if view.list] == [View(list="rare")]
    assert View(place="region") in record.views


def test_wrong_labels_hide_a_share_of_what_a_place_gains() -> None:
    _, labels = sample()
    photos = PhotoPlaces.of(table_of(informative=True), places_of(labels), labels)
    model = NoisyLabels(noise=LabelNoise.of("uniform", 0.02), groups=np.zeros(CLASSES, np.int64))
    right, wrong = fitted(photos).place_prior, fitted(photos, model).place_prior
    assert right is not None
    assert wrong is not None
    assert wrong.strength == right.strength
    assert wrong.gain == pytest.approx(right.gain / 0.98)


@pytest.mark.parametrize("one_plant", [True, False])
def test_one_plant_in_a_third_of_the_photos_makes_no_choice(one_plant: bool) -> None:
    """Only its photos are better with its place, or by the other head; together they are one."""
    logits, labels = sample()
    ranks = (logits > logits[np.arange(ROWS), labels][:, np.newaxis]).sum(axis=1)
    missed = int(np.flatnonzero((ranks == 6) & (labels % 4 == 2))[0])
    logits[:300], labels[:300] = logits[missed], labels[missed]
    elsewhere = np.random.default_rng(3).integers(120, size=600)  # and at any time
    places = places_of(np.concatenate([labels[:300], elsewhere]))
    other = logits.copy()
    other[:300, labels[0]] += 20
    other[300::10] = other[300::10, ::-1]
    names = [str(max(299 * one_plant, row)) for row in range(ROWS)]

    def record_of(**heads: NDArray[np.float32]) -> CalibrationRecord:
        plan = CalibrationPlan(classes=CLASSES, ks=KS, images=(), score_kind="softmax")
        photos = PhotoPlaces.of(table_of(informative=True), places, labels)
        outputs = scoring_of(heads, labels, observations=names)
        return fit_record(outputs, plan, class_counts=None, places=photos)

    prior = record_of(linear=logits).place_prior
    assert prior is not None
    assert (prior.strength == 0) == one_plant
    assert record_of(linear=logits, other=other).head == ("linear" if one_plant else "other")


def test_what_is_served_is_what_was_calibrated() -> None:
    """The serving arithmetic on the photos of val gives exactly the recorded sizes and hits."""
    logits, labels = sample()
    listed = [place if row % 3 else None for row, place in enumerate(places_of(labels))]
    photos = PhotoPlaces.of(table_of(informative=True), listed, labels)
    known = np.array([place is not None for place in listed])
    record = fitted(photos)
    assert record.place_prior is not None
    for rule in ("average_k", "balanced_average_k", "coverage"):
        point = record.point(View(place="region_and_month"), record.setting(rule))
        scores = [
            point.scores(
                row[np.newaxis], record.place_prior.strength * photos.occurrences.log_lift(place)
            )
            for row, place in zip(logits, photos.places, strict=True)
            if place is not None
        ]
        inside = point.sets(np.stack(scores))
        assert point.rows == known.sum() == len(inside)
        assert inside.sum() == pytest.approx(point.row.size * point.rows, abs=1e-6)
        hits = inside[np.arange(point.rows), labels[known]]
        assert hits.mean() == pytest.approx(point.row.hit_rate)


def test_thresholds_are_made_at_the_strength_that_was_chosen() -> None:
    logits, labels = sample()
    table = table_of(informative=True, everywhere=True)
    random = np.random.default_rng(3)  # places that say less than the table thinks
    there = np.where(random.random(ROWS) < 0.4, labels, random.integers(CLASSES, size=ROWS))
    places = places_of(there)
    record = fitted(PhotoPlaces(table, places, simulated=False))
    assert record.place_prior is not None
    strength = record.place_prior.strength
    assert 0 < strength < 1
    view = View(place="region_and_month")
    point = record.point(view, record.setting("average_k", 2))
    lifts = np.stack([table.log_lift(place) for place in places])

    def threshold(strength: float) -> float | None:
        values = point.table.scoring.scores(logits[:, np.newaxis], lift=strength * lifts)
        return calibrate("average_k", values, average_k=2).lambda_val

    assert point.lambda_val == threshold(strength)
    assert point.lambda_val != threshold(1.0)


@pytest.mark.parametrize("simulated", [False, True])
def test_places_that_were_drawn_promise_nothing(simulated: bool) -> None:
    _, labels = sample()
    table = table_of(informative=True)
    record = fitted(PhotoPlaces(table, places_of(labels), simulated=simulated))
    setting = record.setting("coverage")
    there = record.point(View(place="region_and_month"), setting).certificate.reasons
    assert (Reason.PLACES_DRAWN in there) == simulated
    assert Reason.PLACES_DRAWN not in record.point(View(), setting).certificate.reasons


def test_a_useless_table_changes_nothing() -> None:
    _, labels = sample()
    occurrences = table_of(informative=False)
    record = fitted(PhotoPlaces.of(occurrences, places_of(labels), labels))
    assert record.place_prior is not None
    assert record.place_prior.strength == record.place_prior.gain == 0.0
    assert all(table.view.place is None for table in record.tables)


def test_regions_without_months_have_thresholds_of_their_own() -> None:
    _, labels = sample()
    occurrences = table_of(informative=True)
    record = fitted(PhotoPlaces.of(occurrences, places_of(labels, with_month=False), labels))
    assert record.values("average_k", None, View(place="region")) == list(KS)
    assert record.values("average_k", None, View(place="region_and_month")) == []


@pytest.mark.parametrize("known", [0, 99, 100])
def test_places_are_drawn_where_too_few_are_known(known: int) -> None:
    _, labels = sample()
    listed = [*places_of(labels[:known]), *[Place("elsewhere")] * 50, *[None] * (ROWS - known - 50)]
    photos = PhotoPlaces.of(table_of(informative=True), listed, labels)
    assert photos.simulated == (known < 100)
    assert sum(place is not None for place in photos.places) == (ROWS if known < 100 else known)
    assert Place("elsewhere") not in photos.places


def test_species_are_named_by_id_key_or_name(tmp_path: Path) -> None:
    path = tmp_path / "occurrences.csv"
    path.write_text(
        f"{HEADER}\na,,8,1\na,6,100,2\nb,6,IRIS lutescens Lam.,3\nb,12,7,4.5\nb,1,900,9\n"
    )
    warnings = list[str]()
    occurrences = _read_occurrences(path, INFOS, warnings.append)
    assert occurrences.counts("a").tolist() == [2.0, 1.0]
    assert occurrences.counts("b").tolist() == [7.5, 0.0]
    assert occurrences.counts("b", 6).tolist() == [3.0, 0.0]
    assert warnings == [f"1 species of {path} are not among the classes of the model"]


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (HEADER, "a,13,7,1", "row 2: a month must be 1 to 12"),
        (HEADER, "a,June,7,1", "row 2: a month must be"),
        (HEADER, "a,6,7,0", "row 2: the weight must be above 0"),
        (HEADER, "a,6,7,-1", "the weight must be above 0"),
        (HEADER, "a,6,7,nan", "the weight must be above 0"),
        (HEADER, "a,6,7,many", "row 2: could not convert"),
        (HEADER, ",6,7,1", "row 2: the region is empty"),
        (HEADER, "a,6,900,1", "none of its species is a class of the model.*'900'"),
        (HEADER, "", "it has no rows"),
        ("region,class_id,weight", "a,7,1", "column"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, header: str, row: str, message: str
) -> None:
    path = tmp_path / "occurrences.csv"
    path.write_text(f"{header}\n{row}\n")
    with pytest.raises(DataError, match=message):
        _read_occurrences(path, INFOS, print)


def test_millions_of_records_take_little_memory(tmp_path: Path) -> None:
    rows = 5_000
    path, names = tmp_path / "occurrences.csv", [f"region {row % 90}" for row in range(rows)]
    lines = [f"{name},{row % 12 + 1},7,{row % 9 + 1}" for row, name in enumerate(names)]
    path.write_text("\n".join([",".join(COLUMNS), *lines]), "utf-8")
    tracemalloc.start()
    occurrences = _read_occurrences(path, INFOS, print)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert occurrences.weight.sum() == sum(row % 9 + 1 for row in range(rows))
    assert peak / rows < 200  # bytes; with strings and tuples of its own a row takes 700


def test_a_region_is_known_without_its_month_and_a_month_only_where_it_is_named() -> None:
    _, labels = sample()
    places = [*places_of(labels[:600]), *places_of(labels[600:], with_month=False)]
    photos = PhotoPlaces.of(table_of(informative=True), places, labels)
    regions = photos.known("region")
    assert regions == [Place(place.region) for place in places]
    assert photos.known("region_and_month") == [*places[:600], *[None] * 300]


@pytest.mark.parametrize("chooses", [False, True])
def test_a_view_allows_for_every_choice_that_its_photos_made(chooses: bool) -> None:
    """Of 3 networks, 2 temperatures, strengths of a place, ways to fuse photos."""
    logits, labels = sample()
    labels = np.repeat(labels[::2], 2)
    plants = [str(number) for number in np.repeat(np.arange(ROWS // 2), 2)]
    plan = CalibrationPlan(
        classes=CLASSES, ks=KS, coverages=(0.9,), images=(2,), score_kind="softmax",
        temperatures=(1.0, 2.0),
    )  # fmt: skip
    choosing = np.arange(ROWS) < 200 if chooses else None
    record = fit_record(
        scoring_of({"linear": logits}, labels, observations=plants),
        plan,
        class_counts=None,
        places=PhotoPlaces.of(table_of(informative=True), places_of(labels), labels),
        choosing=choosing,
        overlap=PhotoOverlap(0, ROWS, True, 3),
    )
    candidates = {table.view: table.candidates for table in record.tables}
    fusions, strengths, alone = len(EXPONENTS) + 1, len(STRENGTHS), 3 if chooses else 3 * 2
    assert candidates[View()] == alone
    assert candidates[View(photos=2)] == alone * (1 if chooses else fusions)
    for place in ("region", "region_and_month"):
        assert candidates[View(place=place)] == alone * (1 if chooses else strengths)
        both = 1 if chooses else fusions * strengths
        assert candidates[View(photos=2, place=place)] == alone * both

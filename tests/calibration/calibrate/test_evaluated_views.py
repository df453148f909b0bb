"""An evaluation measures every view that its photos show, and doubts the promises of each."""

from dataclasses import replace

import numpy as np
import pytest

from florilege.calibration.calibrate.evaluate import Evaluation, _EvaluatedView
from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.score_sources import LabelledPhotos, PhotoPlaces
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import PLAIN, View
from florilege.models.regions import RegionList
from tests.calibration.calibrate.test_known_places import KS, places_of, sample, table_of
from tests.calibration.record.test_record import scoring_of
from tests.calibration.simulation import CLASSES

LOGITS, LABELS = sample()
OUTPUTS = scoring_of({"linear": LOGITS}, LABELS)
PLACES = PhotoPlaces.of(table_of(informative=True), places_of(LABELS), LABELS)


@pytest.fixture(scope="module")
def record() -> CalibrationRecord:
    lists = (RegionList(name="alps", classes=tuple(range(3, 23))),)
    plan = CalibrationPlan(
        classes=CLASSES, ks=KS, coverages=(0.9,), images=(2,), lists=lists, head="linear",
        score_kind="softmax",
    )  # fmt: skip
    overlap = PhotoOverlap(0, 0, chose_checkpoint=False, networks=1)
    return fit_record(OUTPUTS, plan, class_counts=None, overlap=overlap, places=PLACES)


def evaluated(
    record: CalibrationRecord, labels: np.ndarray, places: PhotoPlaces | None
) -> dict[View, _EvaluatedView]:
    outputs = scoring_of({"linear": LOGITS}, labels)
    photos = LabelledPhotos.of(record, outputs, None, places)
    plain, *others = _EvaluatedView.all_of(photos, record, int)
    assert plain.view.single
    return {result.view: result for result in others}


def test_on_the_photos_of_the_calibration_the_figures_are_those_of_the_record(
    record: CalibrationRecord,
) -> None:
    views = evaluated(record, LABELS, PLACES)
    assert set(views) == {view for view in record.views if not view.single}
    assert View(photos=2, list="alps", place="region_and_month") in views
    for view, result in views.items():
        usual = {one.point.guarantee for one in result.rules if one.point.rule == "average_k"}
        assert usual == {None}
        assert {one.point.guarantee for one in result.guaranteed} == {"mean", "probability"}
        assert len(result.rules) > 3 < len(result.guaranteed)
        points = [one.point for one in (*result.rules, *result.guaranteed)]
        assert points == record.requested_points(view)
        for one in result.results:
            assert one.point.table.view == view
            assert (result.rows, result.made_from) == (one.point.rows, one.point.table.made_from)
            assert one.row.size == one.point.row.size
            assert one.row.hit_rate == one.point.row.hit_rate
        assert not result.contradictions()


def test_places_are_measured_only_where_they_are_known(record: CalibrationRecord) -> None:
    views = evaluated(record, LABELS, None)
    assert set(views) == {View(photos=2), View(list="alps"), View(photos=2, list="alps")}


def test_other_photos_contradict_the_promises_of_a_view_by_its_name(
    record: CalibrationRecord,
) -> None:
    wrong = np.where(np.arange(len(LABELS)) % 4 == 0, (LABELS + 7) % CLASSES, LABELS)
    views = evaluated(record, wrong, PLACES)
    texts = views[View(place="region")].contradictions()
    assert any("guarantee=probability for photos with region promises 90%" in t for t in texts)
    of_species = views[View(photos=2)]
    assert of_species.made_from == "same_class"
    assert not of_species.contradictions()  # nothing is promised of photos of one species
    other = replace_made_from(views[View(place="region")])
    assert not other.contradictions()


def test_a_view_must_miss_a_promise_by_more_since_views_have_hundreds(
    record: CalibrationRecord,
) -> None:
    result = evaluated(record, LABELS, PLACES)[View(place="region")]
    (promise,) = (one for one in result.guaranteed if one.point.coverage == 0.9)
    for errors, count in ((3.5, 0), (4.5, 1)):
        row = replace(promise.row, hit_rate=0.9 - 0.001 * errors, hit_rows=90_000)  # error .001
        missed = promise._replace(row=row)
        assert missed.contradiction() is not None
        of_view = result._replace(results=(missed,))
        assert len(of_view.contradictions()) == count


def test_hundreds_of_broken_promises_are_one_warning(record: CalibrationRecord) -> None:
    texts = dict.fromkeys(("bundle", "bundle_sha256", "calibration_id", "split", "data_sha256"), "")
    views = tuple(evaluated(record, (LABELS + 7) % CLASSES, PLACES).values())
    plain = _EvaluatedView(PLAIN, None, len(LABELS), ())
    evaluation = Evaluation(
        **texts, rows=len(LABELS), observations=None, label_noise=None, noise_calibrated=False,
        overlap=PhotoOverlap(), lists=(), views=(plain, *views),
    )  # fmt: skip
    broken = sum(len(view.contradictions()) for view in views)
    [warning] = evaluation.contradictions()
    assert f"; {broken - 1:,} more promises of views fail: `views` of --json" in warning
    assert sum(len(view["contradictions"]) for view in evaluation.to_plain()["views"]) == broken


def replace_made_from(result: _EvaluatedView) -> _EvaluatedView:
    """As if its photos were of one species, and those of the calibration were not."""
    return result._replace(made_from="same_class")

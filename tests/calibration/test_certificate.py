"""What is promised of new photos, and each reason why nothing is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from florilege.calibration.certificate import Certificate, Evidence, Reason, certificate
from florilege.calibration.intervals import largest_fall, least_coverage
from florilege.calibration.record.measurement import Measurement
from florilege.calibration.rules import calibrate
from florilege.calibration.rules.label_noise import LabelNoise, NoisyLabels
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.view import PLAIN, Setting, View
from tests.calibration.simulation import CLASSES, draw

FIT = Evidence(
    rows=1000,
    independent=True,
    train_photos=0,
    chose_checkpoint=False,
    networks=1,
    candidates=1,
    label_noise=None,
    places_drawn=False,
    same_species=False,
    traffic=False,
    class_counts_from_photos=False,
)
"""Photos that are fit for every promise."""
WRONG = LabelNoise.of("genus", 0.05)
PLACE = View(place="region")
SEVERAL = View(photos=3)


def made(view: View, setting: Setting, evidence: Evidence = FIT, **options: Any) -> Certificate:
    return certificate(view, setting, evidence, **options)


@pytest.mark.parametrize("rule", ["coverage", "balanced_coverage", "class_coverage"])
@pytest.mark.parametrize("view", [PLAIN, PLACE, SEVERAL, View(2, "alps", "region_and_month")])
def test_fit_photos_promise_in_every_view(view: View, rule: str) -> None:
    promise = made(view, Setting.of(rule, 0.9), macro_weight=0.0)
    assert (promise.guaranteed, promise.coverage, promise.reasons) == (True, 0.9, ())
    size = made(view, Setting.of("average_k", 3, "probability"), delta=0.1)
    assert (size.guaranteed, size.mean_size, size.coverage) == (True, 3.0, None)


@pytest.mark.parametrize(
    ("change", "view", "rule", "reason"),
    [
        ({"train_photos": 1}, PLAIN, "coverage", Reason.PHOTOS_TRAINED),
        ({"chose_checkpoint": None}, PLAIN, "coverage", Reason.ORIGIN_UNKNOWN),
        (
            {"chose_checkpoint": True, "networks": None},
            PLAIN,
            "coverage",
            Reason.CHOICE_UNCOUNTED,
        ),
        ({"places_drawn": True}, PLACE, "coverage", Reason.PLACES_DRAWN),
        ({"same_species": True}, SEVERAL, "coverage", Reason.GROUPS_OF_ONE_SPECIES),
        ({"traffic": True}, PLAIN, "coverage", Reason.PLANTS_OF_TRAFFIC),
        (
            {"class_counts_from_photos": True},
            PLAIN,
            "balanced_coverage",
            Reason.CLASS_COUNTS_FROM_PHOTOS,
        ),
        (
            {"class_counts_from_photos": True, "counts_fuse": True},
            SEVERAL,
            "coverage",
            Reason.CLASS_COUNTS_FROM_PHOTOS,
        ),
        ({"label_noise": WRONG}, PLAIN, "class_coverage", Reason.WRONG_LABELS_BY_CLASS),
        ({"rejecting": True}, PLAIN, "coverage", Reason.SUSPECTS_REJECTED),
        (
            {"label_noise": replace(WRONG, crosses_list=True)},
            View(list="alps"),
            "coverage",
            Reason.WRONG_LABELS_CROSS_LIST,
        ),
    ],
)
def test_each_thing_that_spoils_a_promise_is_a_reason(
    change: dict[str, Any], view: View, rule: str, reason: Reason
) -> None:
    promise = made(view, Setting.of(rule, 0.9), replace(FIT, **change))
    assert (promise.guaranteed, promise.reasons) == (False, (reason,))
    sized = made(view, Setting.of("average_k", 3), replace(FIT, **change), label_hits=950)
    if rule == "coverage":
        assert (sized.reasons, sized.least_coverage) == ((reason,), None)


@pytest.mark.parametrize(
    ("change", "view", "rule"),
    [
        ({"chose_checkpoint": True, "networks": 12}, PLAIN, "coverage"),
        ({"places_drawn": True}, PLAIN, "coverage"),
        ({"same_species": True}, PLAIN, "coverage"),
        ({"class_counts_from_photos": True}, PLAIN, "coverage"),
        ({"counts_fuse": True}, SEVERAL, "balanced_coverage"),
        ({"label_noise": WRONG}, View(list="alps"), "balanced_coverage"),
    ],
)
def test_what_does_not_touch_a_view_or_rule_spoils_nothing(
    change: dict[str, Any], view: View, rule: str
) -> None:
    assert made(view, Setting.of(rule, 0.9), replace(FIT, **change)).guaranteed


def test_a_size_that_is_only_measured_has_a_least_coverage_for_every_k() -> None:
    setting = Setting.of("average_k", 3)
    plain = made(PLAIN, setting, label_hits=950)
    assert (plain.guaranteed, plain.mean_size) == (False, None)
    assert plain.least_coverage == least_coverage(950, 1000)
    chosen = made(PLAIN, setting, replace(FIT, candidates=160), label_hits=950)
    assert chosen.least_coverage == least_coverage(950, 1000, candidates=160)
    assert chosen.least_coverage < (plain.least_coverage or 0)
    assert (
        made(PLAIN, setting, replace(FIT, independent=False), label_hits=950).least_coverage is None
    )
    assert made(PLAIN, setting).least_coverage is None  # no labels
    assert made(PLAIN, Setting.of("average_k", 3, "mean"), label_hits=950).least_coverage is None


def test_photos_that_trained_are_one_reason_whoever_counted_candidates() -> None:
    met = replace(FIT, train_photos=1, chose_checkpoint=True, networks=None)
    assert made(PLAIN, Setting.of("coverage", 0.9), met).reasons == (Reason.PHOTOS_TRAINED,)


def test_a_certificate_says_what_it_assumes_of_wrong_labels() -> None:
    assert made(PLAIN, Setting.of("coverage", 0.9)).label_noise is None
    wrong = replace(FIT, label_noise=WRONG)
    assert made(PLAIN, Setting.of("coverage", 0.9), wrong).label_noise == WRONG


def test_a_least_coverage_with_wrong_labels_is_that_of_sets_with_the_label() -> None:
    few, setting = replace(FIT, label_noise=WRONG), Setting.of("average_k", 3)
    least = made(PLAIN, setting, few, label_hits=927, chance=0.5).least_coverage
    noisy = least_coverage(927, 1000, delta=0.05)
    most = 0.5 + largest_fall(1000, 0.05)
    assert least == pytest.approx((noisy - 0.05 * most) / 0.95)
    assert (least or 0.0) < least_coverage(950, 1000)  # the hits that 927 amount to
    among = replace(few, candidates=8)
    chosen = made(PLAIN, setting, among, label_hits=927, chance=0.5).least_coverage
    noisy_of_8 = least_coverage(927, 1000, delta=0.05, candidates=8)
    most_of_8 = 0.5 + largest_fall(1000, 0.05 / 8)
    assert chosen == pytest.approx((noisy_of_8 - 0.05 * most_of_8) / 0.95)
    unsure = replace(few, label_noise=replace(WRONG, low=0.0))
    lower = made(PLAIN, setting, unsure, label_hits=927, chance=0.5).least_coverage
    assert lower == noisy  # nothing is allowed for


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_a_least_coverage_with_wrong_labels_holds_for_every_k(rate: float) -> None:
    random, pool, rows = np.random.default_rng(9), draw(np.random.default_rng(0), 20_000), 500
    model = NoisyLabels(noise=LabelNoise.of("genus", rate), groups=np.arange(CLASSES) // 5)
    evidence, kept = replace(FIT, rows=rows, label_noise=model.noise), list[bool]()
    everyone = pool.scores[np.arange(20_000), pool.labels]
    for _ in range(100):
        sample = random.integers(20_000, size=rows)
        labels = pool.labels[sample]
        anew = labels // 5 * 5 + random.integers(5, size=rows)
        labels = np.where(random.random(rows) < rate, anew, labels)
        rules = [
            calibrate("average_k", pool.scores[sample], average_k=k, min_size=0)
            for k in (1, 1.5, 2, 3, 5)
        ]
        measured = Measurement(rules, CLASSES, noise=model)
        measured.update(pool.scores[sample], labels)
        holds = True
        for index, rule in enumerate(rules):
            chance = float(measured.chance[index].sum()) / rows
            hits = int(measured.hits[index])
            promise = made(
                PLAIN, Setting.of("average_k", 3), evidence, label_hits=hits, chance=chance
            )
            coverage = (everyone >= (rule.lambda_val or 0.0)).mean()
            holds &= (promise.least_coverage or 0.0) <= coverage
        kept.append(holds)
    assert np.mean(kept) >= 0.9


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_class_coverage_promises_its_coverage_and_at_1_for_each_class(weight: float) -> None:
    promise = made(PLAIN, Setting.of("class_coverage", 0.9), macro_weight=weight)
    assert promise.coverage == 0.9
    assert promise.each_class == (weight == 1)


@pytest.mark.parametrize("candidates", [1, 8])
def test_a_promise_holds_for_whichever_candidate_the_same_photos_chose(candidates: int) -> None:
    """The worst case: the one that covers least is chosen, by looking at all new photos."""
    random, pool, rows = np.random.default_rng(5), draw(np.random.default_rng(0), 20_000), 300
    views = [pool.scores]
    for _ in range(candidates - 1):
        noisy = np.log(pool.scores) + random.normal(0, 0.3, pool.scores.shape)
        views.append(np.exp(noisy) / np.exp(noisy).sum(axis=1, keepdims=True))
    everyone, worst, likely = np.arange(len(pool.labels)), [], []
    true = [np.sort(values[everyone, pool.labels]) for values in views]
    for _ in range(80):
        sample = random.integers(len(pool.labels), size=rows)
        coverages = []
        for values, ascending in zip(views, true, strict=True):
            summary = ScoreSummary(rows=rows, classes=CLASSES, max_average_k=0, min_size=0,
                                   candidates=candidates)  # fmt: skip
            summary.update(values[sample], pool.labels[sample])
            rules = summary.coverage(0.9), summary.coverage(0.9, delta=0.1)
            missed = np.searchsorted(ascending, [rule.lambda_val or 0.0 for rule in rules])
            coverages.append(1 - missed / ascending.size)
        least = np.min(coverages, axis=0)
        worst.append(least[0])
        likely.append(least[1] >= 0.9)
    error = np.std(worst) / np.sqrt(len(worst))
    assert np.mean(worst) >= 0.9 - 3 * error
    assert np.mean(worst) <= 0.9 + (0.01 if candidates == 1 else 0.04)
    assert np.mean(likely) >= 0.9 - 3 * np.sqrt(0.09 / len(likely))


def test_other_photos_contradict_a_promise_only_far_beyond_chance() -> None:
    """Photos like those of the calibration do so in one evaluation of a thousand, others always."""
    random, alarms, calls = np.random.default_rng(8), 0, 4000
    promise = made(PLAIN, Setting.of("coverage", 0.9))
    for _ in range(calls):
        coverage = random.beta(901, 100)  # of a threshold at the 100th of 1,000 scores
        hit_rate = random.binomial(500, coverage) / 500
        alarms += promise.is_contradicted(hit_rate=hit_rate, **ROWS_OF_TEST)
    assert 0 < alarms < 0.005 * calls
    for hit_rate, contradicted in ((0.83, True), (0.89, False), (0.95, False)):
        assert promise.is_contradicted(hit_rate=hit_rate, **ROWS_OF_TEST) == contradicted
    spoilt = made(PLAIN, Setting.of("coverage", 0.9), replace(FIT, train_photos=1))
    assert not spoilt.is_contradicted(hit_rate=0.5, **ROWS_OF_TEST)
    size = made(PLAIN, Setting.of("average_k", 3, "probability"), delta=0.1)
    for mean, contradicted in ((3.5, True), (3.1, False), (2.0, False)):
        figures = {**ROWS_OF_TEST, "size": mean}
        assert size.is_contradicted(hit_rate=None, **figures) == contradicted


def test_a_promise_with_probability_has_no_error_of_its_threshold() -> None:
    few, setting = {**ROWS_OF_TEST, "calibration_rows": 20}, Setting.of("coverage", 0.9)
    sure = made(PLAIN, setting._replace(guarantee="probability"), delta=0.1)
    assert sure.is_contradicted(hit_rate=0.85, **few)
    assert not made(PLAIN, setting).is_contradicted(hit_rate=0.85, **few)


@pytest.mark.parametrize("photos", [100, 1000])
@pytest.mark.parametrize("calibrated", [100, 300])
def test_a_promise_of_few_misses_is_contradicted_as_rarely(calibrated: int, photos: int) -> None:
    """Three errors of a normal distribution would do so in 15 of 1,000 evaluations."""
    random, calls = np.random.default_rng(9), 20_000
    promise, rank = made(PLAIN, Setting.of("coverage", 0.99)), (calibrated + 1) // 100
    rows = {**ROWS_OF_TEST, "hit_rows": photos, "calibration_rows": calibrated}
    missed = random.binomial(photos, random.beta(rank, calibrated + 1 - rank, calls)) / photos
    alarms = sum(promise.is_contradicted(hit_rate=1 - share, **rows) for share in missed)
    assert 0 < alarms < 0.0045 * calls
    assert promise.is_contradicted(hit_rate=0.9, **rows)  # and few misses still speak against it


ROWS_OF_TEST: dict[str, Any] = {
    "hit_rows": 500, "size": 3.0, "size_deviation": 2.0, "size_rows": 500, "calibration_rows": 1000,
}  # fmt: skip

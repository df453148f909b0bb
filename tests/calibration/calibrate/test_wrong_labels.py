"""A calibration that allows for wrong labels: its record, statements, cautions and refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.cautions import cautions
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.calibrate.score_sources import LabelledPhotos
from florilege.calibration.certificate import Reason
from florilege.calibration.intervals import wilson
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.statement import PHRASES, statement
from florilege.calibration.rules.label_noise import LabelNoise, NoiseKind, NoisyLabels
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.scores import scores
from florilege.calibration.view import PLAIN, Scoring, Setting, View
from florilege.errors import DataError, UsageError
from florilege.models.regions import RegionList
from tests.calibration.estimates import to_expect
from tests.calibration.record.test_record import fitted, scoring_of
from tests.calibration.rules.test_label_noise import EVERYONE, GENERA, replaced
from tests.calibration.simulation import CLASSES, draw
from tests.calibration.small_bundle import make_bundle, make_data

ROWS, RATE = 3000, 0.1
SAMPLE = draw(np.random.default_rng(0), ROWS)
LOGITS = np.log(SAMPLE.scores).astype(np.float32)
WRONG = replaced(np.random.default_rng(1), SAMPLE.labels, GENERA, RATE)
LISTS = (
    RegionList(name="whole", classes=tuple(range(5, 25))),
    RegionList(name="parts", classes=tuple(range(3, 23))),
)


def model(rate: float = RATE, **changes: Any) -> NoisyLabels:
    noise = replace(LabelNoise.of("genus", rate), **changes)
    return NoisyLabels(noise=noise, groups=GENERA)


def calibrated(labels: np.ndarray, noise: NoisyLabels | None, **options: Any) -> CalibrationRecord:
    settings: dict[str, Any] = {
        "ks": (1.0, 3.0), "coverages": (0.9,), "head": "linear", "score_kind": "softmax",
        "lists": LISTS, "noise": noise, "images": (2,),
    }  # fmt: skip
    return fitted({"linear": LOGITS}, labels, **{**settings, **options})


def figures(record: CalibrationRecord, setting: Setting) -> Any:
    """The row of a threshold; all its figures are known."""
    return record.point(PLAIN, setting).row


@pytest.fixture(scope="module")
def record() -> CalibrationRecord:
    return calibrated(WRONG, model())


def test_the_rate_of_a_list_is_that_of_the_photos_that_calibrate() -> None:
    """All photos of one genus chose, half of which is in the list."""
    choosing, lists = GENERA[WRONG] == GENERA[3], {"parts": LISTS[1].classes}
    outputs = scoring_of({"linear": LOGITS}, WRONG)
    photos = LabelledPhotos(
        outputs=outputs,
        counts=np.ones(CLASSES, np.int64),
        lists=lists,
        noise=model(),
    ).part(~choosing)
    source = photos.source(View(list="parts"), Scoring(head="linear", score_kind="softmax"))
    assert source.noise is not None
    expected, everyone = (
        model().among(np.array(LISTS[1].classes), labels).noise.rate
        for labels in (WRONG[~choosing], WRONG)
    )
    assert source.noise.noise.rate == expected != everyone


@pytest.fixture(scope="module")
def true() -> CalibrationRecord:
    """The same photos with their true labels."""
    return calibrated(SAMPLE.labels, None)


def test_hit_rates_and_sizes_are_those_of_the_true_labels(
    record: CalibrationRecord, true: CalibrationRecord
) -> None:
    raw = calibrated(WRONG, None)
    for rule in ("average_k", "top_k", "balanced_average_k", "coverage", "balanced_coverage"):
        setting = record.setting(rule)
        mine, right, ignored = (figures(each, setting) for each in (record, true, raw))
        assert mine.hit_rate == pytest.approx(right.hit_rate, abs=0.012)
        assert mine.size == pytest.approx(right.size, rel=0.06)
        assert mine.hit_low < right.hit_rate < mine.hit_high
        assert mine.hit_high - mine.hit_low > right.hit_high - right.hit_low
        if rule.endswith("coverage"):
            assert ignored.size > 1.1 * right.size
        else:
            assert ignored.hit_rate < right.hit_rate - 0.02
            assert (mine.lambda_val, mine.size) == (right.lambda_val, right.size)
    assert record.selection.hit_rate == pytest.approx(true.selection.hit_rate, abs=0.012)
    honest, (low, high) = to_expect(record)
    assert honest > to_expect(raw)[0] + 0.02
    assert low < true.selection.hit_rate < high


def test_hits_by_size_are_corrected_too(record: CalibrationRecord, true: CalibrationRecord) -> None:
    setting = record.setting("average_k")
    mine, right = record.point(PLAIN, setting), true.point(PLAIN, setting)
    for size in (1, 2, 4):
        ours, theirs = mine.hit_rate_at_size(size), right.hit_rate_at_size(size)
        assert ours is not None
        assert theirs is not None
        assert ours.value == pytest.approx(theirs.value, abs=0.05)
    row, row_of_true = figures(record, setting), figures(true, setting)
    assert row.hit_rows < row_of_true.hit_rows
    low, _ = wilson(round(row.hit_rate * ROWS), ROWS, effective=row.hit_rows)
    assert low == pytest.approx(row.hit_low, abs=0.001)


@pytest.mark.parametrize("view", [PLAIN, View(photos=2)])
def test_the_interval_of_a_size_is_that_of_its_labels_with_corrected_ends(
    record: CalibrationRecord, view: View
) -> None:
    point = record.point(view, record.setting("average_k"))
    counts, noise = point.counts, point.table.label_noise
    assert counts.hit_rows is not None
    assert noise is not None
    for size in (1, 2, 3):
        sets, hits = counts.sizes[size], counts.sizes[size] - counts.misses[size]
        chance, estimate = counts.chance[size] / sets, point.hit_rate_at_size(size)
        assert estimate is not None
        assert estimate.value == noise.corrected(hits / sets, chance)
        low, high = wilson(hits, sets, effective=counts.hit_rows / point.rows * sets)
        low, high = noise.interval(low, high, chance)
        assert estimate.ci95 == (min(low, estimate.value), max(high, estimate.value))


def test_thresholds_are_those_of_a_summary_of_all_photos() -> None:
    few = calibrated(WRONG, model(), lists=(), temperatures=(1.0,))
    source = scores(LOGITS, "softmax")
    everyone = ScoreSummary(rows=ROWS, classes=CLASSES, max_average_k=1, noise=model())
    everyone.update(source, WRONG)
    for guarantee, delta in (("mean", None), ("probability", 0.1)):
        point = few.point(PLAIN, few.setting("coverage", 0.9, guarantee))  # type: ignore[arg-type]
        assert point.lambda_val == everyone.coverage(0.9, delta=delta).lambda_val
    assert few.measured.label_noise == model().noise


def test_the_record_and_the_statement_say_what_is_assumed(record: CalibrationRecord) -> None:
    again = CalibrationRecord.from_json(record.to_json())
    assert again == record
    point = again.point(PLAIN, again.setting("coverage"))
    assert point.certificate.label_noise == model().noise
    assert point.guaranteed
    assert point.statement.endswith(
        "This assumes that 10.0 % of the labels were replaced by a class drawn from the same genus."
    )
    texts = {statement(point, [language]) for language in PHRASES}
    assert len(texts) == len(PHRASES)
    assert all("10" in text.rsplit(". ", 1)[-1] for text in texts)


def test_what_needs_the_labels_of_single_classes_is_not_told(record: CalibrationRecord) -> None:
    assert record.shots == ()
    by_class = record.point(PLAIN, record.setting("class_coverage"))
    assert by_class.certificate.reasons == (Reason.WRONG_LABELS_BY_CLASS,)
    assert "not for each class" in by_class.statement


def test_a_list_is_promised_something_if_it_holds_whole_groups(record: CalibrationRecord) -> None:
    setting = record.setting("coverage")
    whole, parts = (record.point(View(list=name), setting) for name in ("whole", "parts"))
    assert whole.guaranteed
    assert whole.table.label_noise == model().noise
    assert parts.certificate.reasons == (Reason.WRONG_LABELS_CROSS_LIST,)
    assert "outside it" in parts.statement


def test_groups_of_photos_are_not_corrected_and_say_so(record: CalibrationRecord) -> None:
    raw = calibrated(WRONG, None)
    for rule in ("average_k", "coverage"):
        pair, plain = (each.point(View(photos=2), each.setting(rule)) for each in (record, raw))
        row, row_of_plain = (cast("Any", each.row) for each in (pair, plain))
        assert pair.lambda_val == plain.lambda_val
        assert (row.hit_rate, row.hit_low) == (row_of_plain.hit_rate, row_of_plain.hit_low)
        assert row.hit_high > row_of_plain.hit_high  # all labels of one plant may be wrong
        noise = pair.certificate.label_noise
        assert noise is not None
        assert (noise.rate, noise.low, noise.high) == (0, 0, RATE)
        assert "taken as right: up to 10.0 % may be wrong" in pair.statement


def test_an_evaluation_allows_for_wrong_labels_of_its_own_photos(
    squares: tuple[Path, Path],
) -> None:
    bundle, data = squares
    calibrate_bundle(bundle, str(data), label_noise="0.02")
    plain = evaluate_bundle(bundle, str(data), "val")
    assert "name their share with --label-noise" in "".join(plain.to_plain()["warnings"])
    allowed = evaluate_bundle(bundle, str(data), "val", label_noise="0.02")
    content = allowed.to_plain()
    assert content["label_noise"]["rate"] == 0.02
    assert "--label-noise" not in "".join(content["warnings"])
    for mine, other in zip(allowed.rules, plain.rules, strict=True):
        chance, raw = mine.row.size / mine.point.classes, other.row.hit_rate
        assert raw is not None
        noise = LabelNoise.of("uniform", 0.02)
        assert mine.row.hit_rate == pytest.approx(noise.corrected(raw, chance), abs=1e-5)
        assert mine.macro_hit_rate is None
    calibrate_bundle(bundle, str(data))
    right = evaluate_bundle(bundle, str(data), "val").to_plain()
    assert "--label-noise" not in "".join(right["warnings"])
    assert right["label_noise"] is None


def test_a_rate_that_the_photos_contradict_is_refused() -> None:
    for rate, kind in ((0.3, "genus"), (0.3, "uniform"), (0.05, "uniform")):
        groups = GENERA if kind == "genus" else EVERYONE
        noise = NoisyLabels(noise=LabelNoise.of(cast(NoiseKind, kind), rate), groups=groups)
        with pytest.raises(DataError, match=f"label noise of {rate} contradicts") as refused:
            calibrated(SAMPLE.labels, noise)
        limit = float(str(refused.value).rpartition("give a rate of at most ")[2])
        assert limit < rate
        calibrated(
            SAMPLE.labels,
            replace(noise, noise=replace(noise.noise, rate=limit, low=limit, high=limit)),
        )


def test_the_rate_of_a_review_widens_intervals_and_promises_use_its_least(
    record: CalibrationRecord,
) -> None:
    reviewed = calibrated(
        WRONG, model(low=0.05, high=0.15, source="review", reviewed=300, unexplained=2)
    )
    setting = record.setting("coverage")
    mine, exact = reviewed.point(PLAIN, setting), record.point(PLAIN, setting)
    assert mine.row.size > exact.row.size
    least = calibrated(WRONG, model(0.05)).point(PLAIN, setting)
    assert mine.lambda_val == least.lambda_val
    sizes = record.setting("average_k")
    wide, narrow = figures(reviewed, sizes), figures(record, sizes)
    assert wide.hit_rate == narrow.hit_rate
    assert wide.hit_low < narrow.hit_low < narrow.hit_high < wide.hit_high
    told = [text for text in cautions(reviewed) if "review" in text]
    assert "0.100 (0.050 to 0.150" in told[0]
    assert told[1].startswith("2 corrections")
    assert not [text for text in cautions(record) if "review" in text]
    assert "after a review of 300 photos, and at least 5.0 %" in mine.statement


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("squares")
    make_bundle(folder / "bundle")
    return folder / "bundle", make_data(folder / "data", splits=("val",))


def test_a_rate_of_0_changes_nothing(squares: tuple[Path, Path]) -> None:
    bundle, data = squares
    plain = calibrate_bundle(bundle, str(data))
    zero = calibrate_bundle(bundle, str(data), label_noise="genus:0")
    texts = [replace(each, created="", calibration_id="").to_json() for each in (plain, zero)]
    assert texts[0] == texts[1]


def test_a_bundle_is_calibrated_with_a_rate(squares: tuple[Path, Path]) -> None:
    bundle, data = squares
    sentence = "\n\nHit rates assume that 2.0% of the labels were replaced.\n"
    assert sentence not in (bundle / "MODEL_CARD.md").read_text("utf-8")
    record = calibrate_bundle(bundle, str(data), label_noise="0.02")
    assert record.measured.label_noise == LabelNoise.of("uniform", 0.02)
    assert (bundle / "MODEL_CARD.md").read_text("utf-8").count(sentence) == 1
    counts = record.point(PLAIN, Setting.of("average_k", 3)).counts
    assert counts.mean_chance == pytest.approx(0.5, abs=1e-5)
    with pytest.raises(UsageError, match=r"label_noise must be in \[0, 1\)"):
        calibrate_bundle(bundle, str(data), label_noise="1.5")
    with pytest.raises(DataError, match="no genus is known"):
        calibrate_bundle(bundle, str(data), label_noise="genus:0.02")

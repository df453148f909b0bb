"""The calibration record: exact round trip, look-ups, refusals."""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor
from string import Formatter
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.certificate import Reason
from florilege.calibration.comparison import choose, interval_of_best
from florilege.calibration.intervals import least_coverage, wilson
from florilege.calibration.record import CalibrationRecord, _nearest_points
from florilege.calibration.record.operating_point import NotCalibrated
from florilege.calibration.record.record_file import (
    CARD,
    selection_note,
    updated_files,
)
from florilege.calibration.record.schema import TRAFFIC, ByClass
from florilege.calibration.record.statement import PHRASES, candidates, statement
from florilege.calibration.rules import RULES, NoisyLabels, RuleSpec, calibrate
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.scores import SCORE_KINDS, scores
from florilege.calibration.sets import Guarantee
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import PLAIN, Setting, View
from florilege.errors import BundleError
from tests.calibration.estimates import UNMET, hits_of
from tests.calibration.simulation import CLASSES, draw
from tests.calibration.write_schema import SCHEMA, schema

ROWS = 700
COUNTS = np.arange(1, CLASSES + 1)


def scoring_of(
    heads: dict[str, NDArray[np.float32]],
    labels: NDArray[np.int64],
    *,
    observations: Sequence[str] | None = None,
) -> SplitOutputs:
    columns = {name: logits.shape[1] for name, logits in heads.items()}
    result = SplitOutputs(
        columns, labels, split="val", model_sha256="m" * 64, observations=observations
    )
    result.append(heads)
    return result


def sample_logits(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    sample = draw(np.random.default_rng(seed), ROWS)
    return np.log(sample.scores).astype(np.float32), sample.labels


def fitted(
    heads: dict[str, NDArray[np.float32]],
    labels: NDArray[np.int64],
    *,
    observations: Sequence[str] | None = None,
    class_counts: NDArray[np.int64] | None = COUNTS,
    noise: NoisyLabels | None = None,
    **settings: Any,
) -> CalibrationRecord:
    """The record of the logits of some heads, on photos that the network has not met."""
    outputs = scoring_of(heads, labels, observations=observations)
    plan = CalibrationPlan(**{"classes": CLASSES, **settings})
    return fit_record(outputs, plan, class_counts=class_counts, overlap=UNMET, noise=noise)


def make_record(ks: tuple[float, ...] = (1.0, 2.55, 3.0), min_size: int = 1) -> CalibrationRecord:
    logits, labels = sample_logits()
    blurred = (logits + np.random.default_rng(1).normal(0, 2, logits.shape)).astype(np.float32)
    heads = {"sccp": blurred, "multi_label": logits}
    return fitted(heads, labels, ks=ks, coverages=(0.95, 0.9), min_size=min_size)


def test_the_round_trip_through_strict_json_is_exact(record: CalibrationRecord) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    text = record.to_json()
    again = CalibrationRecord.from_json(text)
    assert again == record
    assert again.to_json() == text
    plain = json.loads(text, parse_constant=refuse)
    assert plain["schema_version"] == 10
    counts = record.tables[0].rules[0].counts[0]
    assert plain["tables"][0]["rules"][0]["counts"][0] == json.loads(json.dumps(counts))


def test_the_grid_runs_in_tenths_to_20_and_holds_what_was_asked(record: CalibrationRecord) -> None:
    expected = sorted([step / 10 for step in range(10, 201)] + [2.55])
    assert record.values("average_k") == expected
    assert record.values("balanced_average_k") == expected
    assert record.values("top_k") == [float(k) for k in range(1, 21)]
    assert record.values("coverage") == [0.9, 0.95]
    assert record.values("no_rule") == []


def test_the_best_head_and_kind_at_the_default_k_serve(record: CalibrationRecord) -> None:
    assert (record.head, record.score_kind) == ("multi_label", "softmax")
    compared = record.compared(3.0)
    assert len(compared) == 4
    assert next(iter(compared)) == ("multi_label", "softmax", 1.0)
    assert list(compared.values()) == sorted(compared.values(), reverse=True)
    assert record.compared(2.55).keys() == compared.keys()


@pytest.mark.parametrize(
    ("k", "coverage"),
    [*((k, None) for k in (1.0, 2.5, 2.55, 3.0, 17.3)), (None, 0.9), (None, 0.95)],
)
def test_a_point_is_the_rule_on_the_whole_array(
    record: CalibrationRecord, k: float | None, coverage: float | None
) -> None:
    logits, labels = sample_logits()
    values = scores(logits, "softmax")
    kind = "coverage" if k is None else "average_k"
    for name in (kind, f"balanced_{kind}"):
        value = coverage if k is None else k
        point = record.point(PLAIN, record.setting(name, value))
        if k is None:  # the same photos chose among four pairs and six temperatures, each of two
            weights = point.class_weights
            summary = ScoreSummary(rows=ROWS, classes=CLASSES, max_average_k=1, candidates=16,
                                   class_weights=weights)  # fmt: skip
            summary.update(values, labels)
            rule = summary.coverage(value or 0.0, rule=name)
        else:
            rule = calibrate(name, values, labels, average_k=k, class_counts=COUNTS)
        assert (point.k, point.coverage, point.lambda_val) == (k, coverage, rule.lambda_val)
        members = rule.sets(values)
        assert (point.sets(values) == members).all()
        assert point.row.size == members.sum() / ROWS
        assert hits_of(point).value == members[np.arange(ROWS), labels].sum() / ROWS
        assert rule.achieved == (None if k is None else point.achieved)


def test_the_default_k_of_two_classes_is_the_first_asked_for() -> None:
    labels = np.arange(50) % 2
    logits = np.eye(2, dtype=np.float32)[labels]
    record = fitted({"linear": logits}, labels, class_counts=None, classes=2, ks=(2.0, 1.5))
    assert (record.default_k, record.values("average_k")[-1]) == (2.0, 2.0)


def test_top_k_points_have_no_threshold(record: CalibrationRecord) -> None:
    point = record.point(PLAIN, record.setting("top_k", 5))
    assert point.lambda_val is None
    assert point.sets(scores(sample_logits(1)[0], "softmax")).sum(axis=1).tolist() == [5] * ROWS


def test_defaults_are_k_3_and_the_first_coverage_asked_for_and_points_are_built_once(
    record: CalibrationRecord,
) -> None:
    assert record.point(PLAIN, record.setting("average_k")) is record.point(
        PLAIN, record.setting("average_k", 3.0)
    )
    assert record.default_k == 3.0
    assert record.point(PLAIN, record.setting("average_k")).k == 3.0
    assert record.point(PLAIN, record.setting("top_k")).k == 3.0
    assert record.point(PLAIN, record.setting("coverage")).coverage == 0.95


def test_what_is_not_calibrated_is_refused_with_what_is(record: CalibrationRecord) -> None:
    with pytest.raises(NotCalibrated, match=r"k = 3\.05") as refused:
        record.point(PLAIN, record.setting("average_k", 3.05))
    assert refused.value.allowed == record.values("average_k")
    with pytest.raises(NotCalibrated, match=r"coverage = 0\.8") as refused:
        record.point(PLAIN, record.setting("coverage", 0.8))
    assert refused.value.allowed == [0.9, 0.95]
    with pytest.raises(NotCalibrated, match="with 6 photos") as refused:
        record.point(View(photos=6), record.setting("average_k"))
    assert refused.value.allowed == []
    with pytest.raises(NotCalibrated, match=r"k = 1\.1 .* with 2 photos") as refused:
        record.point(View(photos=2), record.setting("average_k", 1.1))
    assert refused.value.allowed == [1.0, 2.55, 3.0]
    with pytest.raises(NotCalibrated, match="no_rule"):
        record.point(PLAIN, record.setting("no_rule"))


def test_the_nearest_views_leave_out_the_place_then_photos_then_the_list() -> None:
    order = [
        View(3, "alps", "region"), View(3, "alps"), View(1, "alps", "region"), View(1, "alps"),
        View(3, None, "region"), View(3), View(1, None, "region"), PLAIN,
    ]  # fmt: skip
    asked, setting = View(list="alps", place="region"), Setting.of("average_k", 3)
    points: dict[tuple[View, Setting], Any] = {(view, setting): view for view in order}
    for view in order:
        nearest: Any = _nearest_points(points, [3], asked, setting)
        assert nearest == {3: view}
        del points[view, setting]


def test_figures_carry_intervals_and_where_they_were_measured(record: CalibrationRecord) -> None:
    point = record.point(PLAIN, record.setting("average_k", 3))
    assert set(point.estimates) == {"expected_size", "hit_rate"}
    for estimate in point.estimates.values():
        assert estimate is not None
        assert estimate.ci95[0] < estimate.value < estimate.ci95[1]
        assert (estimate.split, estimate.rows) == ("val", ROWS)
    assert point.row.empty_rate == 0.0
    assert point.row.size_deviation > 0


def test_the_statement_tells_the_measured_figures(record: CalibrationRecord) -> None:
    text = record.point(PLAIN, record.setting("average_k", 3)).statement
    assert "700" in text
    assert "'val'" in text
    assert "3.00 candidates on average" in text
    hits = hits_of(record.point(PLAIN, record.setting("average_k", 3)))
    low, high = (f"{100 * end:.1f} %" for end in hits.ci95)
    assert f"{100 * hits.value:.1f} % of the sets hold the right one ({low} to {high})" in text
    assert (
        "each set holds 1 candidate;" in record.point(PLAIN, record.setting("top_k", 1)).statement
    )


@pytest.mark.parametrize(
    ("languages", "beginning", "size"),
    [
        ((), "On photos like the 700 of the split 'val', a set", "3.00 candidates on average"),
        (("ja", "en"), "On photos like the 700", "3.00 candidates"),
        (("fr-CH", "en"), "Sur des photos comme les 700 de la partie «\u00a0val", "3,00 candidats"),
        (("de",), "Bei Fotos wie den 700 des Teils „val“ enthält", "im Mittel 3,00 Kandidaten ("),
        (("ja", "ES"), "En fotos como las 700 de la parte «val», una", "de media 3,00 candidatos"),
    ],
)
def test_the_statement_is_in_the_first_language_it_is_written_in(
    record: CalibrationRecord, languages: tuple[str, ...], beginning: str, size: str
) -> None:
    text = statement(record.point(PLAIN, record.setting("average_k", 3)), languages)
    assert text.startswith(beginning)
    assert size in text


def test_the_noun_after_a_size_follows_the_plural_rules_of_its_language() -> None:
    def nouns(language: str) -> list[str]:
        return [candidates(text, PHRASES[language]) for text in ("0.80", "1", "1.00", "1.99", "2")]

    assert nouns("en") == [*["candidates", "candidate"], *["candidates"] * 3]
    assert nouns("fr") == [*["candidat"] * 4, "candidats"]
    assert nouns("es") == ["candidatos", "candidato", "candidato", "candidatos", "candidatos"]
    assert set(nouns("de")) == {"Kandidaten"}


def test_every_language_has_all_phrases_with_the_same_figures_to_fill_in() -> None:
    def fields(phrases: Mapping[str, str]) -> dict[str, list[str]]:
        return {
            name: sorted(str(field) for _, field, _, _ in Formatter().parse(text) if field)
            for name, text in phrases.items()
        }

    for phrases in PHRASES.values():
        assert fields(phrases) == fields(PHRASES["en"])


@pytest.mark.parametrize("language", PHRASES)
def test_every_language_tells_every_figure(record: CalibrationRecord, language: str) -> None:
    def figures(text: str) -> list[str]:
        return sorted(re.findall(r"\d+", text))

    requests = [(PLAIN, None), (View(photos=2), None), (PLAIN, 1.0)]
    for measured in (record.measured, replace(record.measured, split=TRAFFIC)):
        changed = replace(record, measured=measured)
        points = [
            changed.point(view, changed.setting("average_k", value)) for view, value in requests
        ]
        for point in [
            *points,
            changed.point(PLAIN, changed.setting("top_k", 5)),
            changed.point(PLAIN, changed.setting("coverage")),
        ]:
            assert figures(statement(point, [language])) == figures(point.statement)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ({}, None),
        ({"chose_head": True}, None),
        ({"chose_checkpoint": True, "train_photos": 0, "networks": 12}, None),
        ({"chose_checkpoint": None}, "nothing tells which photos trained and chose the network"),
        (
            {"chose_checkpoint": True, "train_photos": 0, "networks": None},
            "the photos also chose the network, among candidates that nobody counted",
        ),
        (
            {"chose_checkpoint": True, "train_photos": 7},
            "7 of the photos also trained the network",
        ),
    ],
)
def test_a_hit_rate_and_a_guarantee_say_whether_their_photos_also_chose_the_model(
    record: CalibrationRecord, use: dict[str, Any], says: str | None
) -> None:
    unused = {"chose_checkpoint": False, "chose_head": False}
    changed = replace(record, measured=replace(record.measured, **{**unused, **use}))
    coverage, point = (
        changed.point(PLAIN, changed.setting("coverage")),
        changed.point(PLAIN, changed.setting("average_k")),
    )
    assert coverage.guaranteed == (says is None)
    assert ("guaranteed" in coverage.statement) == coverage.guaranteed
    assert ("no guarantee" in coverage.statement) != coverage.guaranteed
    assert not point.guaranteed
    hits = hits_of(point)
    assert hits.selection_split == changed.measured.selection_split
    assert ("New photos may do worse" in point.statement) == (says is not None)
    if says is not None:
        assert f"New photos may do worse, since {says}." in point.statement
        in_french = statement(point, ["fr"])
        assert "De nouvelles photos peuvent donner moins bien" in in_french


def test_a_point_promises_coverage_for_every_k_at_once(record: CalibrationRecord) -> None:
    measured = replace(record.measured, chose_checkpoint=False, chose_head=True)
    changed = replace(record, measured=measured)
    for rule in ("average_k", "balanced_average_k"):
        points = [changed.point(PLAIN, changed.setting(rule, k)) for k in changed.values(rule)]
        for point in points:
            hits = round(hits_of(point).value * ROWS)
            expected = least_coverage(hits, ROWS, delta=0.1, candidates=16)
            assert point.least_coverage == expected < hits_of(point).ci95[0]
        for point in points[::20]:
            least = floor(1000 * (point.least_coverage or 0)) / 10
            assert f"With 90 % confidence at least {least:.1f} % do" in point.statement


@pytest.mark.parametrize("counted", ["train", "val"])
@pytest.mark.parametrize("fusion", [None, 0.35])
def test_photos_fused_by_their_own_class_counts_promise_nothing(
    record: CalibrationRecord, counted: str, fusion: float | None
) -> None:
    plain, view = record.tables[0], View(photos=2)
    scoring = replace(record.scoring, score_kind="softmax")
    alone = replace(plain, scoring=scoring)
    fused = replace(
        alone, view=view, scoring=replace(scoring, fusion=fusion), made_from="observations"
    )
    measured = replace(record.measured, chose_checkpoint=False)
    changed = replace(
        record, scoring=scoring, tables=(alone, fused), measured=measured, class_counts_from=counted
    )
    spoiled = counted == "val" and fusion is not None
    for setting in (changed.setting("coverage"), changed.setting("average_k")):
        assert not changed.point(PLAIN, setting).certificate.reasons
        reasons = changed.point(view, setting).certificate.reasons
        assert reasons == ((Reason.CLASS_COUNTS_FROM_PHOTOS,) if spoiled else ())


def test_no_promise_is_rounded_up() -> None:
    logits, labels = sample_logits()
    settings: dict[str, Any] = {
        "head": "linear",
        "score_kind": "softmax",
        "ks": (3.0,),
        "delta": 0.0004,
    }
    record = fitted({"linear": logits}, labels, coverages=(0.925, 0.9995), **settings)
    coverage = record.point(PLAIN, Setting.of("coverage", 0.9995, "probability"))
    assert coverage.guaranteed
    for language, comma in (("en", "."), ("fr", ","), ("de", ","), ("es", ",")):
        words = statement(coverage, [language])
        assert re.search(rf"\b0\{comma}04\s%.*\b99\{comma}95\s%", words)
        assert not re.search(rf"\D(0|100)\{comma}0\s%[^)]*$", words)
    assert "at least 92.5 % of" in record.point(PLAIN, Setting.of("coverage", 0.925)).statement


@pytest.mark.parametrize(
    ("use", "request_for"),
    [
        ({"chose_checkpoint": None}, ("average_k",)),
        ({"chose_checkpoint": True, "train_photos": 1}, ("average_k",)),
        ({"chose_checkpoint": True, "train_photos": 0, "networks": None}, ("average_k",)),
        ({"split": TRAFFIC}, ("average_k",)),
        ({}, ("top_k", 3.0)),
        ({}, ("coverage",)),
        ({}, ("average_k", None, "mean")),
    ],
)
def test_no_coverage_is_promised_where_photos_depend_on_it(
    record: CalibrationRecord, use: dict[str, Any], request_for: tuple[Any, ...]
) -> None:
    measured = replace(record.measured, **{"chose_checkpoint": False, **use})
    changed = replace(record, measured=measured)
    point = changed.point(PLAIN, changed.setting(*request_for))
    assert point.least_coverage is None
    assert "90 % confidence" not in point.statement


def test_no_coverage_is_promised_where_rows_are_not_independent(record: CalibrationRecord) -> None:
    fine = record.point(PLAIN, record.setting("average_k"))
    assert fine.least_coverage is not None
    several = record.point(View(photos=2), record.setting("average_k"))
    assert (several.table.made_from, several.least_coverage) == ("same_class", None)
    tables = (replace(table, independent=False) for table in record.tables)
    repeated = replace(record, tables=tuple(tables))
    assert repeated.point(PLAIN, record.setting("average_k")).least_coverage is None


def test_only_a_promise_has_a_delta_and_a_largest_set(record: CalibrationRecord) -> None:
    table = record.tables[0]
    for rule, guarantee, limited in (
        *(("average_k", "mean", True), ("average_k", "probability", True)),
        *(("average_k", None, False), ("coverage", "mean", False), ("top_k", None, False)),
        ("coverage", "probability", False),
    ):
        point = record.point(PLAIN, record.setting(rule, None, guarantee))  # type: ignore[arg-type]  # a guarantee
        assert point.max_size == (table.max_size if limited else None)
        assert point.delta == (table.delta if guarantee == "probability" else None)


def test_several_photos_are_served_in_the_way_of_fusing_them_that_was_chosen(
    record: CalibrationRecord,
) -> None:
    tables = tuple(
        table
        if table.view.single or table.scoring.score_kind != "softmax"
        else replace(table, scoring=replace(table.scoring, fusion=0.5))
        for table in record.tables
    )
    fused = replace(record, tables=tables)
    assert fused.views == record.views
    point = fused.point(View(photos=2), fused.setting("average_k"))
    assert point.table.scoring.fusion == 0.5


def test_rules_for_rare_classes_promise_nothing_where_these_photos_counted_the_classes() -> None:
    logits, labels = sample_logits()
    counted = fitted({"h": logits}, labels, class_counts=None, ks=(3.0,))
    assert counted.class_counts_from == "val"
    reasons = {
        rule: counted.point(PLAIN, counted.setting(rule)).certificate.reasons
        for rule in ("coverage", "balanced_coverage", "class_coverage")
    }
    wanted = (Reason.CLASS_COUNTS_FROM_PHOTOS,)
    assert reasons == {"coverage": (), "balanced_coverage": wanted, "class_coverage": wanted}


def test_the_selection_is_recorded_with_an_honest_rate(record: CalibrationRecord) -> None:
    logits, labels = sample_logits()
    noisy = [logits + np.random.default_rng(seed).normal(0, 2, logits.shape) for seed in range(6)]
    heads = {f"h{index}": values.astype(np.float32) for index, values in enumerate(noisy)}
    many = fitted(heads, labels, ks=(3.0,), temperatures=(1.0,))
    assert many.selection.candidates == 12
    assert many.selection.k == 3.0
    assert many.selection.hit_rate == hits_of(many.point(PLAIN, many.setting("average_k"))).value
    hits = []
    for values in heads.values():
        for kind in SCORE_KINDS:
            result = scores(values, kind)
            members = calibrate("average_k", result, average_k=3).sets(result)
            hits.append(members[np.arange(ROWS), labels])
    best, honest = choose(hits)
    low, high = interval_of_best(hits[best], len(hits))
    assert many.selection.honest_hit_rate == honest
    assert many.selection.honest_ci95 == (min(low, honest), high)
    expected = f"expect {honest:.4f} (95 %: {min(low, honest):.4f} to {high:.4f})"
    assert expected in selection_note(many)
    card = updated_files("# Model\n", {}, many)[CARD].decode()
    assert f"{selection_note(many)}." in card
    assert honest < many.selection.hit_rate
    assert record.selection.candidates == 4 + 6  # pairs of head and kind, and temperatures


def test_a_head_and_kind_named_in_advance_serve_and_choose_nothing() -> None:
    logits, labels = sample_logits()
    heads = {"a": logits, "b": -logits}
    named = fitted(heads, labels, ks=(3.0,), head="b", score_kind="sigmoid")
    assert (named.head, named.score_kind) == ("b", "sigmoid")
    assert not named.measured.chose_head
    assert selection_note(named) == ""
    assert named.point(PLAIN, named.setting("coverage")).guaranteed
    assert named.selection.honest_hit_rate == named.selection.hit_rate


def test_another_calibration_has_another_name(record: CalibrationRecord) -> None:
    assert make_record().calibration_id != record.calibration_id
    other = replace(record, created="another time").with_id()
    assert other.calibration_id != record.calibration_id
    assert other.with_id() == other


def test_sets_may_be_empty_with_min_size_0() -> None:
    record = make_record(ks=(0.5, 1.0), min_size=0)
    assert record.values("average_k")[0] == 0.5
    assert record.default_k == 3.0
    point = record.point(PLAIN, record.setting("average_k", 0.5))
    values = scores(sample_logits()[0], "softmax")
    sizes = point.sets(values).sum(axis=1)
    assert point.row.empty_rate == (sizes == 0).mean() > 0.3


def test_the_record_stays_small_for_a_thousand_classes_and_two_heads() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (500, 1081)).astype(np.float32)
    plants = [str(number) for number in np.repeat(np.arange(100), 5)]
    heads, labels = {"multi_label": logits, "sccp": logits}, np.repeat(np.arange(100), 5)
    counts = random.integers(1, 100_000, 1081)
    record = fitted(heads, labels, observations=plants, class_counts=counts, classes=1081)
    assert record.photos == (1, 2, 3, 4, 5)
    assert len(record.to_json()) < 300_000
    own = random.random((2, 1081)) / 7  # as if every class had photos for a threshold of its own
    by_class = tuple(map(ByClass.of, own))
    rules = (
        replace(rule, by_class=by_class) if rule.by_class else rule
        for rule in record.tables[0].rules
    )
    plain = replace(record.tables[0], rules=tuple(rules))
    worst = replace(record, tables=(plain, *record.tables[1:]))
    assert worst.point(PLAIN, worst.setting("class_coverage", 0.9)).class_thresholds is not None
    assert len(worst.to_json()) < 300_000


def test_the_distribution_counts_every_score(record: CalibrationRecord) -> None:
    distribution = record.distribution
    assert sum(distribution.all_scores) == ROWS * CLASSES
    assert sum(distribution.best_scores) == ROWS
    assert len(distribution.edges) == len(distribution.all_scores)
    best = scores(sample_logits()[0], "softmax").max(axis=1)
    edge = distribution.edges[-5]
    assert sum(distribution.best_scores[-5:]) == (best >= edge).sum()
    assert distribution.logsumexp_mean == pytest.approx(0.0, abs=1e-6)


def test_photos_are_suspect_below_the_share_asked_for() -> None:
    logits, labels = sample_logits()
    for share in (0.05, 0.0, 0.2):
        result = fitted({"linear": logits}, labels, ks=(3.0,), suspect_share=share)
        assert result.rejection is not None
        assert (result.rejection.method, result.rejection.rows) == ("generalised_entropy", ROWS)
        assert (result.rejection.head, result.rejection.share) == ("linear", share)
        suspects = [result.rejection.verdict(row[np.newaxis])[1] for row in logits]
        assert sum(suspects) == int(share * ROWS)
        assert CalibrationRecord.from_json(result.to_json()).rejection == result.rejection


def test_nobody_is_suspect_where_nothing_judges() -> None:
    logits, labels = sample_logits()
    settings: dict[str, Any] = {"ks": (3.0,), "rejection_method": None}
    result = fitted({"linear": logits}, labels, class_counts=None, **settings)
    assert result.rejection is None
    assert result.shots == ()
    assert CalibrationRecord.from_json(result.to_json()) == result


def test_shot_groups_are_measured_at_the_default_k(record: CalibrationRecord) -> None:
    logits, labels = sample_logits()
    members = record.point(PLAIN, record.setting("average_k", 3)).sets(scores(logits, "softmax"))
    few = COUNTS[labels] < 20
    assert [group.name for group in record.shots] == ["few", "medium"]
    assert record.shots[0].rows == few.sum()
    assert record.shots[0].mean_size == pytest.approx(members[few].sum(axis=1).mean())
    assert record.shots[0].hit_rate == pytest.approx(members[few, labels[few]].mean())
    assert record.shots[1].rows == ROWS - few.sum()


def damage(record: CalibrationRecord, **changes: object) -> str:
    return json.dumps({**json.loads(record.to_json()), **changes})


def test_a_damaged_record_is_refused(record: CalibrationRecord) -> None:
    plain = json.loads(record.to_json())
    rules = plain["tables"][0]["rules"]
    short = {**rules[0], "counts": [rules[0]["counts"][0][:5]]}
    counts = rules[0]["counts"][0]
    more = {**rules[0], "counts": [[*counts[:7], [ROWS + 1], *counts[8:]]]}
    missed = {**rules[0], "counts": [[*counts[:8], [ROWS + 1], *counts[9:]]]}
    alike = [
        {**rules[0], "counts": [[*counts[:place], 0.0, *counts[place + 1 :]]]} for place in (4, 5)
    ]
    worse = [
        {**plain["tables"][0], "rules": [rule, *rules[1:]]}
        for rule in (short, more, missed, *alike)
    ]
    texts = [
        "not json",
        "[" * 100_000,
        "[]",
        "{}",
        damage(record, tables=[]),
        *(damage(record, tables=[table]) for table in worse),
        damage(record, schema_version=3),
        damage(record, log_ratios=None),  # an earlier version
        json.dumps({name: entry for name, entry in plain.items() if name != "rejection"}),
        damage(record, measured={}),
        damage(record, class_counts=[1]),
        damage(record, class_counts=[-1] * record.classes),
        damage(record, macro_weight=5.0),
        damage(record, rejection={}),
        damage(record, rejection={**plain["rejection"], "method": "guess"}),
        damage(record, tables=[{**plain["tables"][0], "made_from": "same_class"}]),
    ]
    for text in texts:
        with pytest.raises(BundleError, match="calibrate"):
            CalibrationRecord.from_json(text)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (["tables", 0, "rules", 0, "counts"], [], "no average_k table"),
        (["tables", 0, "candidates"], 0, "tables.0: .*candidates must be at least 1"),
        (["size_bins"], [], "size_bins"),
        (["size_bins", 0], 1, "size_bins"),
        (["distribution", "edges"], [], "distribution: .*one count"),
        (["distribution", "edges", 1], 0.0, "distribution: .*ascending"),
        (["distribution", "all_scores", 0], -1, "distribution: .*one count"),
        (["distribution", "best_scores"], [], "distribution: .*one count"),
        (["distribution", "best_scores", 0], 2**63, "distribution: .*one count"),
        (["distribution", "logsumexp"], [0] * 40, "distribution: .*one count"),
    ],
)
def test_a_value_that_no_figure_can_use_is_refused_by_name(
    record: CalibrationRecord, place: list[Any], wrong: Any, message: str
) -> None:
    plain = json.loads(record.to_json())
    parent = plain
    for name in place[:-1]:
        parent = parent[name]
    parent[place[-1]] = wrong
    with pytest.raises(BundleError, match=f"damaged.*{message}"):
        CalibrationRecord.from_json(json.dumps(plain))


def places(plain: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every entry; of lists the first and the last."""
    if place:
        yield place
    if isinstance(plain, dict):
        names: list[Any] = list(plain)
    else:
        names = sorted({0, len(plain) - 1}) if isinstance(plain, list) and plain else []
    for name in names:
        yield from places(plain[name], (*place, name))


def test_an_entry_of_another_type_is_refused_wherever_it_stands(record: CalibrationRecord) -> None:
    wanted = ("average_k", "class_coverage")
    rules = tuple(rule for rule in record.tables[0].rules if rule.rule in wanted)
    few = replace(record, tables=(replace(record.tables[0], rules=rules),))
    text = few.to_json()
    for turn, place in enumerate(places(json.loads(text))):
        plain = json.loads(text)
        parent = plain
        for name in place[:-1]:
            parent = parent[name]
        right = parent[place[-1]]
        parent[place[-1]] = ({"a": 1}, [["x"]], 1 if isinstance(right, bool) else True)[turn % 3]
        with pytest.raises(BundleError):
            CalibrationRecord.from_json(json.dumps(plain))


def test_the_published_schema_is_that_of_the_record() -> None:
    """After a wanted change: `python -m tests.calibration.write_schema`."""
    assert json.loads(SCHEMA.read_text()) == schema()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('"macro_weight": 0.5', '"macro_weight": "0.5"', "macro_weight: .*number"),
        ('"macro_weight": 0.5', '"macro_weight": true', "macro_weight: .*number"),
        ('"macro_weight": 0.5', '"macro_weight": NaN', "macro_weight: .*finite"),
        ('"macro_weight": 0.5', '"macro_weight": 1e999', "macro_weight: .*finite"),
        ('"rows": 700', '"rows": 700.0', "measured.rows: .*integer"),
        ('"chose_head": true', '"chose_head": 1', "measured.chose_head: .*boolean"),
        ('"split": "val"', '"split": 1', "measured.split: .*string"),
        ('"split": "val"', '"split": "val", "colour": "red"', "measured.colour: "),
        ('"split": "val",', "", "measured.split: .*required"),
        ('"score_kind": ', '"fusion": "guess", "score_kind": ', r"scoring.fusion: .*number"),
        ('"schema_version": 10,', "", "schema_version"),
    ],
)
def test_a_wrong_entry_is_named_by_its_place(
    record: CalibrationRecord, right: str, wrong: str, message: str
) -> None:
    text = record.to_json()
    assert right in text
    with pytest.raises(BundleError, match=f"damaged.*{message}.*: calibrate the bundle again"):
        CalibrationRecord.from_json(text.replace(right, wrong, 1))


def test_a_whole_number_is_read_as_a_float_where_one_belongs(record: CalibrationRecord) -> None:
    text = record.to_json().replace('"macro_weight": 0.5', '"macro_weight": 1', 1)
    assert (
        CalibrationRecord.from_json(text).to_json() == replace(record, macro_weight=1.0).to_json()
    )


def test_every_rule_is_calibrated_with_what_it_promises(record: CalibrationRecord) -> None:
    result = {(key.rule, key.guarantee) for key in record.served}
    promised = {(rule, each) for rule in ("average_k", "coverage") for each in get_args(Guarantee)}
    assert result == promised | {(name, spec.guarantee) for name, spec in RULES.items()}


def test_printed_figures_follow_the_fields_of_a_row(record: CalibrationRecord) -> None:
    row = record.point(PLAIN, record.setting("average_k")).row
    expected = {
        "mean_set_size": row.size,
        "mean_set_size_ci95": (row.size_low, row.size_high),
        "hit_rate": row.hit_rate,
        "hit_rate_ci95": (row.hit_low, row.hit_high),
        "empty_rate": row.empty_rate,
    }
    assert expected == row.figures  # all in tests/server/test_figures
    unlabelled = replace(row, hit_rate=None, hit_low=None, hit_high=None)
    figures = unlabelled.figures
    assert figures["hit_rate"] is figures["hit_rate_ci95"] is None


def test_an_added_rule_is_calibrated_recorded_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    added = RuleSpec(calibrate=calibrate, choose=ScoreSummary.average_k, takes="average_k")
    for module in list(sys.modules.values()):  # looking may import
        if getattr(module, "RULES", None) is RULES and not module.__name__.startswith("tests."):
            monkeypatch.setattr(module, "RULES", {**RULES, "rule_to_come": added})
    record = make_record()
    assert "rule_to_come" in record.rules
    result, usual = (
        record.point(PLAIN, record.setting("rule_to_come", 2.55)),
        record.point(PLAIN, record.setting("average_k", 2.55)),
    )
    assert (result.rule, result.lambda_val, result.k) == ("rule_to_come", usual.lambda_val, 2.55)
    assert result.statement == usual.statement
    assert CalibrationRecord.from_json(record.to_json()) == record


def test_a_table_of_a_rule_that_is_not_known_yet_is_passed_over(record: CalibrationRecord) -> None:
    plain = record.tables[0]
    newer = replace(plain.rules[0], rule="rule_to_come")
    tables = (replace(plain, rules=(newer, *plain.rules)), *record.tables[1:])
    result = CalibrationRecord.from_json(replace(record, tables=tables).to_json())
    assert result.rules == record.rules
    with pytest.raises(NotCalibrated, match="rule_to_come"):
        result.point(PLAIN, result.setting("rule_to_come"))


@pytest.mark.parametrize("after", ["", "## Use\n\nkept\n"])
def test_a_calibration_replaces_its_section_alone(record: CalibrationRecord, after: str) -> None:
    text = f"# Model\n\n## Data\n\nkept\n\n## Calibration\n\nold\n\n{after}"
    first = updated_files("# Model\n\n## Data\n\nkept\n", {"loss": 1}, record)
    again = updated_files(text, {"loss": 1}, record)
    card = again[CARD].decode()
    assert card.startswith("# Model\n\n## Data\n\nkept\n\n## Calibration\n\nCalibrated on the ")
    assert card == first[CARD].decode() + (f"\n{after}" if after else "")
    assert "old" not in card
    assert json.loads(again["metrics.json"])["loss"] == 1


def test_the_interval_of_the_hit_rate_of_a_size_allows_for_plants() -> None:
    every, of_every = sample_logits()
    logits, labels = np.repeat(every[:100], 4, axis=0), np.repeat(of_every[:100], 4)
    plants = [str(row // 4) for row in range(400)]
    record = fitted({"linear": logits}, labels, observations=plants)
    point = record.point(PLAIN, record.setting("average_k"))
    estimate = point.hit_rate_at_size(2)
    assert estimate is not None
    low, high = wilson(round(estimate.value * estimate.rows), estimate.rows)
    assert estimate.ci95[1] - estimate.ci95[0] > 1.4 * (high - low)


def test_the_hit_rate_of_a_size_is_that_of_the_sets_of_this_size() -> None:
    logits, labels = sample_logits()
    record = fitted({"linear": logits}, labels, ks=(3.0,), images=(), score_kind="softmax")
    point = record.point(PLAIN, record.setting("average_k"))
    sets = point.sets(record.scores(logits))
    sizes, hits = sets.sum(axis=1), sets[np.arange(ROWS), labels]
    assert point.hit_rate_at_size(0) is None  # there is no such set
    for size in (1, 2, 5):
        share = point.hit_rate_at_size(size)
        assert share is not None
        assert (share.rows, share.value) == ((sizes == size).sum(), hits[sizes == size].mean())

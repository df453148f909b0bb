"""What each rule promises, checked by simulation with Monte-Carlo error bars.

Each bar is three standard errors of what is measured, so that a true promise fails one test in a
few hundred; seeds are fixed, so that it never does.
"""

import numpy as np
import pytest

from benchmarks.promises.calibrations import Circumstance, Sentence
from benchmarks.promises.pools import invented
from florilege.calibration.record.measurement import Measurement
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores
from florilege.calibration.view import PLAIN, Scoring
from tests.calibration.simulation import CLASSES, PRIOR, Sample, draw

SPLITS = 150
POOL = draw(np.random.default_rng(0), 60_000)
COUNTS = np.round(PRIOR * 10_000).astype(np.int64)


def split(random: np.random.Generator, rows: int) -> tuple[Sample, Sample]:
    """Calibration rows and other rows from the pool."""
    selection = random.choice(len(POOL.labels), 3 * rows, replace=False)
    first, second = selection[:rows], selection[rows:]
    return (
        Sample(POOL.scores[first], POOL.labels[first]),
        Sample(POOL.scores[second], POOL.labels[second]),
    )


def error(values: list[float]) -> float:
    """Standard error of a mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


@pytest.mark.parametrize("min_size", [0, 1])
def test_the_mean_size_on_new_photos_is_k_on_average(min_size: int) -> None:
    random, sizes, deviations = np.random.default_rng(1), [], []
    for _ in range(SPLITS):
        calibration, new = split(random, 400)
        rule = calibrate("average_k", calibration.scores, average_k=3, min_size=min_size)
        new_sizes = rule.sets(new.scores).sum(axis=1)
        sizes.append(float(new_sizes.mean()))
        deviations.append(float(new_sizes.std()))
    assert np.mean(sizes) == pytest.approx(3.0, abs=0.01 + 3 * error(sizes))
    assert 0.35 < np.mean(np.array(sizes) > 3) < 0.65  # half of the calibrations lie above
    expected = np.mean(deviations) * np.sqrt(1 / 400 + 1 / 800)  # the error that is documented
    assert np.std(sizes) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("min_size", [0, 1])
@pytest.mark.parametrize("rule", ["coverage", "balanced_coverage"])
def test_coverage_holds_on_average_over_calibrations(rule: str, min_size: int) -> None:
    random, hits, sizes = np.random.default_rng(2), [], []
    for _ in range(SPLITS):
        calibration, new = split(random, 200)
        members = calibrate(
            rule, *calibration, coverage=0.9, min_size=min_size,
            class_counts=COUNTS if rule.startswith("balanced") else None,
        ).sets(new.scores)  # fmt: skip
        hits.append(float(members[np.arange(len(new.labels)), new.labels].mean()))
        sizes.append(float(members.sum(axis=1).mean()))
    assert np.mean(hits) >= 0.9 - 3 * error(hits)
    assert np.mean(sizes) < CLASSES / 3
    if min_size == 0:
        assert np.mean(hits) <= 0.9 + 1 / 201 + 3 * error(hits)


def test_balancing_trades_hits_over_photos_for_hits_over_classes() -> None:
    random = np.random.default_rng(3)
    calibration, new = draw(random, 6000), draw(random, 30_000)
    micro, macro = [], []
    for macro_weight in (0.0, 0.1, 0.5, 1.0):
        rule = calibrate(
            "balanced_average_k", calibration.scores, average_k=3, class_counts=COUNTS,
            macro_weight=macro_weight, min_size=0,
        )  # fmt: skip
        measured = Measurement([rule], CLASSES)
        measured.update(new.scores, new.labels)
        macro_rate = measured.macro_hit_rate(0)
        assert macro_rate is not None
        micro.append(measured.hits[0] / measured.rows)
        macro.append(macro_rate)
        assert measured.mean_size(0) == pytest.approx(3.0, abs=0.1)
    bar = 3 * np.sqrt(0.1 * 0.9 / 30_000)
    assert (np.diff(micro) < bar).all()
    assert micro[-1] < micro[0] - bar
    assert (np.diff(macro) > -bar).all()
    assert macro[-1] > macro[0] + 0.03


@pytest.mark.parametrize("macro_weight", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_class_coverage_keeps_its_promise_over_all_photos(macro_weight: float) -> None:
    random, hits = np.random.default_rng(8), list[float]()
    macro = np.full((400, CLASSES), np.nan)
    for place in range(400):
        calibration, new = split(random, 300)
        rule = calibrate(
            "class_coverage", *calibration, coverage=0.8, macro_weight=macro_weight, min_size=0,
            class_counts=COUNTS,
        )  # fmt: skip
        inside = rule.sets(new.scores)[np.arange(len(new.labels)), new.labels]
        hits.append(float(inside.mean()))
        rows = np.bincount(new.labels, minlength=CLASSES)
        with np.errstate(invalid="ignore"):
            macro[place] = np.bincount(new.labels, inside, CLASSES) / rows
    assert np.mean(hits) >= 0.8 - 3 * error(hits)
    if macro_weight == 0:
        assert np.mean(hits) <= 0.8 + 1 / 301 + 3 * error(hits)
    if macro_weight == 1:
        rates, bars = np.nanmean(macro, axis=0), 4 * np.nanstd(macro, axis=0) / np.sqrt(400)
        assert (rates >= 0.8 - bars).all()  # thirty are compared


def test_no_rule_of_the_same_size_beats_average_k_on_exact_posteriors() -> None:
    random = np.random.default_rng(4)
    calibration, new = draw(random, 20_000), draw(random, 40_000)
    rows = np.arange(len(new.labels))
    best = calibrate("average_k", calibration.scores, average_k=3, min_size=0).sets(new.scores)
    fixed = calibrate("top_k", calibration.scores, k=3).sets(new.scores)
    gain = best[rows, new.labels].mean() - fixed[rows, new.labels].mean()
    assert gain > 3 * np.sqrt(0.25 / len(rows))


def test_all_but_a_few_calibrations_cover_enough_with_delta() -> None:
    random, true = np.random.default_rng(6), POOL.scores[np.arange(60_000), POOL.labels]
    shares, plain = list[float](), list[float]()
    for _ in range(SPLITS):
        calibration, _ = split(random, 300)
        for sizes, delta in ((shares, 0.1), (plain, None)):
            rule = calibrate("coverage", *calibration, coverage=0.9, min_size=0, delta=delta)
            assert rule.lambda_val is not None
            sizes.append(float((true >= rule.lambda_val).mean()))
    bar = 3 * np.sqrt(0.1 * 0.9 / SPLITS)
    assert np.mean(np.array(shares) < 0.9) <= 0.1 + bar
    assert np.mean(np.array(plain) < 0.9) > 0.3
    assert np.mean(shares) < 0.94


WORLDS = {
    "four photos of each plant": Circumstance(name="", pool=invented(photos=8000, a_plant=4)),
    "four epochs compared": Circumstance(
        name="", pool=invented(photos=8000, networks=4, error=0.5), epochs=4, settings={}
    ),
    "5 % wrong labels": Circumstance(
        name="", pool=invented(photos=8000), noise=("uniform", 0.05), reviewed=300
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_every_sentence_of_a_certificate_is_kept(name: str) -> None:
    """The same simulations as those of the documentation, fewer of them."""
    random, values = np.random.default_rng(7), dict[Sentence, list[float]]()
    for _ in range(40):
        for sentence, value in WORLDS[name].figures(WORLDS[name].calibrated(random, 500)):
            values.setdefault(sentence, []).append(float(value))
    assert len([sentence for sentence in values if sentence.promised]) >= 10
    for sentence, every in values.items():
        shown = np.array(every)[np.isfinite(every)]
        bar = max(shown.std(), 0.1 if shown.max() <= 1 else 0.0) / np.sqrt(shown.size)
        assert sentence.missed_by(float(shown.mean()), float(bar)) < 3.5, sentence


def test_photos_of_plants_taken_as_independent_break_promises() -> None:
    pool, random, short = invented(photos=8000, a_plant=8, alike=0.95), np.random.default_rng(8), []
    for _ in range(60):
        sample = pool.draw(random, 500)
        logits, labels = pool.logits["linear"][sample.rows], pool.labels[sample.rows]
        rule = calibrate("coverage", scores(logits, "softmax"), labels, coverage=0.9, delta=0.1)
        truth = pool.truth(PLAIN, Scoring(head="linear", score_kind="softmax"), None, 0.0)
        short.append(truth.coverage(rule.lambda_val or 0.0) < 0.9)
    assert np.mean(short) > 0.15


@pytest.mark.parametrize(
    ("promised", "measured", "missed"),
    [
        (">= 0.9", 0.91, -1), (">= 0.9", 0.88, 2), ("<= 0.1", 0.12, 2), ("<= 3", 2.98, -2),
        ("0.95", 0.93, 2), ("0.95", 0.99, -4), ("0", -0.02, 2), ("", 0.5, -np.inf),
    ],
)  # fmt: skip
def test_a_simulation_says_by_how_much_a_promise_is_missed(
    promised: str, measured: float, missed: float
) -> None:
    assert Sentence("", promised).missed_by(measured, 0.01) == pytest.approx(missed)

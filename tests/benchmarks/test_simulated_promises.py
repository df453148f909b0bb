"""The invented photos whose truth is known, and the file of what was simulated on them."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.promises import simulation
from benchmarks.promises.calibrations import Figures, Sentence
from benchmarks.promises.pools import Truth, invented
from benchmarks.results import read
from benchmarks.rules.common_and_rare import World, even_rows, shares
from florilege.calibration.sets import SetRule


def test_the_truth_of_a_threshold_is_that_of_its_sets() -> None:
    random = np.random.default_rng(0)
    values, labels = random.random((400, 6)), random.integers(6, size=400)
    truth = Truth(values, labels)
    for cut in (0.2, 0.7, 0.99):
        for most in (None, 3):
            rule = SetRule(rule="average_k", lambda_val=cut, min_size=1, rows=1, max_size=most)
            members = rule.sets(values)
            assert truth.size(cut, most) == pytest.approx(members.sum() / 400)
            if most is None:
                hits = members[np.arange(400), labels]
                assert truth.coverage(cut) == pytest.approx(hits.mean())
                pairs = hits[members.sum(axis=1) == 2]
                if pairs.size:
                    assert truth.coverage_at(2, cut) == pytest.approx(pairs.mean())


def test_plants_are_drawn_whole_with_as_many_photos_or_unequally_many() -> None:
    pool, random = invented(photos=6400, a_plant=64), np.random.default_rng(1)
    sample = pool.draw(random, 1000, equal=False)
    sizes = np.bincount(sample.plants)
    assert sample.rows.size == sizes.sum() == 1000
    assert sizes.max() > 10 * np.median(sizes)
    for plant in (0, 1, int(sizes.argmax())):
        rows = sample.rows[sample.plants == plant]
        assert np.unique(rows // 64).size == 1
        assert np.unique(rows).size == rows.size
    equal = invented(photos=800, a_plant=4).draw(random, 100)
    assert np.bincount(equal.plants).tolist() == [4] * 25


def test_a_simulation_is_made_in_parts_and_replaces_its_own_lines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulated(random: np.random.Generator, photos: int) -> Figures:
        yield Sentence("size", "<= 3"), photos * random.random()

    def mean(numbers: range) -> float:
        ((*_, measured, _, calibrations),) = simulation.lines("a", simulated, 200, numbers)
        assert int(calibrations) == len(numbers)
        return float(measured)

    parts = mean(range(4)), mean(range(4, 8))
    assert mean(range(8)) == pytest.approx(sum(parts) / 2, abs=1e-4)
    assert parts[0] != parts[1]
    monkeypatch.setattr(simulation, "OUT", tmp_path / "promises.csv")
    for name, photos, figure in (
        ("a", 200, "1"),
        ("a", 300, "2"),
        ("b", 200, "3"),
        ("a", 200, "4"),
    ):
        simulation.write(name, photos, [[name, "size", str(photos), "<= 3", figure, "0", "8"]])
    with simulation.OUT.open(newline="", encoding="utf-8") as file:
        rows = [
            (row["circumstance"], row["photos"], row["measured"]) for row in csv.DictReader(file)
        ]
    assert rows == [("a", "300", "2"), ("b", "200", "3"), ("a", "200", "4")]


def test_no_published_promise_is_missed_by_three_standard_errors() -> None:
    """A true one is missed by two in about one line of forty that are exactly kept."""
    rows = read("promises")
    assert len({row["circumstance"] for row in rows}) > 12
    missed = [
        Sentence("", row["promised"]).missed_by(float(row["measured"]), float(row["error"]))
        for row in rows
    ]
    assert max(missed) < 3
    assert np.mean(np.array(missed) > 2) < 0.025


def test_coverage_is_hardly_more_than_promised_with_3000_photos() -> None:
    for row in read("promises"):
        if (
            row["photos"] == "3000"
            and row["promised"][:2] == ">="
            and "coverage" in row["sentence"]
        ):
            assert float(row["measured"]) <= float(row["promised"][3:]) + 0.015


def test_micro_weighs_species_by_their_photos_and_macro_counts_each_once() -> None:
    labels = np.repeat(np.arange(10), 2)
    members = np.zeros((20, 10), dtype=np.bool_)
    members[np.arange(20), labels] = labels == 0
    values = members.astype(np.float64)
    world = World("", values, values, labels, np.array([90, *([10] * 9)]))
    assert shares(world, members) == ["0.500", "0.100", "1.000", "0.000"]
    assert even_rows(np.array([1, 0, 1, 1, 0]), 2).tolist() == [0, 1, 2, 3, 4]

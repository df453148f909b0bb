"""Photos of one plant count as what they are worth, from a manifest to what is printed."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.cautions import cautions
from florilege.calibration.calibrate.evaluate import Evaluation, evaluate_bundle
from florilege.calibration.drift import Monitor, expected_of
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import Row
from florilege.calibration.view import PLAIN, Setting, View
from tests.calibration.command_line import run
from tests.calibration.estimates import hits_of
from tests.calibration.small_bundle import CLASSES, make_bundle, make_data

ROWS, COPIES = 20, 4
PLANTS = ROWS * CLASSES
Measured = dict[int, tuple[CalibrationRecord, Evaluation]]
INTERVALS = ("size_low", "size_high", "hit_low", "hit_high")


def manifest(path: Path, data: Path, *, copies: int) -> str:
    """All squares, each so many times, copies being photos of one plant."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "class_id", "split", "observation_id"])
        for photo in sorted(data.rglob("*.png")):
            *_, split, name = photo.parent.parts
            plant = f"{split}-{name}-{photo.stem}"
            for copy in range(copies):
                other = path.parent / f"copies-{copies}" / f"{plant}-{copy}.png"
                other.parent.mkdir(exist_ok=True)
                shutil.copy(photo, other)
                table.writerow([other.relative_to(path.parent), name, split, plant])
    return str(path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """By the number of copies: the calibration on val and the evaluation on test."""
    folder = tmp_path_factory.mktemp("plants")
    data, results = make_data(folder / "d", rows=ROWS), {}
    for copies in (1, COPIES):
        bundle = make_bundle(folder / f"b{copies}").path
        source = manifest(folder / f"{copies}.csv", data, copies=copies)
        # At 0.8 the same rank of all copies would be that of one photo of each plant.
        record = calibrate_bundle(
            bundle, source, ks=[1, 2], coverages=[0.81], head="sccp", score_kind="softmax"
        )
        results[copies] = record, evaluate_bundle(bundle, source)
    return results


def ends(row: Row) -> list[float]:
    return [getattr(row, name) for name in INTERVALS]


def test_four_copies_of_each_photo_say_no_more_than_one(measured: Measured) -> None:
    (one, evaluated), (four, again) = measured[1], measured[COPIES]
    assert (one.measured.rows, one.measured.observations) == (PLANTS, PLANTS)
    assert (four.measured.rows, four.measured.observations) == (COPIES * PLANTS, PLANTS)
    assert (again.rows, again.observations) == (COPIES * PLANTS, PLANTS)
    groups = four.point(View(photos=2), four.setting("average_k"))
    assert (groups.table.made_from, groups.rows) == ("observations", PLANTS)
    for k in (1, 1.5, 2):
        rows = [record.point(PLAIN, record.setting("average_k", k)).row for record in (one, four)]
        assert rows[0].hit_rate == rows[1].hit_rate
        assert ends(rows[0]) == pytest.approx(ends(rows[1]), rel=0.05)
    for before, after in zip(evaluated.rules, again.rules, strict=True):
        if before.row.lambda_val == after.row.lambda_val:
            assert ends(before.row) == pytest.approx(ends(after.row), rel=0.05)
    for few, many in zip(one.shots, four.shots, strict=True):
        assert few.hit_ci95 == pytest.approx(many.hit_ci95, rel=0.05)
    # Faint photos are counted on one photo of each plant, whatever all photos tell of the size.
    expected = [replace(expected_of(four), size_rows=rows) for rows in (20, PLANTS)]
    limits = [vars(Monitor(each).tests["faint_photos"])["high"] for each in expected]
    assert expected[0].rows == PLANTS
    assert limits[0] == limits[1]
    assert four.selection.hit_rate == hits_of(four.point(PLAIN, four.setting("average_k"))).value


def test_what_is_promised_is_chosen_on_one_photo_of_each_plant(measured: Measured) -> None:
    one, four = (record for record, _ in measured.values())
    promises = [
        Setting.of("coverage", 0.81),
        Setting.of("coverage", 0.81, "probability"),
        Setting.of("average_k", 2, "mean"),
        Setting.of("average_k", 2, "probability"),
        Setting.of("balanced_coverage", 0.81),
        Setting.of("class_coverage", 0.81),
    ]
    for setting in promises:
        points = [record.point(PLAIN, setting) for record in (one, four)]
        assert points[0].lambda_val == points[1].lambda_val, setting
        assert np.array_equal(points[0].class_thresholds, points[1].class_thresholds)  # type: ignore[arg-type]  # None equals None
        assert points[1].rows == COPIES * PLANTS  # all are measured


def test_people_read_how_many_plants_there_are(tmp_path: Path) -> None:
    data, bundle = make_data(tmp_path / "d", rows=6), make_bundle(tmp_path / "b").path
    source = manifest(tmp_path / "m.csv", data, copies=3)
    outcome = run("calibrate", bundle, "--data", source, "--coverage", "0.9,0.98")
    assert "108 photos of 36 plants of val" in " ".join(outcome.stdout.split())
    assert "only 36 plants" in outcome.stderr
    short = "coverage 0.9 with guarantee=probability and 0.98 need more than 36 plants"
    assert f"{short}: every set holds every class" in " ".join(outcome.stderr.split())
    outcome = run("evaluate", bundle, "--data", source)
    assert "on 108 photos of 36 plants of test" in " ".join(outcome.stdout.split())
    outcome = run("evaluate", bundle, "--data", source, "--json")
    assert json.loads(outcome.stdout)["observations"] == 36
    plain = calibrate_bundle(bundle, str(data))
    assert plain.measured.observations is None
    assert any("only 36 photos" in caution for caution in cautions(plain))


def test_a_list_whose_photos_show_two_plants_tells_next_to_nothing(tmp_path: Path) -> None:
    data, bundle = make_data(tmp_path / "d", rows=3), make_bundle(tmp_path / "b").path
    with Path(manifest(tmp_path / "m.csv", data, copies=2)).open(newline="") as file:
        head, *rows = csv.reader(file)
    name = rows[0][1]
    for row in rows:  # of this species one plant has four photos, the other two
        row[3] = f"{row[2]}-few" if row[1] == name and row[3][-1] != "0" else row[3]
    with (tmp_path / "m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    (tmp_path / "few.txt").write_text(name)
    flags = ("--data", tmp_path / "m.csv", "--list", tmp_path / "few.txt", "--json")
    calibrated = run("calibrate", bundle, *flags)
    assert calibrated.exit_code == 0, calibrated.output
    for outcome in (calibrated, run("evaluate", bundle, "--data", tmp_path / "m.csv", "--json")):
        (few,) = json.loads(outcome.stdout)["lists"]
        assert few["rows"] == 6
        low, high = few["rules"][0]["hit_rate_ci95"]
        assert low < 0.1
        assert high == 1.0

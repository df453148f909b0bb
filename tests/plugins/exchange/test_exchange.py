"""`predict --format dwc`: what databases of observations read of the same answers."""

import csv
import io
import json
from pathlib import Path

import pytest

from florilege.plugins.exchange.exchange import remarks
from tests.plugins.exchange import camera_traps
from tests.server.predict.predict_command import interrupted, predicted, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cameras")
    camera_traps.fill(root)
    return root


def test_darwin_core_has_a_row_for_each_species_of_a_set(bundle: Path, folder: Path) -> None:
    words = (folder, "--format", "dwc", "--lang", "fr", "--include", "scores", "--reject")
    rows = list(csv.DictReader(io.StringIO(run(bundle, *words).stdout)))
    lines = {each["path"]: each for each in predicted(bundle, folder, "--reject")}
    members = [(line, r) for line in lines.values() for r in line["results"] or ()]
    assert [row["occurrenceID"] for row in rows] == [
        f"{line['path']}#{result['class_id']}" for line, result in members
    ]
    for row, (line, result) in zip(rows, members, strict=True):
        assert row["scientificName"] == result["taxon"]["scientific_name"]
        gbif = result["taxon"]["ids"]["gbif"]
        assert row["taxonID"] == (f"https://www.gbif.org/species/{gbif}" if gbif else "")
        assert row["eventID"] == row["associatedMedia"] == line["path"]
        size, rate = line["set"]["size"], line["set"]["hit_rate"]["value"]
        assert row["identificationQualifier"] == ("cf." if size > 1 else "")
        text = row["identificationRemarks"]
        assert f"Candidate {result['rank']} of {size} " in text
        assert f"{rate:.1%}" in text
        assert json.loads(row["dynamicProperties"])["score"] == result["score"]
        assert row["identificationVerificationStatus"] == "unverified"
        assert line["model"]["calibration_id"] in row["identifiedBy"]
    places = {Path(row["eventID"]).stem: (row["eventDate"], row["decimalLatitude"]) for row in rows}
    expected = {"a": ("2026-06-30T09:15:00-03:00", "-47.505"), "b": ("2026-06-30T09:15:00", "")}
    assert places == {**expected, "c": ("", "")}


def test_remarks_say_what_makes_a_candidate_doubtful(bundle: Path, folder: Path) -> None:
    (line,) = predicted(bundle, folder / "west" / "a.jpg")
    plain = remarks(line, line["results"][0])
    about = line["set"] | {"none_of_these": True, "hit_rate": None, "k": None, "coverage": 0.9}
    doubtful = line | {"set": about, "rejection": {"verdict": "suspect"}, "tiles": {"total": 9}}
    text = remarks(doubtful, line["results"][0] | {"tiles": 4})
    doubts = ("coverage 0.9", "4 of 9 tiles", "unlike", "none of the known", "Not calibrated")
    for doubt in doubts:
        assert doubt in text
        assert doubt not in plain


def test_an_interrupted_run_ends_in_the_same_bytes(
    bundle: Path, folder: Path, tmp_path: Path
) -> None:
    words = (folder, "--format", "dwc")
    run(bundle, *words, "-o", tmp_path / "whole")
    interrupted(bundle, *words, "-o", tmp_path / "sets.csv", at="b.jpg")
    assert not (tmp_path / "sets.csv").exists()
    run(bundle, *words, "-o", tmp_path / "sets.csv", "--resume")
    assert (tmp_path / "sets.csv").read_bytes() == (tmp_path / "whole").read_bytes()


def test_latitude_0_longitude_0_is_no_place(bundle: Path, tmp_path: Path) -> None:
    zero = (0.0, 0.0, 0.0)
    position = {1: "N", 2: zero, 3: "E", 4: zero}
    camera_traps.save(tmp_path / "a.jpg", 1, camera_traps.TIME, position)
    result = run(bundle, tmp_path / "a.jpg", "--format", "dwc")
    for row in csv.DictReader(io.StringIO(result.stdout)):
        assert (row["decimalLatitude"], row["decimalLongitude"], row["geodeticDatum"]) == ("",) * 3
        assert row["eventDate"] == "2026-06-30T09:15:00"
    assert "photos that say latitude 0, longitude 0" in result.stderr
    assert repr(str(tmp_path / "a.jpg")) in result.stderr

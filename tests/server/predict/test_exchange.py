"""`predict --format dwc|camtrap`: what other software reads of the same answers."""

import csv
import io
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pillow_heif
import pytest
from PIL import ExifTags, Image

from florilege.errors import DataError, UsageError
from florilege.server.predict.exchange import _remarks
from florilege.server.predict.photos import read_capture
from tests.server import garden
from tests.server.predict.predict_command import interrupted, predicted, run

GPS = ExifTags.GPS
NOTHING = (None, None, None)
TIME = {ExifTags.Base.DateTimeOriginal: "2026:06:30 09:15:00"}
OFFSET = {ExifTags.Base.OffsetTimeOriginal: "-03:00"}
PLACE = {
    GPS.GPSLatitude: (47.0, 30.0, 18.0), GPS.GPSLatitudeRef: "S",
    GPS.GPSLongitude: (8.0, 15.0, 0.0), GPS.GPSLongitudeRef: "E",
}  # fmt: skip
DEPLOYMENTS = """deploymentID,latitude,longitude,deploymentStart,deploymentEnd,locationName
west,52.1,-4.5,2026-06-01T08:00:00+02:00,2026-07-01T08:00:00+02:00,Wiese
east,52.2,4.5,2026-06-02T08:00:00Z,2026-08-01T08:00:00Z,
"""


def save(path: Path, index: int, camera: Any = (), position: Any = (), form: str = "JPEG") -> None:
    exif = Image.Exif()
    exif[ExifTags.IFD.Exif], exif[ExifTags.IFD.GPSInfo] = dict(camera), dict(position)
    image = Image.fromarray(garden.pixels(garden.COLOURS[index], side=64))
    if form == "HEIF":
        pillow_heif.from_pillow(image).save(path, exif=exif.tobytes())
    else:
        image.save(path, form, exif=exif, quality=95)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of two cameras: with time and place, with time, with neither, and of nothing."""
    root = tmp_path_factory.mktemp("cameras")
    for name in ("west", "east"):
        (root / name).mkdir()
    save(root / "west" / "a.jpg", 1, TIME | OFFSET, PLACE)
    save(root / "west" / "b.jpg", 5, TIME)
    save(root / "east" / "c.jpg", 7)
    (root / "east" / "d.jpg").write_bytes(garden.DULL)
    (root / "east" / "e.jpg").write_bytes(b"no picture")
    (root / "deployments.csv").write_text(DEPLOYMENTS)
    return root


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF", "HEIF"])
def test_time_and_place_are_read_of_every_type(tmp_path: Path, form: str) -> None:
    save(tmp_path / "photo", 1, TIME | OFFSET, PLACE, form)
    capture = read_capture(tmp_path / "photo")
    assert capture == (datetime.fromisoformat("2026-06-30T09:15:00-03:00"), -47.505, 8.25)


@pytest.mark.parametrize(
    ("camera", "position", "expected"),
    [
        (TIME, {}, (datetime(2026, 6, 30, 9, 15), None, None)),  # the camera's clock
        ({ExifTags.Base.DateTimeOriginal: "0000:00:00 00:00:00"}, {}, NOTHING),
        ({}, {**PLACE, GPS.GPSLatitude: (97.0, 0.0, 0.0)}, NOTHING),
        ({}, {GPS.GPSLatitude: (47.0, 0.0, 0.0)}, NOTHING),
    ],
)
def test_what_a_camera_does_not_know_is_missing(
    tmp_path: Path, camera: Any, position: Any, expected: tuple[Any, ...]
) -> None:
    save(tmp_path / "photo", 1, camera, position)
    assert read_capture(tmp_path / "photo") == expected
    (tmp_path / "photo").write_bytes(b"Exif\0\0II")
    assert read_capture(tmp_path / "photo") == read_capture(tmp_path / "absent") == NOTHING


def answers(bundle: Path, folder: Path) -> dict[str, Any]:
    return {each["path"]: each for each in predicted(bundle, folder, "--reject")}


def test_darwin_core_has_a_row_for_each_species_of_a_set(bundle: Path, folder: Path) -> None:
    words = (folder, "--format", "dwc", "--lang", "fr", "--include", "scores", "--reject")
    rows = list(csv.DictReader(io.StringIO(run(bundle, *words).stdout)))
    lines = answers(bundle, folder)
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
        remarks = row["identificationRemarks"]
        assert f"Candidate {result['rank']} of {size} " in remarks
        assert f"{rate:.1%}" in remarks
        assert json.loads(row["dynamicProperties"])["score"] == result["score"]
        assert row["identificationVerificationStatus"] == "unverified"
        assert line["model"]["calibration_id"] in row["identifiedBy"]
    places = {Path(row["eventID"]).stem: (row["eventDate"], row["decimalLatitude"]) for row in rows}
    expected = {"a": ("2026-06-30T09:15:00-03:00", "-47.505"), "b": ("2026-06-30T09:15:00", "")}
    assert places == {**expected, "c": ("", "")}


def test_remarks_say_what_makes_a_candidate_doubtful(bundle: Path, folder: Path) -> None:
    (line,) = predicted(bundle, folder / "west" / "a.jpg")
    plain = _remarks(line, line["results"][0])
    about = line["set"] | {"none_of_these": True, "hit_rate": None, "k": None, "coverage": 0.9}
    doubtful = line | {"set": about, "rejection": {"verdict": "suspect"}, "tiles": {"total": 9}}
    text = _remarks(doubtful, line["results"][0] | {"tiles": 4})
    doubts = ("coverage 0.9", "4 of 9 tiles", "unlike", "none of the known", "Not calibrated")
    for doubt in doubts:
        assert doubt in text
        assert doubt not in plain


def package(path: Path) -> dict[str, Any]:
    """The tables of a package, and its description."""
    with ZipFile(path) as archive:
        tables = {
            name: list(csv.DictReader(io.StringIO(archive.read(f"{name}.csv").decode())))
            for name in ("deployments", "media", "observations")
        }
        return {**tables, "package": json.loads(archive.read("datapackage.json"))}


def test_camtrap_packages_photos_and_sets_by_deployment(
    bundle: Path, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "package.zip"
    words = (folder, "--format", "camtrap", "--deployments", folder / "deployments.csv", "--reject")
    run(bundle, *words, "-o", target)
    written, lines = package(target), answers(bundle, folder)
    assert written["deployments"] == list(csv.DictReader(io.StringIO(DEPLOYMENTS)))
    media = {each["mediaID"]: each for each in written["media"]}
    assert {name: (each["deploymentID"], each["timestamp"]) for name, each in media.items()} == {
        "west/a.jpg": ("west", "2026-06-30T09:15:00-03:00"),
        "west/b.jpg": ("west", "2026-06-30T09:15:00+02:00"),
        **{f"east/{each}.jpg": ("east", "2026-06-02T08:00:00+00:00") for each in "cde"},
    }
    assert [bool(each["mediaComments"]) for each in media.values()] == [True] * 3 + [False] * 2
    kinds = {"east/d.jpg": "unknown", "east/e.jpg": "unclassified"}
    expected = [
        (f"{name}#{r['class_id']}", "animal", r["taxon"]["scientific_name"])
        for name in media
        for r in lines[str(folder / name)]["results"] or ()
    ]
    expected += [(name, kind, "") for name, kind in kinds.items()]
    rows = written["observations"]
    assert sorted(
        (row["observationID"], row["observationType"], row["scientificName"]) for row in rows
    ) == sorted(expected)
    for row in rows:
        assert row["deploymentID"] == media[row["mediaID"]]["deploymentID"]
        assert row["eventStart"] == row["eventEnd"] == media[row["mediaID"]]["timestamp"]
        assert re.fullmatch(r"(0(\.\d+)?|1\.0)?", row["classificationProbability"])
    about = written["package"]
    assert [each["name"] for each in about["resources"]] == ["deployments", "media", "observations"]
    assert about["temporal"] == {"start": "2026-06-01", "end": "2026-08-01"}
    assert about["spatial"]["coordinates"] == [[-4.5, 52.1], [4.5, 52.2]]
    names = {row["scientificName"] for row in rows} - {""}
    assert {each["scientificName"] for each in about["taxonomic"]} == names


@pytest.mark.parametrize(("form", "name"), [("dwc", "sets.csv"), ("camtrap", "package.zip")])
def test_an_interrupted_run_ends_in_the_same_rows(
    bundle: Path, folder: Path, tmp_path: Path, form: str, name: str
) -> None:
    words: list[Any] = [folder, "--format", form]
    if form == "camtrap":
        words += ["--deployments", folder / "deployments.csv"]
    run(bundle, *words, "-o", tmp_path / "whole")
    interrupted(bundle, *words, "-o", tmp_path / name, at="b.jpg")
    assert not (tmp_path / name).exists()
    run(bundle, *words, "-o", tmp_path / name, "--resume")
    if form == "dwc":
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole").read_bytes()
    else:
        whole, resumed = (package(tmp_path / each) for each in ("whole", name))
        assert {**resumed, "package": None} == {**whole, "package": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("west,52.1", "west,92.1"), "row 1: latitude"),
        (("west,52.1", "west,north"), "row 1: could not"),
        (("2026-07-01T08:00:00+02:00", "2026-05-01T08:00:00+02:00"), "order of start"),
        (("08:00:00Z,2026", "08:00:00,2026"), "offset from UTC"),
        (("east,", "west,"), "must differ"),
        (("east,", "north,"), "folders 'east'"),
        (("deploymentEnd", "end"), "lacks 'deploymentEnd'"),
    ],
)
def test_deployments_that_do_not_fit_are_refused_before_any_photo(
    bundle: Path, folder: Path, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    (tmp_path / "table.csv").write_text(DEPLOYMENTS.replace(*change))
    words = (folder, "--format", "camtrap", "--deployments", tmp_path / "table.csv")
    with pytest.raises(DataError, match=message):
        run(bundle, *words, "-o", tmp_path / "package.zip", fails=None)
    assert [each.name for each in tmp_path.iterdir()] == ["table.csv"]


def test_a_photo_that_is_named_twice_is_refused(bundle: Path, folder: Path, tmp_path: Path) -> None:
    words = ("--deployments", folder / "deployments.csv", "-o", tmp_path / "package.zip")
    with pytest.raises(DataError, match="more than once"):
        run(bundle, folder, folder / "west" / "a.jpg", "--format", "camtrap", *words, fails=None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "camtrap", "-o", "x.zip"), "--deployments go together"),
        (("--format", "dwc", "--deployments", "d.csv"), "--deployments go together"),
        (("--format", "camtrap", "--deployments", "d.csv"), "name a file with -o"),
        (("--format", "camtrap", "--deployments", "d.csv", "-o", "x", "--tiles"), "no --tiles"),
    ],
)
def test_flags_that_do_not_fit_camtrap_are_refused(
    bundle: Path, folder: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(bundle, folder, *words, fails=None)

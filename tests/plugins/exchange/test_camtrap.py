"""`predict --format camtrap`: packages that hold to the standard."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from florilege.errors import DataError, UsageError
from florilege.plugins.exchange.camtrap import write_camtrap
from florilege.plugins.exchange.deployments import COLUMNS, Deployments
from florilege.server.predict.prediction import Observation
from tests.plugins.exchange import camera_traps
from tests.plugins.exchange.camera_traps import DEPLOYMENTS
from tests.server import garden
from tests.server.predict.predict_command import interrupted, predicted, run

SCHEMAS = Path(__file__).parents[2] / "golden" / "camtrap-dp-1.0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cameras")
    camera_traps.fill(root)
    return root


def answers(bundle: Path, folder: Path) -> dict[str, Any]:
    return {each["path"]: each for each in predicted(bundle, folder, "--reject")}


def valid_package(path: Path, folder: Path) -> dict[str, Any]:
    """The tables of a package and its description, which hold to the standard's own schemas."""
    from frictionless import Package  # these take two seconds, in each process of tests
    from jsonschema.validators import validator_for

    with ZipFile(path) as archive:
        archive.extractall(folder)
    about = json.loads((folder / "datapackage.json").read_text())
    profile = json.loads((SCHEMAS / "camtrap-dp-profile.json").read_text())["allOf"][1]
    assert list(validator_for(profile)(without_references(profile)).iter_errors(about)) == []
    resources = [
        each | {"schema": json.loads((SCHEMAS / each["schema"].rpartition("/")[2]).read_text())}
        for each in about["resources"]
    ]
    report = Package({"resources": resources}, basepath=str(folder)).validate()
    assert report.flatten(["name", "rowNumber", "fieldName", "message"]) == []
    return {**package(path), "package": about}


def without_references(schema: Any) -> Any:
    """A schema without the parts that are at other addresses, which a test cannot ask for."""
    if isinstance(schema, dict):
        return {key: without_references(part) for key, part in schema.items() if key != "$ref"}
    return [without_references(part) for part in schema] if isinstance(schema, list) else schema


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
    result = run(bundle, *words, "-o", target)
    assert "no observationType for plants or fungi" in " ".join(result.stderr.split())
    written, lines = valid_package(target, tmp_path / "package"), answers(bundle, folder)
    assert [
        {name: cell for name, cell in row.items() if cell} for row in written["deployments"]
    ] == [
        {"deploymentID": "west", "locationName": "Wiese", "latitude": "52.1", "longitude": "-4.5"}
        | {"deploymentStart": "2026-06-01T08:00:00+02:00"}
        | {"deploymentEnd": "2026-07-01T08:00:00+02:00"},
        {"deploymentID": "east", "latitude": "52.2", "longitude": "4.5"}
        | {"deploymentStart": "2026-06-02T08:00:00+00:00"}
        | {"deploymentEnd": "2026-08-01T08:00:00+00:00"},
    ]
    media = {each["mediaID"]: each for each in written["media"]}
    assert {name: (each["deploymentID"], each["timestamp"]) for name, each in media.items()} == {
        "west/a.jpg": ("west", "2026-06-30T09:15:00-03:00"),
        "west/b.jpg": ("west", "2026-06-30T09:15:00+02:00"),
        **{f"east/{each}.jpg": ("east", "2026-06-02T08:00:00+00:00") for each in "cde"},
    }
    assert [bool(each["mediaComments"]) for each in media.values()] == [True] * 3 + [False] * 2
    kinds = {"east/d.jpg": "unknown", "east/e.jpg": "unclassified"}
    expected = [
        (f"{name}#{r['class_id']}", "unknown", r["taxon"]["scientific_name"])  # plants
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


def test_an_interrupted_run_ends_in_the_same_rows(
    bundle: Path, folder: Path, tmp_path: Path
) -> None:
    words = (folder, "--format", "camtrap", "--deployments", folder / "deployments.csv")
    run(bundle, *words, "-o", tmp_path / "whole")
    target = tmp_path / "package.zip"
    interrupted(bundle, *words, "-o", target, at="b.jpg")
    assert not target.exists()
    run(bundle, *words, "-o", target, "--resume")
    whole, resumed = package(tmp_path / "whole"), package(target)
    assert {**resumed, "package": None} == {**whole, "package": None}


@pytest.mark.parametrize(
    ("taxon", "expected"),
    [
        ({"scientific_name": "Lynx lynx", "family": "Felidae"}, ("animal", "Lynx lynx")),
        ({"scientific_name": "Lynx lynx", "family": None}, ("animal", "Lynx lynx")),
        ({"scientific_name": "Homo sapiens", "family": "Hominidae"}, ("human", "Homo sapiens")),
        ({"scientific_name": "Poa annua", "family": "Poaceae"}, ("unknown", "Poa annua")),
        ({"scientific_name": "Poa annua", "family": "Gramineae"}, ("unknown", "Poa annua")),
        ({"scientific_name": "Empty", "family": None}, ("blank", "")),
        ({"scientific_name": "blank", "family": None}, ("blank", "")),
        ({"scientific_name": "person", "family": None}, ("human", "")),
        ({"scientific_name": "vehicle", "family": None}, ("vehicle", "")),
        ({"scientific_name": "unidentified", "family": None}, ("unknown", "")),
    ],
)
def test_the_type_of_an_observation_is_that_of_its_class(
    bundle: Path, folder: Path, tmp_path: Path, taxon: dict[str, Any], expected: tuple[str, str]
) -> None:
    photo = folder / "west" / "a.jpg"
    (line,) = predicted(bundle, photo)
    (result, *_) = line["results"]
    line["results"] = [result | {"taxon": result["taxon"] | taxon}]
    deployments = Deployments.read(folder / "deployments.csv", [Observation((photo,))])
    with (tmp_path / "a.zip").open("wb") as file:
        write_camtrap([line], file, deployments)
    written = valid_package(tmp_path / "a.zip", tmp_path / "package")
    (row,) = written["observations"]
    assert (row["observationType"], row["scientificName"]) == expected
    names = [each["scientificName"] for each in written["package"]["taxonomic"]]
    assert names == [name for name in expected[1:] if name]


def test_a_type_of_file_is_that_of_its_bytes(bundle: Path, folder: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "noend", "b.PNG"):
        (tmp_path / name).write_bytes(garden.DULL)
    (tmp_path / "c.webp").write_bytes(b"")
    (tmp_path / "d.mp4").write_bytes(b"no photo")
    names = ("a.txt", "noend", "b.PNG", "c.webp", "d.mp4")
    (tmp_path / "table.csv").write_text(DEPLOYMENTS.split("east")[0])
    words = ("--format", "camtrap", "--deployments", tmp_path / "table.csv")
    run(bundle, *(tmp_path / name for name in names), *words, "-o", tmp_path / "a.zip")
    written = valid_package(tmp_path / "a.zip", tmp_path / "package")["media"]
    types = [each["fileMediatype"] for each in written]
    assert types == ["image/png"] * 3 + ["image/webp", "image/jpeg"]


def test_columns_of_deployments_count_by_their_names(
    bundle: Path, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "table.csv").write_text(
        "deployment_end;Deployment Start;note;BAITUSE;longitude;latitude;deploymentid;"
        "cameraheading;featureType;cameraHeight;coordinateUncertainty\n"
        "2026-07-01 08:00+02:00; 2026-06-01T08:00:00.5+02:00 ;hello;TRUE;-4.5; 52.10;west;90.0;"
        "culvert;1.5;30\n"
    )
    words = (folder / "west", "--format", "camtrap", "--deployments", tmp_path / "table.csv")
    result = run(bundle, *words, "-o", tmp_path / "a.zip")
    assert "Camtrap DP has no column 'note'" in result.stderr
    (row,) = valid_package(tmp_path / "a.zip", tmp_path / "package")["deployments"]
    assert {name: cell for name, cell in row.items() if cell} == {
        "deploymentID": "west", "latitude": "52.10", "longitude": "-4.5", "baitUse": "true",
        "deploymentStart": "2026-06-01T08:00:00+02:00", "cameraHeading": "90",
        "deploymentEnd": "2026-07-01T08:00:00+02:00", "featureType": "culvert",
        "cameraHeight": "1.5", "coordinateUncertainty": "30",
    }  # fmt: skip


def test_a_deployment_is_that_of_the_folder_that_looks_like_it(tmp_path: Path) -> None:
    composed, decomposed = "Gew\u00e4sser", "Gewa\u0308sser"  # as Windows and as a Mac write it
    table = DEPLOYMENTS.replace("west", f"{composed} ")
    (tmp_path / "table.csv").write_text(table)
    photos = [str(tmp_path / name / "a.jpg") for name in (decomposed, "east")]
    seen = [Observation(photos=(Path(photo),)) for photo in photos]
    deployments = Deployments.read(tmp_path / "table.csv", seen)
    assert [deployments.of(Path(photo))["deploymentID"] for photo in photos] == [composed, "east"]


def test_our_columns_are_those_of_the_standard() -> None:
    from frictionless import Schema

    schema = json.loads((SCHEMAS / "deployments-table-schema.json").read_text())
    assert list(COLUMNS) == [field["name"] for field in schema["fields"]]
    cells = ("", "0", "-1", "91", "361", "1.5", "x", "culvert", "true", "-90", "90", "360", "1e3")
    for field in Schema.from_descriptor(schema).fields:
        if field.type not in ("string", "datetime") or field.constraints.get("enum"):
            for cell in filter(None, cells):
                value, notes = field.read_cell(cell)
                try:
                    text = COLUMNS[field.name](cell)
                except ValueError:
                    assert value is None or notes, (field.name, cell)
                else:
                    assert field.read_cell(text)[1] is None, (field.name, cell)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("west,52.1", "west,92.1"), "row 1: latitude: '92.1' is not a number of at least -90"),
        (("west,52.1", "west,north"), "row 1: latitude: 'north' is not a number"),
        (("west,52.1", "west,"), "row 1: latitude is empty"),
        (("west,52.1", ",52.1"), "row 1: deploymentID is empty"),
        (("-4.5", "nan"), "row 1: longitude: 'nan'"),
        (("2026-07-01T08:00:00+02:00", "2026-05-01T08:00:00+02:00"), "before deploymentStart"),
        (("08:00:00Z,2026", "08:00:00,2026"), "deploymentStart: .* offset from UTC"),
        (("east,", "west,"), "must differ"),
        (("east,", "north,"), "folders 'east'"),
        (("deploymentEnd", "end"), "lacks 'deploymentEnd'"),
        (("locationName", "latitude_"), "two columns mean latitude"),
        (("locationName", "baitUse"), "row 1: baitUse: 'Wiese' is neither"),
        (("locationName", "featureType"), "row 1: featureType: 'Wiese' is none of roadPaved"),
        (("locationName", "cameraHeading"), "whole number of at least 0 and at most 360"),
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


@pytest.mark.parametrize("name", ["a..jpg", ".a.jpg", "~a.jpg"])
def test_a_path_that_the_standard_forbids_is_refused(
    bundle: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(garden.DULL)
    (tmp_path / "table.csv").write_text(DEPLOYMENTS.split("east")[0])
    words = ("--deployments", tmp_path / "table.csv", "-o", tmp_path / "package.zip")
    with pytest.raises(DataError, match=re.escape(f"rename '{name}'")):
        run(bundle, tmp_path / name, "--format", "camtrap", *words, fails=None)


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

"""Answers for databases of observations: a Darwin Core table, or a Camera Trap Data Package.

Each species of a set is a row. The rows of one photo are alternatives: in Darwin Core they have one
``eventID`` and one ``organismID``. A package is one zip archive of Camtrap DP 1.0.
"""

import csv
import io
import json
import mimetypes
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from florilege.errors import DataError, first
from florilege.models.runtime import installed
from florilege.server.predict.formats import Row, write_csv
from florilege.server.predict.photos import Observation, read_capture
from florilege.server.predict.prediction import Line
from florilege.tables import Table, read_table

_TERMS: Final = (
    *("occurrenceID", "basisOfRecord", "eventID", "organismID", "eventDate"),
    *("decimalLatitude", "decimalLongitude", "geodeticDatum"),
    *("taxonID", "scientificName", "genus", "family", "vernacularName"),
    *("identifiedBy", "identificationQualifier", "identificationVerificationStatus"),
    *("identificationRemarks", "associatedMedia", "dynamicProperties"),
)
"""Columns: terms of http://rs.tdwg.org/dwc/terms/."""
_PROFILE: Final = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0/"
_REQUIRED: Final = ("deploymentID", "latitude", "longitude", "deploymentStart", "deploymentEnd")
_MEDIA: Final = (
    *("mediaID", "deploymentID", "timestamp", "filePath", "filePublic", "fileName"),
    *("fileMediatype", "mediaComments"),
)
_OBSERVATIONS: Final = (
    *("observationID", "deploymentID", "mediaID", "eventStart", "eventEnd", "observationLevel"),
    *("observationType", "scientificName", "classificationMethod", "classifiedBy"),
    *("classificationProbability", "observationComments"),
)


def write_darwin_core(lines: Iterable[Line], file: BinaryIO) -> None:
    """As `write_csv`. A photo that failed or has an empty set is no occurrence and gets no row."""
    write_csv(lines, file, _TERMS, _occurrences)


def _candidates(line: Line) -> list[Row]:
    """The results of a line that are in its set."""
    return [each for each in line["results"] or () if each["in_set"]]


def _remarks(line: Line, result: Row) -> str:
    """What is known of one candidate of a set, as a sentence or two."""
    about = line["set"]
    value = f"K = {about['k']:g}" if about["k"] is not None else f"coverage {about['coverage']:g}"
    text = (
        f"Candidate {result['rank']} of {about['size']} in a prediction set ({about['rule']}, "
        f"{value}), score {result['score']:.4f}."
    )
    if "tiles" in result:
        text += f" In the sets of {result['tiles']} of {line['tiles']['total']} tiles of the photo."
    if line["rejection"]["verdict"] == "suspect":
        text += " The photo looks unlike those the model knows."
    if about["none_of_these"]:
        text += " The photo may also show none of the known species."
    rate = about["hit_rate"]
    if rate is None:
        return f"{text} Not calibrated for this photo."
    share, split = f"{rate['value']:.1%}", rate["split"]
    return f"{text} {share} of sets drawn in this way hold the right species (split {split})."


def _identified_by(line: Line) -> str:
    """The model that answered."""
    model = line["model"]
    return f"Florilege: {model['name']} {model['version']}, calibration {model['calibration_id']}"


def _taxon_terms(taxon: Row) -> Row:
    """The terms of both standards for a species; None where one is unknown."""
    gbif = taxon["ids"]["gbif"]
    return {
        "scientificName": taxon["scientific_name"],
        "taxonID": gbif and f"https://www.gbif.org/species/{gbif}",
        "genus": taxon["genus"],
        "family": taxon["family"],
    }


def _occurrences(line: Line) -> Iterator[Row]:
    results = _candidates(line)
    if not results:
        return
    name, capture = line["observation"] or line["path"], read_capture(line["path"])
    for each in results:
        names = each["taxon"]["common_names"]
        yield {
            "occurrenceID": f"{name}#{each['class_id']}",
            "basisOfRecord": "MachineObservation",
            "eventID": name,
            "organismID": name,
            "eventDate": None if capture.time is None else capture.time.isoformat(),
            "decimalLatitude": capture.latitude,
            "decimalLongitude": capture.longitude,
            "geodeticDatum": None if capture.latitude is None else "EPSG:4326",
            **_taxon_terms(each["taxon"]),
            "vernacularName": names[0]["name"] if names else None,
            "identifiedBy": _identified_by(line),
            "identificationQualifier": "cf." if len(results) > 1 else None,
            "identificationVerificationStatus": "unverified",
            "identificationRemarks": _remarks(line, each),
            "associatedMedia": " | ".join(line["paths"]),
            "dynamicProperties": json.dumps(
                {"score": each["score"], "setSize": line["set"]["size"], "rank": each["rank"]}
            ),
        }


class Deployments(NamedTuple):
    """The table of deployments, and where the photos of each are."""

    rows: Mapping[str, Mapping[str, str]]  # by deploymentID
    columns: Sequence[str]
    folder: Path  # all photos are below it

    def of(self, photo: Path) -> Mapping[str, str]:
        """The deployment of a photo: the one named like its folder, or the only one."""
        only = next(iter(self.rows.values())) if len(self.rows) == 1 else {}
        return self.rows.get(photo.parent.name, only)


def read_deployments(path: Path, observations: Sequence[Observation]) -> Deployments:
    """Read a ``deployments.csv`` of Camtrap DP for these photos.

    Raises `DataError` if a column, a value or the deployment of a photo is missing or wrong.
    """
    table = read_table(path)
    rows = _checked_rows(table, path)
    files = [_absolute(photo) for each in observations for photo in each.photos]
    if len(set(files)) < len(files):
        raise DataError("a photo is named more than once; Camtrap DP has one row for each")
    folder = os.path.commonpath([each.parent for each in files])
    deployments = Deployments(rows, list(table), Path(folder))
    homeless = sorted({each.parent.name for each in files if not deployments.of(each)})
    if homeless:
        raise DataError(
            f"{path} has no deployment for the folders {first(homeless)}: a photo belongs to the "
            "deployment whose deploymentID is the name of its folder"
        )
    return deployments


def _checked_rows(table: Table, path: Path) -> dict[str, Mapping[str, str]]:
    missing = [name for name in _REQUIRED if name not in table]
    if missing:
        raise DataError(
            f"{path} lacks {first(missing)}: Camtrap DP requires {', '.join(_REQUIRED)}"
        )
    rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
    for number, row in enumerate(rows, start=1):
        try:
            _check_deployment(row)
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
    by_id: dict[str, Mapping[str, str]] = {row["deploymentID"]: row for row in rows}
    if len(by_id) < len(rows) or not rows:
        raise DataError(f"{path}: deploymentID must differ in each row, and there must be a row")
    return by_id


def _absolute(path: str | Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  # links stay, as in what a person typed


def _check_deployment(row: Mapping[str, str]) -> None:
    """Raise ``ValueError`` if a value of a row is wrong."""
    latitude, longitude = float(row["latitude"]), float(row["longitude"])
    start, end = _time(row["deploymentStart"]), _time(row["deploymentEnd"])
    if not (abs(latitude) <= 90 and abs(longitude) <= 180 and start <= end):
        raise ValueError("latitude, longitude or the order of start and end is wrong")


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} needs an offset from UTC, as in 2026-06-30T08:00:00+02:00")
    return time


def write_camtrap(lines: Iterable[Line], file: BinaryIO, deployments: Deployments) -> None:
    """Write the package: deployments, a row for each photo, and one for each species of its set."""
    taxa: dict[str, Row] = {}
    with (
        ZipFile(file, "w", ZIP_DEFLATED) as archive,
        TemporaryFile("w+", encoding="utf-8", newline="") as observations,
    ):
        _write_table(archive, "deployments.csv", deployments.columns, deployments.rows.values())
        rows = csv.DictWriter(observations, _OBSERVATIONS, lineterminator="\n")
        rows.writeheader()
        _write_table(archive, "media.csv", _MEDIA, _media(lines, deployments, rows, taxa))
        observations.seek(0)
        with archive.open(_entry("observations.csv"), "w", force_zip64=True) as entry:
            for text in observations:
                entry.write(text.encode())
        document = json.dumps(_package(deployments, list(taxa.values())), indent=1)
        archive.writestr(_entry("datapackage.json"), document)


def _media(
    lines: Iterable[Line], deployments: Deployments, rows: Any, taxa: dict[str, Row]
) -> Iterator[Row]:
    """The row of each photo; writes its observations to ``rows`` and adds their ``taxa``."""
    for line in lines:
        path = _absolute(line["path"])
        deployment, name = deployments.of(path), path.relative_to(deployments.folder).as_posix()
        start, time = _time(deployment["deploymentStart"]), read_capture(path).time
        if time is not None and time.tzinfo is None:  # the camera's clock
            time = time.replace(tzinfo=start.tzinfo)
        media = {
            "mediaID": name,
            "deploymentID": deployment["deploymentID"],
            "timestamp": _text(time or start),
            "filePath": name,
            "filePublic": "false",
            "fileName": path.name,
            "fileMediatype": mimetypes.guess_type(path)[0] or "image/jpeg",
            "mediaComments": None if time else "time unknown: start of the deployment",
        }
        rows.writerows(_observations(line, media))
        for each in _candidates(line):
            terms = _taxon_terms(each["taxon"])
            taxa[terms["scientificName"]] = {name: text for name, text in terms.items() if text}
        yield media


def _observations(line: Line, media: Row) -> Iterator[Row]:
    """A row for each species of the set; one without a species if there is none."""
    row: Row = {
        "deploymentID": media["deploymentID"],
        "mediaID": media["mediaID"],
        "eventStart": media["timestamp"],
        "eventEnd": media["timestamp"],
        "observationLevel": "media",
    }
    if line["error"] is not None:
        row |= {"observationType": "unclassified", "observationComments": line["error"]["detail"]}
    else:
        row |= {"classificationMethod": "machine", "classifiedBy": _identified_by(line)}
    if not _candidates(line):
        yield {"observationType": "unknown", **row, "observationID": media["mediaID"]}
    for each in _candidates(line):
        yield row | {
            "observationID": f"{media['mediaID']}#{each['class_id']}",
            "observationType": "animal",
            "scientificName": each["taxon"]["scientific_name"],
            "classificationProbability": min(1.0, max(0.0, each["score"])),
            "observationComments": _remarks(line, each),
        }


def _package(deployments: Deployments, taxa: Sequence[Row]) -> Row:
    rows = deployments.rows.values()
    resource = {"profile": "tabular-data-resource", "format": "csv", "mediatype": "text/csv"}
    points = sorted({(float(row["longitude"]), float(row["latitude"])) for row in rows})
    return {
        "profile": f"{_PROFILE}camtrap-dp-profile.json",
        "created": _text(datetime.now(UTC)),
        "contributors": [{"title": f"Florilege {installed('florilege')}", "role": "contributor"}],
        "resources": [
            {
                **resource,
                "name": name,
                "path": f"{name}.csv",
                "encoding": "utf-8",
                "schema": f"{_PROFILE}{name}-table-schema.json",
            }
            for name in ("deployments", "media", "observations")
        ],
        "project": {
            "title": "Photos identified by Florilege",
            "samplingDesign": "opportunistic",
            "captureMethod": ["activityDetection"],
            "individualAnimals": False,
            "observationLevel": ["media"],
        },
        "spatial": {"type": "MultiPoint", "coordinates": points},
        "temporal": {
            "start": min(row["deploymentStart"] for row in rows)[:10],
            "end": max(row["deploymentEnd"] for row in rows)[:10],
        },
        "taxonomic": taxa,
    }


def _write_table(
    archive: ZipFile, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    with (
        archive.open(_entry(name), "w", force_zip64=True) as entry,
        io.TextIOWrapper(entry, "utf-8", newline="") as text,
    ):
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _entry(name: str) -> ZipInfo:
    """An entry without a time, so that the same answers give the same bytes."""
    entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    return entry


def _text(time: datetime) -> str:
    return time.isoformat(timespec="seconds")

"""Answers as a Camera Trap Data Package: one zip archive of Camtrap DP 1.0.

Each species of a set is a row of ``observations.csv``. The rows of one photo are alternatives. The
tables have every column of the standard in its order, because programs read them by position.
"""

import csv
import io
import json
import mimetypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from florilege.errors import first, own_version
from florilege.models.images.sniff import ImageError, sniff
from florilege.plugins.exchange.deployments import COLUMNS, Deployments, absolute, time_of
from florilege.plugins.exchange.exchange import (
    Line,
    Row,
    candidates,
    identified_by,
    read_capture,
    remarks,
    taxon_terms,
)
from florilege.tables import spreadsheet_cell
from florilege.terminal import warn

_STANDARD: Final = "https://raw.githubusercontent.com/tdwg/camtrap-dp/1.0/"
_MEDIA: Final = (
    *("mediaID", "deploymentID", "captureMethod", "timestamp", "filePath", "filePublic"),
    *("fileName", "fileMediatype", "exifData", "favorite", "mediaComments"),
)
_OBSERVATIONS: Final = (
    *("observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd"),
    *("observationLevel", "observationType", "cameraSetupType", "scientificName", "count"),
    *("lifeStage", "sex", "behavior", "individualID", "individualPositionRadius"),
    *("individualPositionAngle", "individualSpeed", "bboxX", "bboxY", "bboxWidth", "bboxHeight"),
    *("classificationMethod", "classifiedBy", "classificationTimestamp"),
    *("classificationProbability", "observationTags", "observationComments"),
)
# Classes of camera trap networks that are no species, by lower-case name.
_NO_SPECIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("blank", "empty", "no animal"), "blank"),
    **dict.fromkeys(("human", "person", "people"), "human"),
    **dict.fromkeys(("vehicle", "car"), "vehicle"),
    **dict.fromkeys(("unknown", "unidentified"), "unknown"),
}
# Families of plants, algae and fungi end in -aceae; these eight have a second name.
_PLANT_FAMILIES: Final = frozenset(
    (
        *("compositae", "cruciferae", "gramineae", "guttiferae", "labiatae", "leguminosae"),
        *("palmae", "umbelliferae"),
    )
)


def write_camtrap(lines: Iterable[Line], file: BinaryIO, deployments: Deployments) -> None:
    """Write the package: deployments, a row for each photo, and one for each species of its set.

    Warns of species that are plants or fungi by their family, for which the standard has no type.
    """
    taxa: dict[str, Row] = {}
    with (
        ZipFile(file, "w", ZIP_DEFLATED) as archive,
        # A zip takes one entry at a time, and the rows of a photo go to two.
        TemporaryFile("w+", encoding="utf-8", newline="") as observations,
    ):
        _write_table(archive, "deployments.csv", tuple(COLUMNS), deployments.rows.values())
        rows = csv.DictWriter(observations, _OBSERVATIONS, lineterminator="\n")
        rows.writeheader()
        _write_table(archive, "media.csv", _MEDIA, _media(lines, deployments, rows, taxa))
        observations.seek(0)
        # Its size is not known when it begins, and 4 GB are no limit.
        with archive.open(_entry("observations.csv"), "w", force_zip64=True) as entry:
            for text in observations:
                entry.write(text.encode())
        document = json.dumps(_package(deployments, list(taxa.values())), indent=1)
        archive.writestr(_entry("datapackage.json"), document)
    if plants := [name for name, taxon in taxa.items() if _is_plant(taxon)]:
        warn(
            "Camtrap DP describes animals and has no observationType for plants or fungi; it is "
            f"`unknown` in the rows of {first(plants)}"
        )


def _media(
    lines: Iterable[Line], deployments: Deployments, rows: Any, taxa: dict[str, Row]
) -> Iterator[Row]:
    """The row of each photo; writes its observations to ``rows`` and adds their ``taxa``."""
    for line in lines:
        path = absolute(line["path"])
        deployment, name = deployments.of(path), deployments.file_path(path)
        start, time = time_of(deployment["deploymentStart"]), read_capture(path).time
        if time is not None and time.tzinfo is None:  # the camera's clock
            time = time.replace(tzinfo=start.tzinfo)
        media = {
            "mediaID": name,
            "deploymentID": deployment["deploymentID"],
            "timestamp": (time or start).isoformat(timespec="seconds"),
            "filePath": name,
            "filePublic": "false",
            "fileName": path.name,
            "fileMediatype": _media_type(path),
            "mediaComments": None if time else "time unknown: start of the deployment",
        }
        rows.writerows(map(_safe, _observations(line, media)))
        for candidate in candidates(line):
            terms = taxon_terms(candidate["taxon"])
            if _species_and_type(terms)[0] is not None:
                taxa[terms["scientificName"]] = {key: text for key, text in terms.items() if text}
        yield media


def _media_type(path: Path) -> str:
    """The type of a photo by its bytes, or by its name if they are not those of a photo."""
    try:
        with path.open("rb") as file:
            return f"image/{sniff(file.read(64))}"
    except (OSError, ImageError):
        guess = mimetypes.guess_type(path)[0] or ""
        return guess if guess.startswith("image/") else "image/jpeg"


def _is_plant(terms: Mapping[str, str | None]) -> bool:
    family = (terms.get("family") or "").lower()
    return family.endswith("aceae") or family in _PLANT_FAMILIES


def _species_and_type(terms: Mapping[str, str | None]) -> tuple[str | None, str]:
    """The ``scientificName`` and ``observationType`` of a class; None if it is no species.

    A species without a known family is an animal: what camera traps are for.
    """
    name = terms["scientificName"] or ""
    if kind := _NO_SPECIES.get(name.lower()):
        return None, kind
    if name == "Homo sapiens":
        return name, "human"
    return name, "unknown" if _is_plant(terms) else "animal"


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
        row |= {"classificationMethod": "machine", "classifiedBy": identified_by(line)}
    if not candidates(line):  # no class reached the threshold: `unknown` by the standard's words
        yield {"observationType": "unknown", **row, "observationID": media["mediaID"]}
    for candidate in candidates(line):
        species, kind = _species_and_type(taxon_terms(candidate["taxon"]))
        yield row | {
            "observationID": f"{media['mediaID']}#{candidate['class_id']}",
            "observationType": kind,
            "scientificName": species,
            "classificationProbability": min(1.0, max(0.0, candidate["score"])),
            "observationComments": remarks(line, candidate),
        }


def _package(deployments: Deployments, taxa: Sequence[Row]) -> Row:
    rows = deployments.rows.values()
    resource = {"profile": "tabular-data-resource", "format": "csv", "mediatype": "text/csv"}
    points = sorted({(float(row["longitude"]), float(row["latitude"])) for row in rows})
    return {
        "profile": f"{_STANDARD}camtrap-dp-profile.json",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "contributors": [{"title": f"Florilege {own_version()}", "role": "contributor"}],
        "resources": [
            {
                **resource,
                "name": name,
                "path": f"{name}.csv",
                "encoding": "utf-8",
                "schema": f"{_STANDARD}{name}-table-schema.json",
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
        writer.writerows(map(_safe, rows))


def _safe(row: Mapping[str, Any]) -> Row:
    """The row without cells that a spreadsheet would run; ids and names of files stay exact."""
    exact = ("filePath", "fileName")
    return {
        name: cell if name.endswith("ID") or name in exact else spreadsheet_cell(cell)
        for name, cell in row.items()
    }


def _entry(name: str) -> ZipInfo:
    """An entry without a time, so that the same answers give the same bytes."""
    entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    return entry

"""Answers for databases of observations: a Darwin Core table.

Each species of a set is a row. The rows of one photo are alternatives: they have one ``eventID``
and one ``organismID``.
"""

import json
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from florilege.errors import first
from florilege.plugins.exchange.capture import read_capture
from florilege.server.predict.formats import Row, write_csv
from florilege.server.predict.prediction import Line
from florilege.terminal import warn

_TERMS: Final = (
    *("occurrenceID", "basisOfRecord", "eventID", "organismID", "eventDate"),
    *("decimalLatitude", "decimalLongitude", "geodeticDatum"),
    *("taxonID", "scientificName", "genus", "family", "vernacularName"),
    *("identifiedBy", "identificationQualifier", "identificationVerificationStatus"),
    *("identificationRemarks", "associatedMedia", "dynamicProperties"),
)
"""Columns: terms of http://rs.tdwg.org/dwc/terms/."""


def write_darwin_core(lines: Iterable[Line], file: BinaryIO) -> None:
    """As `write_csv`. A photo that failed or has an empty set is no occurrence and gets no row.

    Warns of photos whose camera wrote 0, 0, which is no place.
    """
    without_fix: list[str] = []
    write_csv(lines, file, _TERMS, lambda line: _occurrences(line, without_fix))
    if without_fix:
        warn(
            "photos that say latitude 0, longitude 0, as devices without a position do, get no "
            f"place: {first(without_fix)}"
        )


def candidates(line: Line) -> list[Row]:
    """The results of a line that are in its set."""
    return [result for result in line["results"] or () if result["in_set"]]


def remarks(line: Line, result: Row) -> str:
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


def identified_by(line: Line) -> str:
    """The model that answered."""
    model = line["model"]
    return f"Florilege: {model['name']} {model['version']}, calibration {model['calibration_id']}"


def taxon_terms(taxon: Row) -> Row:
    """The terms of both standards for a species; None where one is unknown."""
    gbif = taxon["ids"]["gbif"]
    return {
        "scientificName": taxon["scientific_name"],
        "taxonID": gbif and f"https://www.gbif.org/species/{gbif}",
        "genus": taxon["genus"],
        "family": taxon["family"],
    }


def _occurrences(line: Line, without_fix: list[str]) -> Iterator[Row]:
    results = candidates(line)
    if not results:
        return
    name, capture = line["observation"] or line["path"], read_capture(line["path"])
    if capture.without_fix:
        without_fix.append(line["path"])
    for result in results:
        names = result["taxon"]["common_names"]
        yield {
            "occurrenceID": f"{name}#{result['class_id']}",
            "basisOfRecord": "MachineObservation",
            "eventID": name,
            "organismID": name,
            "eventDate": None if capture.time is None else capture.time.isoformat(),
            "decimalLatitude": capture.latitude,
            "decimalLongitude": capture.longitude,
            "geodeticDatum": None if capture.latitude is None else "EPSG:4326",
            **taxon_terms(result["taxon"]),
            "vernacularName": names[0]["name"] if names else None,
            "identifiedBy": identified_by(line),
            "identificationQualifier": "cf." if len(results) > 1 else None,
            "identificationVerificationStatus": "unverified",
            "identificationRemarks": remarks(line, result),
            "associatedMedia": " | ".join(line["paths"]),
            "dynamicProperties": json.dumps(
                {"score": result["score"], "setSize": line["set"]["size"], "rank": result["rank"]}
            ),
        }

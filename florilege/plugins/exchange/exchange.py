"""Answers for databases of observations: a Darwin Core table, with the time and place of photos.

Each species of a set is a row. The rows of one photo are alternatives: they have one ``eventID``
and one ``organismID``. Time and place are what the EXIF block of a photo says.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pillow_heif
from PIL import ExifTags, Image, UnidentifiedImageError

from florilege.errors import first
from florilege.models.regions import is_null_island
from florilege.server.predict.formats import Row as Row
from florilege.server.predict.formats import write_csv
from florilege.server.predict.prediction import Line as Line
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


# When and where a photo was taken ----------------------------------------------------------------
#
# Cameras, phones and editors write these values in many ways that the standard does not allow. Text
# is read leniently; a value that would have to be guessed, such as a latitude without its
# hemisphere, is missing.

# Any signs between the numbers, and blanks for zeros: `2026-06-30 10:11`, `2026: 6:30  9: 5: 1`.
_TIME: Final = re.compile(
    r"\s*(\d{4})\D\s*(\d\d?)\D\s*(\d\d?)(?:\s+|T)(\d\d?)\D\s*(\d\d?)(?:\D\s*(\d\d?)(?:[.,]\d*)?)?"
    r"\s*(?:([ap])\.?m\.?)?\s*(Z|[+-]\d\d?:?\d*)?",
    re.ASCII | re.IGNORECASE,
)
_OFFSET: Final = re.compile(r"([+-])\s?(\d\d?):?(\d\d)?", re.ASCII)
_MOST_OFFSET: Final = timedelta(hours=14)  # Kiribati
_NUMBER: Final = re.compile(r"[+-]?\d+(?:\.\d*)?")


class _Capture(NamedTuple):
    """What a camera wrote; None where it is missing or unreadable."""

    time: datetime | None = None  # with its offset from UTC only if the camera knew it
    latitude: float | None = None  # degrees, WGS84
    longitude: float | None = None
    without_fix: bool = False  # the camera wrote latitude 0, longitude 0: it did not know its place


def read_capture(path: str | Path) -> _Capture:
    """Read the EXIF block of a file; anything that is missing or damaged is None."""
    main: Mapping[int, Any] = {}
    camera: Mapping[int, Any] = {}
    position: Mapping[int, Any] = {}
    with suppress(Exception), _open(Path(path)) as image:  # Pillow raises almost anything on damage
        main = exif = image.getexif()
        with suppress(Exception):  # a damaged directory leaves the other one readable
            camera = exif.get_ifd(ExifTags.IFD.Exif)
        position = exif.get_ifd(ExifTags.IFD.GPSInfo)
    time = _capture_time({**main, **camera})  # TIFF/EP has the time in the main directory
    tags = ExifTags.GPS
    latitude = _degrees(position, tags.GPSLatitude, tags.GPSLatitudeRef, "NS", 90)
    longitude = _degrees(position, tags.GPSLongitude, tags.GPSLongitudeRef, "EW", 180)
    if latitude is None or longitude is None:
        return _Capture(time)
    if is_null_island(latitude, longitude):
        return _Capture(time, without_fix=True)
    return _Capture(time, latitude, longitude)


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        return pillow_heif.HeifImageFile(path)  # type: ignore[no-untyped-call]  # not typed


def _texts(value: object) -> list[str]:
    """The ways to read a value as text, the usual one first.

    Text ends at the first NUL. Where it is UTF-16, every other byte of its ASCII characters is NUL,
    whatever the byte order.
    """
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return [text.partition("\0")[0], re.sub("[\0\xfe\xff]", "", text)]


def _capture_time(camera: Mapping[int, Any]) -> datetime | None:
    texts = _texts(camera.get(ExifTags.Base.DateTimeOriginal, ""))
    match = next(filter(None, map(_TIME.match, texts)), None)
    time = match and _local_time(match)
    if match is None or time is None:
        return None
    offsets = [match[8] or "", *_texts(camera.get(ExifTags.Base.OffsetTimeOriginal, ""))]
    return time.replace(tzinfo=next(filter(None, map(_zone, offsets)), None))


def _local_time(match: re.Match[str]) -> datetime | None:
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if match[7] and hour <= 12:
        hour = hour % 12 + 12 * (match[7] in "pP")
    # Some cameras call midnight 24:00:00 of the day before; a leap second is the 60th.
    if (hour, minute, second) > (24, 0, 0) or minute > 59 or second > 60:
        return None
    try:
        return datetime(year, month, day) + timedelta(hours=hour, minutes=minute, seconds=second)
    except (ValueError, OverflowError):  # no such day, as in 0000:00:00
        return None


def _zone(text: str) -> timezone | None:
    """The offset from UTC that a text such as ``+02:00``, ``+0200``, ``+2`` or ``Z`` names."""
    if text.strip().upper() == "Z":
        return UTC
    match = _OFFSET.fullmatch(text.strip())
    if match is None:
        return None
    offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    if offset > _MOST_OFFSET:
        return None
    return timezone(-offset if match[1] == "-" else offset)


def _degrees(
    position: Mapping[int, Any], value: int, reference: int, letters: str, most: int
) -> float | None:
    """Signed degrees; None without a usable value or hemisphere.

    ``letters`` are those of the positive and the negative hemisphere.
    """
    numbers = _numbers(position.get(value))
    if not numbers or numbers[0] is None:
        return None
    # The camera may write degrees alone, and 0/0 for minutes and seconds that it does not use.
    degrees, minutes, seconds = (abs(number or 0.0) for number in [*numbers, None, None][:3])
    total = degrees + minutes / 60 + seconds / 3600
    hemisphere = _texts(position.get(reference, ""))[1].strip()[:1].upper()
    # Some programs write the sign in place of the hemisphere.
    if not hemisphere and numbers[0] < 0:
        hemisphere = letters[1]
    sign = {letters[0]: 1, letters[1]: -1}.get(hemisphere)
    if sign is None or total > most or max(minutes, seconds) > 60:
        return None
    # A tenth of a metre.
    return round(sign * total, 6)


def _numbers(value: object) -> list[float | None]:
    """The numbers of a value; None for one that is no finite number."""
    if isinstance(value, (str, bytes)):
        return [float(number) for number in _NUMBER.findall(_texts(value)[0])]
    parts = value if isinstance(value, Sequence) else [value]
    return [_finite(part) for part in parts]


def _finite(part: Any) -> float | None:
    with suppress(TypeError, ValueError, ZeroDivisionError):
        number = float(part)
        return number if abs(number) < float("inf") else None  # also None for NaN
    return None

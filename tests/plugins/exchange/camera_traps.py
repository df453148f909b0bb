"""Photos of two camera traps, for tests of what other software reads."""

from pathlib import Path
from typing import Any

from PIL import ExifTags, Image

from tests.server import garden

GPS = ExifTags.GPS
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


def save(path: Path, index: int, camera: Any = (), position: Any = ()) -> None:
    exif = Image.Exif()
    exif[ExifTags.IFD.Exif], exif[ExifTags.IFD.GPSInfo] = dict(camera), dict(position)
    image = Image.fromarray(garden.pixels(garden.COLOURS[index], side=64))
    image.save(path, exif=exif, quality=95)


def fill(root: Path) -> None:
    """Photos with time and place, with time, with neither, and of nothing."""
    for name in ("west", "east"):
        (root / name).mkdir()
    save(root / "west" / "a.jpg", 1, TIME | OFFSET, PLACE)
    save(root / "west" / "b.jpg", 5, TIME)
    save(root / "east" / "c.jpg", 7)
    (root / "east" / "d.jpg").write_bytes(garden.DULL)
    (root / "east" / "e.jpg").write_bytes(b"no picture")
    (root / "deployments.csv").write_text(DEPLOYMENTS)

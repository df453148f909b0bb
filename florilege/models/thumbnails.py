"""Reference pictures of classes: small JPEGs in one file of a run folder or a bundle."""

import io
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from florilege.cores import in_order
from florilege.errors import BundleError, DataError
from florilege.models.classes import ClassTable
from florilege.models.images import plain_jpeg
from florilege.progress import progress

SIDE: Final = 192  # maximum pixels of the longer side
QUALITY: Final = 60  # 6.4 KiB per photo at 192 pixels; 256 pixels at quality 80 take twice as much

_STORED: Final = zipfile.ZIP_STORED


def read_thumbnails(source: str, files: Mapping[str, Path]) -> dict[str, bytes]:
    """The thumbnails of picture files, by class id: upright JPEGs without metadata.

    Raises `DataError`, which lists all unusable files; ``source`` is the file that names them.
    """
    pictures: dict[str, bytes] = {}
    faults: list[str] = []
    results = in_order(jpeg_or_fault, files.values())
    with closing(results), progress(len(files), "thumbnails") as advance:
        for (class_id, path), picture in zip(files.items(), results, strict=True):
            if isinstance(picture, bytes):
                pictures[class_id] = picture
            else:
                faults.append(f"  {class_id}: {path}: {picture}")
            advance()
    if faults:
        raise DataError(
            f"{source}: {len(faults)} of {len(files)} thumbnails cannot be used; each must be the "
            "path of a picture relative to the folder of this file:\n" + "\n".join(faults)
        )
    return pictures


def jpeg_or_fault(path: Path, *, side: int = SIDE, quality: int = QUALITY) -> bytes | str:
    """An upright JPEG without metadata of a picture file, or what is wrong with it."""
    try:
        return plain_jpeg(path.read_bytes(), side=side, quality=quality)
    except (OSError, ValueError) as error:  # ValueError: no picture, or a null byte in the name
        return getattr(error, "strerror", None) or str(error)


def pack(classes: ClassTable, pictures: Mapping[str, bytes]) -> bytes:
    """The content of ``thumbnails.zip``: the pictures of the classes that have a `Thumbnail`.

    The zip names ``pictures``, given by class id, by position: ``0.jpg``. It is deterministic.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", _STORED) as archive:
        for position, item in enumerate(classes):
            if item.thumbnail is not None:
                archive.writestr(zipfile.ZipInfo(f"{position}.jpg"), pictures[item.id])
    return buffer.getvalue()


def unpack(classes: ClassTable, content: bytes) -> dict[str, bytes]:
    """The pictures of a ``thumbnails.zip`` by class id.

    Raises `BundleError` if it is damaged, or does not belong to these classes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # A compressed picture may be a bomb, and `pack` compresses none.
            if packed := [i.filename for i in archive.infolist() if i.compress_type != _STORED]:
                raise zipfile.BadZipFile(f"{packed[0]} is compressed")
            return {
                item.id: archive.read(f"{position}.jpg")
                for position, item in enumerate(classes)
                if item.thumbnail is not None
            }
    except (zipfile.BadZipFile, KeyError, EOFError, RuntimeError) as error:  # last: a password
        raise BundleError(f"thumbnails.zip is damaged: {error}") from error

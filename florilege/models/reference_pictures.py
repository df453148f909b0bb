"""Reference pictures of classes: a thumbnail of each, and several larger ones to compare with.

Thumbnails are in one file of a run folder or a bundle, and read at once; the others are in one file
of a bundle, and read one at a time.
"""

import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from florilege.errors import BundleError, DataError, first, reason_of
from florilege.files import open_stored, read_regular
from florilege.models.classes import ClassTable, Thumbnail
from florilege.models.images import MAX_BYTES, plain_jpeg
from florilege.terminal import with_bar

THUMBNAIL_SIDE: Final = 192  # maximum pixels of the longer side
# 6.4 KiB per photo at 192 pixels; 256 pixels at quality 80 take twice as much
_THUMBNAIL_QUALITY: Final = 60
MOST: Final = 6  # of a class
SIDE: Final = 480  # pixels of the longer side: hairs of a stem are seen, and a picture has 30 kB
QUALITY: Final = 70
MOST_BYTES: Final = 500_000_000  # of all: a bundle is read whole when it is opened
_INDEX: Final = "index.json"


def _jpegs(
    paths: Sequence[Path], activity: str, *, side: int, quality: int
) -> Iterator[bytes | str]:
    """For each picture file an upright JPEG without metadata, or what is wrong with it."""
    read = partial(_jpeg_or_fault, side=side, quality=quality)
    return with_bar(read, paths, activity)


def _jpeg_or_fault(path: Path, *, side: int, quality: int) -> bytes | str:
    try:
        return plain_jpeg(read_regular(path, most=MAX_BYTES), side=side, quality=quality)
    except (OSError, ValueError) as error:  # ValueError: no picture, or a null byte in the name
        return reason_of(error)


def read_thumbnails(source: str, files: Mapping[str, Path]) -> dict[str, bytes]:
    """The thumbnails of picture files, by class id: upright JPEGs without metadata.

    Raises `DataError`, which lists all unusable files; ``source`` is the file that names them.
    """
    size = {"side": THUMBNAIL_SIDE, "quality": _THUMBNAIL_QUALITY}
    jpegs = dict(zip(files, _jpegs([*files.values()], "thumbnails", **size), strict=True))
    thumbnails = {name: jpeg for name, jpeg in jpegs.items() if isinstance(jpeg, bytes)}
    if len(thumbnails) < len(files):
        faults = [
            f"  {name}: {files[name]}: {fault}"
            for name, fault in jpegs.items()
            if isinstance(fault, str)
        ]
        raise DataError(
            f"{source}: {len(faults)} of {len(files)} thumbnails cannot be used; each must be the "
            "path of a picture relative to the folder of this file:\n" + "\n".join(faults)
        )
    return thumbnails


def pack_thumbnails(classes: ClassTable, pictures: Mapping[str, bytes]) -> bytes:
    """The content of ``thumbnails.zip``: the pictures of the classes that have a `Thumbnail`.

    The zip names ``pictures``, given by class id, by position: ``0.jpg``. It is deterministic.

    Raises `BundleError` if the picture of a class is missing.
    """
    named = [item.id for item in classes if item.thumbnail is not None]
    if missing := [name for name in named if name not in pictures]:
        raise BundleError(f"classes.json names thumbnails that are missing: {first(missing)}")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for position, item in enumerate(classes):
            if item.thumbnail is not None:
                archive.writestr(zipfile.ZipInfo(f"{position}.jpg"), pictures[item.id])
    return buffer.getvalue()


def unpack_thumbnails(classes: ClassTable, content: bytes) -> dict[str, bytes]:
    """The pictures of a ``thumbnails.zip`` by class id.

    Raises `BundleError` if it is damaged, or does not belong to these classes.
    """
    try:
        with open_stored(io.BytesIO(content)) as archive:
            return {
                item.id: archive.read(f"{position}.jpg")
                for position, item in enumerate(classes)
                if item.thumbnail is not None
            }
    except (ValueError, KeyError) as error:
        raise BundleError(f"thumbnails.zip is damaged: {error}") from error


@dataclass(frozen=True)
class Credit:
    """What is known of a picture; None where unknown."""

    author: str | None = None
    licence: str | None = None
    organ: str | None = None  # such as flower or leaf


@dataclass(frozen=True, kw_only=True)
class PictureFile:
    """A picture that a table names."""

    path: Path
    credit: Credit

    @property
    def thumbnail(self) -> Thumbnail:
        """The credits of a thumbnail that is made of it."""
        return Thumbnail(author=self.credit.author, licence=self.credit.licence)


def in_turn(pictures: Sequence[PictureFile]) -> list[PictureFile]:
    """The pictures of a class, one of each organ in turn, else in the order of the table."""
    by_organ = dict[str | None, list[PictureFile]]()
    for picture in pictures:
        by_organ.setdefault(picture.credit.organ, []).append(picture)
    ranked = ((turn, picture) for row in by_organ.values() for turn, picture in enumerate(row))
    return [picture for _, picture in sorted(ranked, key=lambda pair: pair[0])]


def pack_pictures(source: str, by_class: Mapping[int, Sequence[PictureFile]]) -> bytes:
    """The file of a bundle with the pictures of each class, by its index.

    Raises:
        DataError: Pictures cannot be read, or are too large together; the message, which names
            ``source``, lists them.
    """
    buffer, faults, index = io.BytesIO(), list[str](), dict[int, list[dict[str, str | None]]]()
    files = [(position, picture) for position, row in by_class.items() for picture in row]
    paths = [picture.path for _, picture in files]
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        jpegs = _jpegs(paths, "pictures", side=SIDE, quality=QUALITY)
        for (position, picture), jpeg in zip(files, jpegs, strict=True):
            if isinstance(jpeg, bytes):
                row = index.setdefault(position, [])
                archive.writestr(zipfile.ZipInfo(_name(position, len(row))), jpeg)
                row.append(asdict(picture.credit))
            else:
                faults.append(f"{picture.path}: {jpeg}")
        archive.writestr(zipfile.ZipInfo(_INDEX), json.dumps(index, ensure_ascii=False))
    if faults:
        raise DataError(
            f"{source}: {len(faults)} of {len(files)} pictures cannot be used; paths are relative "
            f"to the folder of this file: {first(faults)}"
        )
    if buffer.tell() > MOST_BYTES:
        raise DataError(
            f"{source}: the pictures have {buffer.tell() / 1e6:.0f} MB together, more than a "
            f"bundle takes ({MOST_BYTES / 1e6:.0f} MB): choose fewer of each class with --most"
        )
    return buffer.getvalue()


class ReferencePictures:
    """The pictures of a bundle, read from its file when somebody looks at one; None for no file.

    The file stays open: a bundle that is replaced meanwhile keeps its own pictures.

    Raises:
        BundleError: The file is damaged, or does not belong to these classes.
    """

    def __init__(self, classes: ClassTable, file: Path | None) -> None:
        self._classes, self._lock = classes, threading.Lock()
        self._credits = dict[str, list[Credit]]()
        if file is None:
            return
        try:
            self._archive = open_stored(file)
            index = dict(json.loads(self._archive.read(_INDEX)))
            for position, row in index.items():
                self._credits[classes[int(position)].id] = [Credit(**credit) for credit in row]
            _check(self._archive, {int(position): len(row) for position, row in index.items()})
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise BundleError(
                f"{file} is damaged ({error}): run `florilege bundle set-thumbnails` again"
            ) from error

    def credits(self, class_id: str) -> Sequence[Credit]:
        """What is known of each picture of a class; empty if it has none."""
        return self._credits.get(class_id, ())

    def read(self, class_id: str, number: int) -> bytes:
        """The JPEG of a picture, counted from 0. ``number`` must be one of its `credits`."""
        with self._lock:  # a file has one position
            return self._archive.read(_name(self._classes.index_of[class_id], number))


def _name(position: int, number: int) -> str:
    return f"{position}/{number}.jpg"


def _check(archive: zipfile.ZipFile, counts: Mapping[int, int]) -> None:
    """Raise `ValueError` if a picture is missing."""
    names = {_name(position, number) for position, n in counts.items() for number in range(n)}
    if missing := names.difference(archive.namelist()):
        raise ValueError(f"it lacks {min(missing)}")

"""Pictures of classes to compare a photo with: several of each, in one file of a bundle.

They are larger than thumbnails, and read one at a time.
"""

import io
import json
import threading
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from florilege.cores import in_order
from florilege.errors import BundleError, DataError, first
from florilege.models.classes import ClassTable, Thumbnail
from florilege.models.thumbnails import jpeg_or_fault
from florilege.progress import progress

MOST: Final = 6  # of a class
SIDE: Final = 480  # pixels of the longer side: hairs of a stem are seen, and a picture has 30 kB
QUALITY: Final = 70
MOST_BYTES: Final = 500_000_000  # of all: a bundle is read whole when it is opened
_INDEX: Final = "index.json"


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
    read = partial(jpeg_or_fault, side=SIDE, quality=QUALITY)
    results = in_order(read, [picture.path for _, picture in files])
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive,
        closing(results),
        progress(len(files), "pictures") as advance,
    ):
        for (position, picture), content in zip(files, results, strict=True):
            if isinstance(content, bytes):
                row = index.setdefault(position, [])
                archive.writestr(zipfile.ZipInfo(f"{position}/{len(row)}.jpg"), content)
                row.append(asdict(picture.credit))
            else:
                faults.append(f"{picture.path}: {content}")
            advance()
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
            self._archive = zipfile.ZipFile(file)
            index = dict(json.loads(self._archive.read(_INDEX)))
            for position, row in index.items():
                self._credits[classes[int(position)].id] = [Credit(**credit) for credit in row]
            _check(self._archive, {int(position): len(row) for position, row in index.items()})
        except (zipfile.BadZipFile, ValueError, TypeError, KeyError, IndexError) as error:
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
    """Raise `BadZipFile` if a picture is missing, or compressed: it may be a bomb."""
    names = {_name(position, number) for position, n in counts.items() for number in range(n)}
    if missing := names.difference(archive.namelist()):
        raise zipfile.BadZipFile(f"it lacks {min(missing)}")
    if any(info.compress_type for info in archive.infolist()):
        raise zipfile.BadZipFile("it is compressed")

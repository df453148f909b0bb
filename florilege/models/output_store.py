"""Outputs of networks by photo, on disk: computed once, read by every command that needs them.

Each network has a folder. Its file ``photos.index`` holds a record for each photo, and a file for
each output, such as ``features.f32``, a row of float32 for each photo. Files only grow, the rows
first: an interruption loses only the rows being written. A record has a checksum of its rows.
"""

import fcntl
import hashlib
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from florilege.errors import installed, way_out
from florilege.files import check_writable
from florilege.models.bundle import MODEL
from florilege.models.images import DECODER_VERSION
from florilege.models.runtime import OPENVINO, WHEELS
from florilege.models.session import FEATURES, Session
from florilege.terminal import warn

Floats = npt.NDArray[np.float32]
_PHOTO_BYTES: Final = 32  # SHA-256 of the bytes of a photo
_RECORD_BYTES: Final = _PHOTO_BYTES + 4
MOST_BYTES: Final = 8 * 2**30  # of all networks together: 800,000 photos with 1,081 classes
_RECORDS: Final = "photos.index"


def photo_id(content: bytes) -> bytes:
    """A hash of a photo's bytes, so that its outputs outlast its name, label and split."""
    return hashlib.sha256(content).digest()


class OutputStore:
    """Outputs of one network for the photos it has seen. Threads and processes may share it.

    Args:
        folder: The folder of the network. It is made when the first rows are added.
        widths: How many numbers each output has for a photo, by name.
    """

    def __init__(self, folder: Path, widths: Mapping[str, int]) -> None:
        self.folder, self._widths = folder, widths
        self._row_of, self._checksums = dict[bytes, int](), list[int]()
        self._records = folder / _RECORDS
        self._read_records()

    @classmethod
    def of_features(cls, folder: Path) -> "OutputStore":
        """A store of features alone, such as a training writes; ValueError if there is none."""
        try:
            records = (folder / _RECORDS).stat().st_size // _RECORD_BYTES
            numbers = (folder / f"{FEATURES}.f32").stat().st_size // 4
        except OSError as error:
            raise ValueError("holds no features") from error
        if not records or numbers % records:
            raise ValueError("the last training was interrupted: repeat it first")
        return cls(folder, {FEATURES: numbers // records})

    def __len__(self) -> int:
        return len(self._checksums)

    def __contains__(self, photo: bytes) -> bool:
        return photo in self._row_of

    def missing(self, photos: Iterable[bytes]) -> list[bytes]:
        """Those of the photos that are not stored, in their order."""
        return [photo for photo in photos if photo not in self._row_of]

    def rows_of(self, photos: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """The row of each photo in :meth:`values`; KeyError if one is not stored."""
        return np.array([self._row_of[photo] for photo in photos], dtype=np.int64)

    def values(self, name: str) -> Floats:
        """All rows of an output, ``(photos, width)``, memory-mapped and not checked."""
        shape = (len(self), self._widths[name])
        if not len(self):
            return np.empty(shape, dtype=np.float32)
        return np.memmap(self._file(name), dtype="<f4", mode="r", shape=shape)

    def find(self, photo: bytes) -> dict[str, Floats] | None:
        """The outputs of a photo, each ``(1, width)``; None if they are not here or damaged."""
        row = self._row_of.get(photo)
        if row is None:
            return None
        try:
            outputs = {
                name: np.fromfile(self._file(name), "<f4", width, offset=4 * width * row)
                for name, width in self._widths.items()
            }
        except OSError:
            return None
        if _checksum(outputs.values()) != self._checksums[row]:
            return None
        return {name: values[np.newaxis] for name, values in outputs.items()}

    def add(self, photos: Sequence[bytes], outputs: Mapping[str, Floats]) -> None:
        """Store the outputs of new photos, each ``(photos, width)``.

        Raises:
            OSError: They cannot be written, as on a full disk; earlier ones stay.
        """
        rows = {
            name: np.ascontiguousarray(outputs[name], dtype="<f4").reshape(len(photos), width)
            for name, width in self._widths.items()
        }
        checksums = [_checksum(of_photo) for of_photo in zip(*rows.values(), strict=True)]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._records.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # waits for another process that adds rows
            self._read_records()  # those that other processes have added
            first = len(self)
            for name, width in self._widths.items():
                _write_at(self._file(name), 4 * width * first, rows[name].tobytes())
            records = [
                photo + checksum.to_bytes(4, "little")
                for photo, checksum in zip(photos, checksums, strict=True)
            ]
            _write_at(self._records, _RECORD_BYTES * first, b"".join(records))
            # Before the lock is given back and another thread adds its own.
            self._register(photos, checksums)

    def _read_records(self) -> None:
        """Take up the records that were added since; half written rows are ignored."""
        try:
            content = self._records.read_bytes()
            sizes = {name: self._file(name).stat().st_size for name in self._widths}
        except OSError:
            return
        complete = [size // (4 * self._widths[name]) for name, size in sizes.items()]
        rows = min(len(content) // _RECORD_BYTES, *complete)
        starts = range(len(self) * _RECORD_BYTES, rows * _RECORD_BYTES, _RECORD_BYTES)
        records = [content[start : start + _RECORD_BYTES] for start in starts]
        self._register(
            [record[:_PHOTO_BYTES] for record in records],
            [int.from_bytes(record[_PHOTO_BYTES:], "little") for record in records],
        )

    def _register(self, photos: Sequence[bytes], checksums: Sequence[int]) -> None:
        first = len(self)
        self._checksums.extend(checksums)
        # A later row of the same photo wins: it replaces one that was damaged.
        self._row_of.update({photo: first + index for index, photo in enumerate(photos)})

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.f32"

    @classmethod
    def of_network(cls, session: Session, root: Path, photos: int) -> "OutputStore | None":
        """The store of a bundle's network below ``root``, or None where it cannot be used.

        That is where the photos do not fit, or the folder belongs to somebody else: it costs only
        time.

        The folder's name is a hash of all that the outputs depend on: the graph, the preprocessing,
        the version of the decoder, and what runs the graph. The stores that were used longest ago
        are deleted to keep all below :data:`MOST_BYTES`.
        """
        widths = dict.fromkeys(session.heads, len(session.bundle.classes))
        if session.dimensions is not None:
            widths[FEATURES] = session.dimensions
        bundle, runtime = session.bundle, session.runtime
        versions = [f"{name} {installed(name)}" for name in (*WHEELS, OPENVINO)]
        parts = (
            bundle.manifest.files[MODEL],
            bundle.preprocess.to_json(),
            f"decoder {DECODER_VERSION}",
            *(runtime.name, runtime.precision, session.provider),
            *versions,
            *widths,
        )
        folder = root / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
        store = cls(folder, widths)
        needed = photos * (_RECORD_BYTES + 4 * sum(widths.values()))
        try:
            return store if _make_room(root, folder, needed) else None
        except OSError:  # no permission, or another process deletes a store at this moment
            return None


def cache_folder(option: str | None) -> Path | None:
    """The folder that an option ``--output-cache`` means; None for ``none``.

    Without the option it is in the user's folder of caches, which anybody may empty; a user without
    a home, as in a container, has none. A folder that is asked for and cannot be written is worth a
    warning; the command does without.
    """
    if option == "none":
        return None
    if option is not None:
        folder = Path(option)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_writable(folder / _RECORDS)
        except OSError as error:
            warn(f"--output-cache {folder} keeps nothing: {error.strerror}{way_out(error)}")
        return folder
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(caches) / "florilege" / "outputs"


def _make_room(root: Path, folder: Path, needed: int) -> bool:
    """Delete the stores used longest ago until ``needed`` bytes fit beside the others."""
    if needed > MOST_BYTES:
        return False
    if folder.is_dir():
        os.utime(folder)  # in use now
    others = [path for path in _folders(root) if path != folder]
    others.sort(key=lambda path: path.stat().st_mtime)
    sizes = {path: _size(path) for path in others}
    while sizes and needed + sum(sizes.values()) > MOST_BYTES:
        oldest = next(iter(sizes))
        shutil.rmtree(oldest, ignore_errors=True)
        del sizes[oldest]
    return True


def _folders(root: Path) -> list[Path]:
    """The folders below ``root`` that are stores; nothing else is ever deleted."""
    if not root.is_dir():
        return []
    return [path for path in root.iterdir() if (path / _RECORDS).is_file()]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _checksum(outputs: Iterable[Floats]) -> int:
    """That of the outputs of a photo, each ``(width,)``."""
    return zlib.crc32(b"".join(values.tobytes() for values in outputs))


def _write_at(path: Path, start: int, content: bytes) -> None:
    """Write from byte ``start`` on, over anything that an interruption left there."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(start)
        file.seek(start)
        file.write(content)

"""Read files that are packed: a zip, a gz, a folder, or one file alone.

There is a limit to what they unpack to.
"""

import gzip
import io
import posixpath
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

Stream: TypeAlias = "io.BufferedReader[Any]"
# Text packs 5 to 30 times.
_MOST_UNPACKED: Final = 200  # times its size
_ALWAYS_UNPACKED: Final = 100_000_000  # bytes
_MOST_FILES: Final = 100_000


@dataclass(frozen=True)
class PackedFiles:
    """Files by their names, whatever holds them."""

    names: Sequence[str]
    open: Callable[[str], Stream]
    alone: bool = False  # a file that a person named, so it is the table whatever its ending


def open_packed(path: Path, stack: ExitStack) -> PackedFiles:
    """Open the files of ``path``, which ``stack`` closes.

    Raises `OSError` for an unreadable file and ``zipfile.BadZipFile`` for a damaged zip. Opening or
    reading a file raises `ValueError` if it has a password or unpacks to far more than its size.
    """
    if path.is_dir():
        files = islice((file for file in path.rglob("*") if file.is_file()), _MOST_FILES)
        names = _visible(file.relative_to(path).as_posix() for file in files)
        return PackedFiles(names, lambda name: stack.enter_context((path / name).open("rb")))
    if zipfile.is_zipfile(path):
        archive = stack.enter_context(zipfile.ZipFile(path))
        names = _visible(member.filename for member in archive.infolist() if not member.is_dir())
        return PackedFiles(names, lambda name: stack.enter_context(_open_entry(archive, name)))
    file = stack.enter_context(path.open("rb"))
    start = file.read(4)
    if start == b"PK\x03\x04":
        raise zipfile.BadZipFile("it has no end: download it again")
    if not start.startswith(b"\x1f\x8b"):
        file.seek(0)
        return PackedFiles([path.name], lambda _: file, alone=True)
    file.seek(0)
    unpacked = stack.enter_context(gzip.GzipFile(fileobj=file))
    bounded: Stream = io.BufferedReader(_Bounded(unpacked, path.stat().st_size))
    return PackedFiles([path.name], lambda _: bounded, alone=True)


def _visible(names: Iterator[str]) -> list[str]:
    """The names without what a Mac adds."""
    return [
        name
        for name in names
        if not name.startswith("__MACOSX/") and not posixpath.basename(name).startswith(".")
    ]


def _open_entry(archive: zipfile.ZipFile, name: str) -> Stream:
    try:
        file, size = archive.open(name), archive.getinfo(name).compress_size
    except (NotImplementedError, RuntimeError) as error:  # such as a password
        raise ValueError(str(error)) from error
    return io.BufferedReader(_Bounded(file, size))


class _Bounded(io.RawIOBase):
    """The bytes of a packed file; refuses one that unpacks to far more than a table would."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, packed_bytes: int) -> None:
        self._file = file
        self._left = max(_ALWAYS_UNPACKED, _MOST_UNPACKED * packed_bytes)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {_MOST_UNPACKED} times its size")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()

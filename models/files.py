"""Writing files so that a crash or a full disk leaves the old content or the new one; numbered
files of bounded size."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DIGITS = 6
"""Of the numbers in the names of rotating files."""


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Write ``content`` to ``path``: all of it or, on any failure, nothing.

    Raises:
        OSError: The disk is full or the folder cannot be written; it names ``path``, which is
            untouched.
    """
    with _naming(path):
        _write(path, content)
    with suppress(OSError):  # the file stands already
        sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Do what `write_atomic` begins with, so that a bad path is heard of before long work.

    Raises:
        OSError: The folder cannot be written, or does not exist; or the name is too long.
    """
    with _naming(path), tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
        pass


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors name ``path``, not the hidden file beside it."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _write(path: Path, content: bytes | memoryview) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def files_beside(folder: Path) -> Iterator[Path]:
    """A hidden folder to write files into that move to ``folder`` where the block ends well.

    Raises:
        OSError: The disk is full or ``folder`` cannot be written; its files are untouched.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as beside:
        yield Path(beside)
        for file in sorted(Path(beside).iterdir()):
            file.replace(folder / file.name)


def sync_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class RotatingFiles:
    """Numbered files of bounded size in one folder: ``scores-000001.log``, ``scores-000002.log``.

    Several processes may begin files in one folder; none gets another's.

    Args:
        folder: Where they are.
        name: With a star in place of the number: ``scores-*.log``.
        max_bytes: A file that has reached this is full; whoever writes begins the next.
        max_files: So many are kept.

    Raises:
        ValueError: A limit below 1.
    """

    def __init__(self, folder: str | Path, name: str, *, max_bytes: int, max_files: int) -> None:
        if max_bytes < 1 or max_files < 1:
            raise ValueError(
                f"max_bytes and max_files must be at least 1, got {max_bytes} and {max_files}"
            )
        self.folder, self.name = Path(folder), name
        self.max_bytes, self.max_files = max_bytes, max_files

    def begin(self) -> Path:
        """Make the next file, for its owner alone, and delete the oldest where there are enough.

        Raises:
            OSError: The folder, which is made where it is not there, or the file cannot be made.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        existing = numbered_files(self.folder, self.name)
        for path in existing[: max(0, len(existing) + 1 - self.max_files)]:
            path.unlink(missing_ok=True)
        number = int(existing[-1].stem[-DIGITS:]) + 1 if existing else 1
        while True:
            path = self.folder / self.name.replace("*", f"{number:0{DIGITS}}")
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:  # another process took the number
                number += 1
            else:
                return path


def numbered_files(folder: str | Path, name: str) -> list[Path]:
    """The files of this name in a folder, the oldest first; a star stands for the number."""
    return sorted(Path(folder).glob(name.replace("*", "[0-9]" * DIGITS)))

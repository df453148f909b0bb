"""Writing files so that a crash or a full disk leaves the old content or the new one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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

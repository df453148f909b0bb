"""Write files so that a crash or a full disk leaves either the old or the new content."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, TextIO

from florilege.errors import UsageError

LOCK: Final = ".lock"


def write_atomic(path: Path, content: bytes | memoryview, *, mode: int = 0o644) -> None:
    """Write ``content`` to ``path``: all of it or, on any failure, nothing.

    ``mode`` are the permissions of the file, by default that everybody may read it.

    Raises:
        OSError: The disk is full or the folder cannot be written; the error names ``path``.
    """
    with _naming(path), atomic_writer(path, mode=mode) as file:
        file.write(content)
    with suppress(OSError):  # the file is in place already
        sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Raise ``OSError`` before long work if `write_atomic` cannot write ``path``."""
    with _naming(path), tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
        pass


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make errors name ``path`` instead of the hidden file beside it."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def atomic_writer(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file to write, which replaces ``path`` if the block ends without an error."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the renames inside ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes while the block runs.

    The lock is on the file ``.lock`` in the folder, which names this process. It ends with this
    process, however that happens. Child processes do not share it, and a file left by a killed
    process locks nothing. See `lock_file`.

    Raises:
        UsageError: Another process holds the lock.
        OSError: The lock file cannot be written.
    """
    path = folder / LOCK
    with _locked(path) as handle:
        try:
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def new_folder_lock(folder: Path, failure: str, advice: str = "") -> Iterator[None]:
    """Create a folder if missing, and lock it like `folder_lock`.

    Raises:
        UsageError: Another process holds the lock, or the folder cannot be created or written:
            ``failure``, the reason and ``advice``.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder_lock(folder))
        except OSError as error:
            raise UsageError(f"{failure}: {error.strerror}{advice}") from error
        yield


def lock_file(file: IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process has locked it.

    On a file system without locks, the result is always True.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (EACCES, EAGAIN)
    return True


def _locked(path: Path) -> TextIO:
    while True:
        handle = path.open("a+")
        if not lock_file(handle):
            with handle:
                handle.seek(0)
                process_id = handle.read() or "just started"
            raise UsageError(
                f"another process ({process_id}) is writing to {path.parent}: wait until it ends, "
                "or choose another folder"
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        handle.close()  # another process has removed this file meanwhile: open the current one

"""One process at a time writes into a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Final, TextIO

from models.errors import UsageError

LOCK: Final = ".lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder while the block runs.

    The lock is on the file ``.lock`` inside, which names this process. It belongs to this process
    alone and ends with it however that ends: those that it starts have no part in it, and a file
    that a killed one left is no lock. On a disk without locks nobody is kept out.

    Raises:
        UsageError: Another process holds the folder.
        OSError: The file cannot be written.
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


def _locked(path: Path) -> TextIO:
    """The file, opened and locked."""
    while True:
        handle = path.open("a+")
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EACCES, EAGAIN):
                raise UsageError(_refusal(handle, path.parent)) from error
            return handle  # a disk without locks
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        handle.close()  # removed by its holder after it was opened here: take the one there is now


def _refusal(handle: TextIO, folder: Path) -> str:
    with handle:
        handle.seek(0)
        number = handle.read()
    return (
        f"another process ({number or 'just started'}) writes into {folder}: wait until it has "
        "ended, or name another folder"
    )

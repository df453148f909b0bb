"""Folders and files to write to, checked before anything takes time."""

import os
from pathlib import Path

from models.errors import UsageError
from models.files import check_writable


def writable_folder(folder: Path, flag: str) -> Path:
    """The folder, made where it is not there; only its owner may read a new one.

    Args:
        folder: To be written to.
        flag: Named where it cannot be.

    Raises:
        UsageError: It cannot be made or written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag}: {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{flag}: {folder} cannot be written by this user")
    return folder


def writable_file(path: Path, flag: str) -> Path:
    """The path of a file to be written, which may stand there already.

    Args:
        path: In a folder that exists.
        flag: Named where it cannot be written.

    Raises:
        UsageError: It is a folder or a device, or its folder cannot be written.
    """
    try:
        check_writable(path)
        if path.is_dir():
            raise UsageError(f"{flag} {path} is a folder; name a file")
        if path.exists() and not path.is_file():  # such as /dev/null, to be replaced by a file
            raise UsageError(f"{flag} {path} is no regular file; name another")
    except OSError as error:
        raise UsageError(
            f"{flag} {path} cannot be written: {error.strerror}; choose another path"
        ) from error
    return path

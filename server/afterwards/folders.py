"""Folders a server writes to, checked before it starts."""

import os
from pathlib import Path

from models.errors import UsageError


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

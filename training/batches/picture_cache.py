"""Decoded training pictures on disk, shared by runs and processes.

The file of a picture is named by the hash of its photo, so that any data set, split or order finds
it, and a changed photo does not. A cached picture equals the decoded one bit for bit.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL

from florilege.errors import UsageError
from florilege.files import atomic_writer

TAG: Final = "CACHEDIR.TAG"
_SIGNATURE: Final = "Signature: 8a477f597d28d172789f06886806bc55"  # bford.info/cachedir
_TEXT: Final = f"{_SIGNATURE}\n# Pictures of `florilege train`; remove the folder at any time.\n"
_FREE_SHARE: Final = 0.1  # of a disk that stays free


class PictureCache:
    """The pictures of a folder, not shrunk below a short side of ``side`` pixels.

    Raises:
        UsageError: The folder holds other files or cannot be written.
    """

    def __init__(self, folder: Path, side: int) -> None:
        self._root = folder
        self._folder = folder / f"{side}px-pillow-{PIL.__version__}"
        advice = "give picture_cache a folder of its own"
        try:
            if folder.is_dir() and any(folder.iterdir()) and not (folder / TAG).is_file():
                raise UsageError(f"{folder} holds files other than decoded pictures; {advice}")
            self._folder.mkdir(parents=True, exist_ok=True)
            (folder / TAG).write_text(_TEXT)
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror or error}; {advice}") from error

    @property
    def has_room(self) -> bool:
        """Whether more than a tenth of the disk is free."""
        disk = shutil.disk_usage(self._root)
        return disk.free > _FREE_SHARE * disk.total

    def read(self, photo: bytes, decode: Callable[[], Any]) -> Any:
        """The picture of a photo by its `photo_hash`; the result of ``decode`` if it is missing.

        Text, which says why a photo cannot be read, is not cached.
        """
        path = self._folder / photo.hex()[:2] / f"{photo.hex()}.npy"
        try:
            return np.load(path)
        except (OSError, EOFError, ValueError):  # missing or cut off
            picture = decode()
        if not isinstance(picture, str) and self.has_room:
            with suppress(OSError):  # the disk is full: it is decoded again next time
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_writer(path) as file:
                    np.save(file, picture)
        return picture

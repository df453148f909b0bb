"""Photos that people allow to be kept with their feedback: a plain JPEG of each, on disk.

The photos of the last answers are held in memory, up to a number of bytes, since consent comes
after the answer. Without it nothing is written, and one that is taken back deletes what was.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from florilege.files import sync_folder
from florilege.models.images import MAX_PIXELS, ImageError, plain_jpeg, read_header
from florilege.server.inference.decoding_budget import PixelBudget, pixels_to_hold
from florilege.server.prometheus import Metrics

FOLDER = "photos"
SIDE = 2048  # pixels of the longer side at most: more than any network of ours looks at
QUALITY = 90


class FeedbackPhotos:
    """Holds photos under the names of their answers, and keeps those it is told to.

    Any thread may call `remember`, one at a time the others. ``folder`` exists.
    """

    def __init__(
        self,
        folder: Path,
        metrics: Metrics,
        *,
        held_bytes: int,
        max_bytes: int,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.folder = folder
        self.held_bytes, self.max_bytes, self.max_pixels = held_bytes, max_bytes, max_pixels
        self._counted = metrics.feedback_photos
        self._held = OrderedDict[str, Sequence[bytes]]()
        self._holding = 0  # bytes
        self._lock = threading.Lock()
        self._kept: dict[str, list[Path]] = {}  # of this process; no longer than the disk allows
        self._used = sum(path.stat().st_size for path in folder.iterdir())

    def remember(self, name: str, photos: Sequence[bytes]) -> None:
        """Hold the photos of an answer, and forget the oldest where there are too many bytes."""
        size = _size(photos)
        if size > self.held_bytes:
            return
        with self._lock:
            self._held[name] = photos
            self._holding += size
            while self._holding > self.held_bytes:
                self._holding -= _size(self._held.popitem(last=False)[1])

    def keep(self, name: str, budget: PixelBudget) -> list[str]:
        """Write the photos of an answer, unless they are there already.

        Returns:
            Their paths from the folder of the store; none where they are no longer in memory, or
            the disk holds as much as it may.

        Raises:
            OSError: They could not be written; none of them is there.
        """
        if name not in self._kept:
            with self._lock:
                photos = self._held.get(name, ())
            outcome = self._write(name, photos, budget) if photos else "forgotten"
            self._counted.labels(outcome).inc()
        return [f"{FOLDER}/{path.name}" for path in self._kept.get(name, ())]

    def drop(self, name: str) -> None:
        """Delete the photos of an answer where they were written.

        Raises:
            OSError: They could not be deleted.
        """
        if name not in self._kept:
            return
        for path in self._kept[name]:
            self._delete(path)
        del self._kept[name]
        self._counted.labels("withdrawn").inc()

    def _write(self, name: str, photos: Sequence[bytes], budget: PixelBudget) -> str:
        """Write all photos of an answer, or none; says what became of them."""
        try:
            contents = [self._plain(photo, budget) for photo in photos]
        except ImageError:  # decoded for the answer, but perhaps at a fraction of its size
            return "unreadable"
        if self._used + _size(contents) > self.max_bytes:
            return "full"
        paths = [self.folder / f"{name}-{number}.jpg" for number in range(1, len(contents) + 1)]
        try:
            for path, content in zip(paths, contents, strict=True):
                self._used += len(content)
                _write(path, content)
            sync_folder(self.folder)
        except OSError:
            for path in paths:
                with suppress(OSError):
                    self._delete(path)
            raise
        self._kept[name] = paths
        return "kept"

    def _plain(self, photo: bytes, budget: PixelBudget) -> bytes:
        header, most = read_header(photo), self.max_pixels
        with budget.hold(pixels_to_hold(header, least=2 * SIDE, max_pixels=most)):
            return plain_jpeg(header, side=SIDE, quality=QUALITY, max_pixels=most)

    def _delete(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            size = path.stat().st_size
            path.unlink()
            self._used -= size


def _write(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)


def _size(photos: Sequence[bytes]) -> int:
    return sum(map(len, photos))

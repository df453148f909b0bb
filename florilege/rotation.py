"""Numbered files of bounded size in one folder, the oldest deleted."""

import os
from pathlib import Path

DIGITS = 6
"""How many digits the numbers in the names have."""


class RotatingFiles:
    """Files such as ``scores-000001.log`` in ``folder``, for the ``name`` ``scores-*.log``.

    A file that has reached ``max_bytes`` is full, and its writer begins the next; ``max_files`` are
    kept. Several processes may begin files in one folder, and none gets another's.

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
        """Make the next file, readable by its owner alone, and delete the oldest beyond the limit.

        Raises:
            OSError: The folder, which is created if missing, or the file cannot be made.
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
    """The files of this name in a folder, oldest first; a star stands for the number."""
    return sorted(Path(folder).glob(name.replace("*", "[0-9]" * DIGITS)))

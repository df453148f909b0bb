"""The folder of a run: its files and its lock."""

import json
from contextlib import AbstractContextManager
from pathlib import Path

from florilege.errors import BundleError, DataError, UsageError
from florilege.files import LOCK, new_folder_lock, write_atomic
from florilege.models.backbones import RECORD, Provenance
from florilege.models.classes import ClassTable
from florilege.models.photo_hashes import PHOTOS
from florilege.training.config import MAY_CHANGE, TrainConfig
from florilege.training.configuration import from_plain, read_yaml, to_yaml


class RunFolder:
    """The files of a run by name; the folder need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.classes = path / "classes.json"
        self.thumbnails = path / "thumbnails.zip"
        self.photos = path / PHOTOS
        self.doubtful = path / "doubtful.csv"
        self.weights = path / RECORD
        self.last = path / "last.pt"
        self.best = path / "best.safetensors"
        self.metrics = path / "metrics.csv"
        self.events = path / "events"
        self.report = path / "report.html"
        self.lock = path / LOCK

    def check_free(self) -> None:
        """Raise a ``UsageError`` if the folder is not empty or cannot be read."""
        try:
            empty = not self.path.exists() or set(self.path.iterdir()) <= {self.lock}
        except OSError as error:
            raise UsageError(f"cannot use {self.path} as run folder: {error.strerror}") from error
        if not empty:
            raise UsageError(
                f"{self.path} is not empty: add --resume to continue the run in it, or choose "
                "another --out"
            )

    def check_resumable(self, config: TrainConfig, classes: ClassTable) -> None:
        """Refuse to resume with other settings or classes than the run started with.

        Raises:
            UsageError: Settings differ; the message names them and those that may change.
            DataError: The classes or their training pictures are no longer the same.
            BundleError: The settings of the run cannot be read.
        """
        old, new = self.read_config().to_plain(), config.to_plain()
        changed = [key for key in old if old[key] != new[key] and key not in MAY_CHANGE]
        if changed:
            differences = "; ".join(f"{key} was {old[key]!r}, now {new[key]!r}" for key in changed)
            raise UsageError(
                f"a resumed run keeps its settings, but {differences}. Leave that out, or train "
                f"into another --out. These may change: {', '.join(MAY_CHANGE)}"
            )
        before, now = (
            [(item.id, item.training_count) for item in table]
            for table in (self.read_classes(), classes)
        )
        if before != now:
            raise DataError(
                f"{config.data} has changed since the run started: other classes or another number "
                "of training pictures. Restore it, or train into another --out"
            )

    def locked(self) -> AbstractContextManager[None]:
        """Create the folder and lock it while a block runs; errors as in `new_folder_lock`."""
        return new_folder_lock(self.path, f"cannot create {self.path}")

    def write_settings(
        self, config: TrainConfig, classes: ClassTable, thumbnails: bytes | None = None
    ) -> None:
        """Write the classes and then ``config.yaml``, which marks the folder as a run.

        ``thumbnails`` is the result of `pack_thumbnails`, if a class has one.
        """
        write(self.classes, classes.to_json().encode())
        if thumbnails is not None:
            write(self.thumbnails, thumbnails)
        write(self.config, to_yaml(config).encode())

    def read_provenance(self) -> Provenance | None:
        """The weights the run started from; None if random or not recorded by an older version."""
        try:
            return Provenance(**json.loads(self.weights.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise BundleError(f"cannot read {self.weights}: {error}") from error

    def read_config(self) -> TrainConfig:
        """The settings of the run; a ``BundleError`` if they are missing or damaged."""
        if not self.config.is_file():
            raise BundleError(f"{self.path} is not a run folder: it has no config.yaml")
        try:
            return from_plain(read_yaml(self.config))
        except UsageError as error:
            raise BundleError(f"{self.config} is damaged: {error}") from error

    def read_classes(self) -> ClassTable:
        """The classes of the run; a ``BundleError`` if they cannot be read."""
        try:
            return ClassTable.from_json(self.classes.read_bytes())
        except OSError as error:
            raise BundleError(f"cannot read {self.classes}: {error.strerror}") from error


def write(path: Path, content: bytes | memoryview) -> None:
    """Write a file of the run folder atomically; a ``BundleError`` if the disk is full."""
    try:
        write_atomic(path, content)
    except OSError as error:
        raise BundleError(
            f"cannot write {path}: {error.strerror or error}. Everything up to the last checkpoint "
            "is safe: make room and continue with --resume"
        ) from error

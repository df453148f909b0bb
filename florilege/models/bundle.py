"""The bundle: a folder with one network and everything needed to answer with it.

``bundle.json`` names every file with its hash, so it alone identifies the bundle.
``models/staging.py`` replaces its files atomically.
"""

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from florilege.errors import BundleError, DataError
from florilege.files import folder_lock
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import Preprocess
from florilege.models.reference_pictures import (
    PictureFile,
    ReferencePictures,
    in_turn,
    pack_pictures,
    pack_thumbnails,
    read_thumbnails,
    unpack_thumbnails,
)
from florilege.models.staging import MANIFEST as MANIFEST
from florilege.models.staging import SCHEMA_VERSION, Files, Manifest, read_json
from florilege.models.staging import BundleFolder as BundleFolder
from florilege.models.staging import sha256_of as sha256_of

MODEL: Final = "model.onnx"
CLASSES: Final = "classes.json"
PREPROCESS: Final = "preprocess.json"
CALIBRATION: Final = "calibration.json"
REFERENCE: Final = "reference.npy"  # for features, if the calibration needs a reference
OCCURRENCES: Final = "occurrences.npy"  # by region and month, if the calibration has them
OPENVINO_CALIBRATION: Final = "calibration-openvino.json"  # with it, OpenVINO serves
OPENVINO_REFERENCE: Final = "reference-openvino.npy"
THUMBNAILS: Final = "thumbnails.zip"  # reference pictures of the classes that have one
PICTURES: Final = "pictures.zip"  # larger ones, several of each class, to compare with
LOOK_ALIKES: Final = "look_alikes.json"  # class indices by class index, the most similar first
_REQUIRED: Final = (MODEL, CLASSES, PREPROCESS)
Packed = Mapping[str, bytes]
"""A bundle as sent to another machine: content by file name, with ``bundle.json``."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened bundle; all its files exist and match their hashes.

    ``manifest`` is ``bundle.json``. ``sha256`` is called ``bundle_sha256`` elsewhere.
    """

    path: Path  # its folder
    manifest: Manifest
    classes: ClassTable  # in output order
    preprocess: Preprocess

    @property
    def sha256(self) -> str:
        return self.manifest.sha256

    @property
    def heads(self) -> Mapping[str, str]:
        return self.manifest.heads

    def has(self, name: str) -> bool:
        return name in self.manifest.files

    def path_of(self, name: str) -> Path:
        """The path of a file after verifying its content; a :class:`BundleError` on failure."""
        return BundleFolder(self.path).find_file(name, self._digest(name))

    def read(self, name: str) -> bytes:
        """Content of a file: exactly the bytes that were verified."""
        return BundleFolder(self.path).read_file(name, self._digest(name))

    def read_object(self, name: str) -> dict[str, Any]:
        """The JSON object in a file; an empty one if the bundle has no such file."""
        if not self.has(name):
            return {}
        try:
            return {**json.loads(self.read(name))}
        except (ValueError, TypeError, RecursionError) as error:
            raise BundleError(
                f"{self.path / name} is damaged: copy, export or calibrate the bundle again"
            ) from error

    def read_thumbnails(self) -> dict[str, bytes]:
        """The JPEG of each class that has one, by class id."""
        if not self.has(THUMBNAILS):
            return {}
        return unpack_thumbnails(self.classes, self.read(THUMBNAILS))

    def open_pictures(self) -> ReferencePictures:
        """The reference pictures of the classes; of none if the bundle has no such file."""
        file = self.path_of(PICTURES) if self.has(PICTURES) else None
        return ReferencePictures(self.classes, file)

    def read_look_alikes(self) -> dict[int, list[int]]:
        """The classes that each class is confused with, by index; empty where nothing was counted.

        Raises:
            BundleError: The file is damaged.
        """
        classes = len(self.classes)
        try:
            content = self.read_object(LOOK_ALIKES).items()
            rows = {int(own): [int(index) for index in row] for own, row in content}
            if not all(0 <= index < classes for own, row in rows.items() for index in (own, *row)):
                raise ValueError("it names classes that do not exist")
        except (ValueError, TypeError, OverflowError) as error:
            raise BundleError(
                f"{LOOK_ALIKES} of {self.path} is damaged ({error}): calibrate the bundle again"
            ) from error
        return rows

    def packed(self) -> Packed:
        """Exactly the files that were verified, without any later changes to the folder."""
        files = {name: self.read(name) for name in self.manifest.files}
        return files | {MANIFEST: self.manifest.to_json()}

    def _digest(self, name: str) -> str:
        if not self.has(name):
            raise BundleError(f"{self.path} has no {name}; it holds {sorted(self.manifest.files)}")
        return self.manifest.files[name]


def open_bundle(path: str | Path) -> Bundle:
    """Open a bundle and verify the hash of each of its files.

    This writes nothing, so the disk may be read-only. Files that ``bundle.json`` does not name are
    ignored.

    Raises:
        BundleError: There is no bundle, a file is missing or damaged, or the schema is newer.
    """
    folder = BundleFolder(path)
    manifest = folder.read_manifest()
    while True:
        try:
            return _verified(folder, manifest)
        except BundleError:
            latest = folder.read_manifest()
            if latest == manifest:
                raise
            manifest = latest  # replaced in the meantime: open the new one


def write_bundle(
    path: str | Path,
    *,
    name: str,
    version: str = "1",
    heads: Mapping[str, str],
    model: bytes | Path,
    classes: ClassTable,
    preprocess: Preprocess,
    files: Files,
) -> Bundle:
    """Write a new bundle, or replace the one at ``path``: all of it or nothing.

    ``path`` is a folder: missing, empty, or a bundle. ``name`` and ``version`` are those of the
    model, ``heads`` holds its ONNX output by head name, and ``files`` all other files by name:
    their content, or the file to copy.

    Raises:
        ValueError: A file name is not plain.
        BundleError: ``path`` is something else, or writing failed.
    """
    folder = Path(path)
    files = {
        MODEL: model,
        CLASSES: classes.to_json().encode(),
        PREPROCESS: preprocess.to_json().encode(),
        **files,
    }
    manifest = Manifest(
        name=name,
        version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        heads=dict(heads),
        files={file: sha256_of(source) for file, source in files.items()},
        schema_version=SCHEMA_VERSION,
    )
    if (folder / MANIFEST).exists():
        with BundleFolder(folder).writing():
            BundleFolder(folder).exchange(manifest, files)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(
            f"{folder} exists and is not a bundle; nothing was written: choose another path"
        )
    else:
        BundleFolder(folder).build(manifest, files)
    return open_bundle(folder)


@contextmanager
def reserved(path: str | Path) -> Iterator[None]:
    """Lock a bundle against other processes while the block prepares a long change.

    Without a bundle at ``path`` nothing is locked. Raises `UsageError` if another process is
    preparing a change, `BundleError` if the folder cannot be written.
    """
    folder = Path(path)
    with ExitStack() as stack:
        if (folder / MANIFEST).exists():
            with BundleFolder(folder).failures_named():
                stack.enter_context(folder_lock(folder))
        yield


def replace_files(
    path: str | Path, files: Mapping[str, bytes], *, without: Collection[str] = ()
) -> Bundle:
    """Replace or add files of a bundle, such as its calibration: all of them or none.

    ``files`` holds their content by name; ``without`` names files to remove.

    Raises:
        ValueError: A name is not plain.
        BundleError: ``path`` is not a valid bundle, or writing failed; the old bundle remains.
    """
    folder = BundleFolder(path)
    folder.read_manifest()  # fails if there is no bundle
    with folder.writing():
        old = open_bundle(path).manifest
        digests = {name: digest for name, digest in old.files.items() if name not in without}
        digests |= {name: sha256_of(content) for name, content in files.items()}
        folder.exchange(replace(old, files=digests), files)
    return open_bundle(path)


def _verified(folder: BundleFolder, manifest: Manifest) -> Bundle:
    for name, digest in manifest.files.items():
        folder.find_file(name, digest)
    if missing := [name for name in _REQUIRED if name not in manifest.files]:
        raise BundleError(
            f"{folder.path / MANIFEST} does not name {missing}: export the bundle again"
        )
    classes, preprocess = (
        folder.read_file(name, manifest.files[name]) for name in (CLASSES, PREPROCESS)
    )
    return Bundle(
        path=folder.path,
        manifest=manifest,
        classes=ClassTable.from_json(classes),
        preprocess=read_json(Preprocess, preprocess, PREPROCESS),
    )


@contextmanager
def unpacked_bundle(files: Packed) -> Iterator[Path]:
    """A temporary folder with the files of a bundle, deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="florilege-") as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        yield folder


def name_classes(
    path: Path, infos: Mapping[str, ClassInfo], pictures: Mapping[str, Path], *, source: str
) -> Bundle:
    """Merge class information into a bundle, whose calibration stays valid.

    ``infos`` is by class id; ids that the bundle lacks are ignored. ``pictures`` holds the picture
    file of each of these classes with a `Thumbnail`. Messages name ``source``, their origin.

    Raises:
        DataError: The bundle has none of the ids, or some pictures, all listed, are unusable.
        UsageError: Another process is changing the bundle.
        BundleError: The bundle is not valid or cannot be written. It is unchanged.
    """
    with reserved(path):
        bundle = open_bundle(path)
        id_of = _ids_of(bundle, infos, source)
        newer = {
            id_: bundle.classes[bundle.classes.index_of[id_]].updated(infos[name])
            for name, id_ in id_of.items()
        }
        files = {id_of[name]: file for name, file in pictures.items() if name in id_of}
        return _with_classes(bundle, newer, files, {}, source=source)


def _ids_of(bundle: Bundle, names: Mapping[str, object], source: str) -> dict[str, str]:
    """The id of each name that is one of a class; `DataError` if none is."""
    id_of = bundle.classes.ids_of(names)
    if not id_of:
        raise DataError(
            f"{source}: none of its class ids, such as {next(iter(names))!r}, is in "
            f"{bundle.path}, which has ids such as {bundle.classes.ids[0]!r}"
        )
    return id_of


def set_pictures(
    path: Path, pictures: Mapping[str, Sequence[PictureFile]], *, source: str, most: int
) -> Bundle:
    """Give a bundle reference pictures, at most so many of each class, in place of earlier ones.

    ``pictures`` are by class id; ids that the bundle lacks are ignored. The first picture of a
    class is also its thumbnail. Messages name ``source``; the calibration stays valid.

    Raises:
        DataError: The bundle has none of the ids, or some pictures, all listed, are unusable.
        UsageError: Another process is changing the bundle.
        BundleError: The bundle is not valid or cannot be written. It is unchanged.
    """
    with reserved(path):
        bundle = open_bundle(path)
        id_of = _ids_of(bundle, pictures, source)
        rows = {id_of[name]: in_turn(pictures[name])[:most] for name in id_of}
        packed = pack_pictures(
            source, {bundle.classes.index_of[id_]: row for id_, row in rows.items()}
        )
        newer = {
            item.id: replace(item, thumbnail=rows[item.id][0].thumbnail)
            for item in bundle.classes
            if item.id in rows
        }
        first = {id_: row[0].path for id_, row in rows.items()}
        return _with_classes(bundle, newer, first, {PICTURES: packed}, source=source)


def _with_classes(
    bundle: Bundle,
    newer: Mapping[str, ClassInfo],
    pictures: Mapping[str, Path],
    files: Mapping[str, bytes],
    *,
    source: str,
) -> Bundle:
    """Write newer values of classes, thumbnails of picture files, both by class id, and files."""
    thumbnails = read_thumbnails(source, pictures)
    classes = ClassTable(tuple(newer.get(item.id, item) for item in bundle.classes))
    files = {CLASSES: classes.to_json().encode(), **files}
    if thumbnails:
        files[THUMBNAILS] = pack_thumbnails(classes, bundle.read_thumbnails() | thumbnails)
    return replace_files(bundle.path, files)

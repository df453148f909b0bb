"""Oxford Flowers 102: download and verify the photos, and write a manifest of them.

M.-E. Nilsback and A. Zisserman, "Automated flower classification over a large number of classes",
ICVGIP 2008. The published train and val hold ten photos of each species, but the published test is
as unbalanced as the web. Set sizes on val and test would differ, so new splits are drawn.
"""

import hashlib
import shutil
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.request import Request, urlopen

from florilege.data.manifests import draw_splits
from florilege.errors import DataError
from florilege.tables import write_table
from florilege.terminal import progress

HOST: Final = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
MANIFEST: Final = "photos.csv"
_PHOTOS: Final = "jpg"  # the folder inside the archive
_SHARE: Final = 0.2  # of the photos for val, and the same share for test
_CHUNK: Final = 2**20
_SECONDS: Final = 30  # to wait for an answer


@dataclass(frozen=True)
class _RemoteFile:
    """A published file: its name, size in bytes and MD5, as in torchvision."""

    name: str
    size: int
    md5: str


ARCHIVE: Final = _RemoteFile("102flowers.tgz", 344_862_509, "52808999861908f626f3c1f4e79d11fa")
LABELS: Final = _RemoteFile("imagelabels.mat", 502, "e0620be6f572b9609742df49c70aed4d")


def fetch_flowers102(folder: Path, names: Sequence[str]) -> Path:
    """Download what ``folder`` lacks, and return the manifest of the photos in it.

    ``names`` holds the common name of each class, in the order of the labels.

    Raises:
        DataError: A file cannot be downloaded or is damaged, or the disk is full. A second call
            continues.
    """
    manifest = folder / MANIFEST
    if manifest.is_file():
        return manifest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        labels = _read_labels(_download(LABELS, folder))
        if not (folder / _PHOTOS).is_dir():
            archive = _download(ARCHIVE, folder)
            with TemporaryDirectory(dir=folder) as partial:  # all photos or none
                shutil.unpack_archive(archive, partial, filter="data")
                (Path(partial) / _PHOTOS).rename(folder / _PHOTOS)
            archive.unlink()
        paths = [f"{_PHOTOS}/image_{number:05}.jpg" for number in range(1, len(labels) + 1)]
        class_ids = [names[label - 1] for label in labels]
        splits = draw_splits(class_ids, paths, val=_SHARE, test=_SHARE, seed=0)
        columns = {"path": paths, "class_id": class_ids, "split": splits}
        write_table(manifest, columns | {"common_name:en": class_ids})
    except OSError as error:
        raise DataError(f"{folder}: {error}; repeat the command to continue") from error
    return manifest


def _download(file: _RemoteFile, folder: Path) -> Path:
    """Download a file into ``folder`` and verify it; an interrupted download is continued."""
    path, part = folder / file.name, folder / f"{file.name}.part"
    address = f"{HOST}/{file.name}"
    if not path.exists():
        try:
            _receive(address, part, file)
        except (OSError, HTTPException) as error:
            raise DataError(
                f"{address} could not be downloaded: {error}. Repeat the command to continue, or "
                f"save the file as {path} yourself; `florilege demo` alone needs no network"
            ) from error
        part.replace(path)
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "md5").hexdigest()
    if digest != file.md5:
        path.unlink()
        raise DataError(
            f"{path} was damaged and is removed: its MD5 is {digest} instead of {file.md5}. Repeat "
            "the command to download it again"
        )
    return path


def _receive(address: str, part: Path, file: _RemoteFile) -> None:
    """Append the missing rest of a remote file to ``part``."""
    start = part.stat().st_size if part.exists() else 0
    if start >= file.size:
        return
    request = Request(address, headers={"Range": f"bytes={start}-"})
    with urlopen(request, timeout=_SECONDS) as response, part.open("ab") as output:
        if response.status != HTTPStatus.PARTIAL_CONTENT:  # the server sends all of it
            start = output.truncate(0)
        if response.length != file.size - start:  # such as the sign-in page of a network
            raise OSError(f"the server sends another file, not the one of {file.size:,} bytes")
        with progress(-(-response.length // _CHUNK), f"{file.name}, MiB") as advance:
            while chunk := response.read(_CHUNK):
                output.write(chunk)
                advance()
    if part.stat().st_size < file.size:
        raise OSError("the connection ended early")


def _read_labels(path: Path) -> list[int]:
    """The label of each photo, from 1: the only array of a compressed MATLAB file, version 5."""
    element = zlib.decompress(path.read_bytes()[136:])  # after the header and its type and size
    # Type and size of the element, flags, dimensions and name take 56 bytes; the labels are uint8.
    _, count = struct.unpack_from("<II", element, 56)
    return list(element[64 : 64 + count])

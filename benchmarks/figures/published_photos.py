"""The photos of the sets in `docs/results.md`, taken from what their authors publish.

A list in ``photo_lists`` names the photos of a set in their order, with their groups; other
published photos are left out.
"""

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final

from PIL import Image

from florilege.errors import DataError, first

LISTS: Final = Path(__file__).parent / "photo_lists"
NESTED: Final = "101_ObjectCategories.tar.gz"  # inside caltech-101.zip
CIFAR: Final = "cifar-100"
LICENCE: Final = "LICENSE"  # copied where there is one

Read = Callable[[], bytes]


@dataclass(frozen=True, kw_only=True)
class Original:
    """A published set of photos.

    Attributes:
        place: What it is called, where it is to be had, its size and its licence.
        key: What tells a published photo from all others, by its path; None for other files.
        listed_key: The same by the path in our list.
        convert: Makes the photo of our set from the published one; it is also told the split.
    """

    place: str
    key: Callable[[PurePosixPath], str | None]
    listed_key: Callable[[PurePosixPath], str]
    convert: Callable[[bytes, str], bytes]


def convert_all(name: str, original: Path | None, targets: Mapping[str, str], out: Path) -> None:
    """Write published files below ``out``: each key of ``targets`` to the path that it names.

    Raises:
        DataError: The original is not there, is damaged, or lacks some of them.
    """
    place = f"{name} is made from {ORIGINALS[name].place}"
    if original is None or not original.exists():
        missing = "name the original" if original is None else f"{original} is not there"
        raise DataError(f"{missing}: {place}")
    missing_keys = dict(targets)
    try:
        for path, read in _files(original):
            key = ORIGINALS[name].key(path)
            if key is not None and key in missing_keys:
                target = missing_keys.pop(key)
                (out / target).parent.mkdir(parents=True, exist_ok=True)
                split = target.partition("/")[0]
                (out / target).write_bytes(ORIGINALS[name].convert(read(), split))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f"{original} cannot be read ({error}): {place}") from error
    missing_keys.pop(LICENCE, None)
    if missing_keys:
        raise DataError(
            f"{original} lacks {len(missing_keys):,} of {len(targets):,} files, such as "
            f"{first(sorted(missing_keys), limit=2)}: {place}"
        )


def _files(original: Path) -> Iterator[tuple[PurePosixPath, Read]]:
    """Every file in a folder or an archive: its path and how it is read, now or never."""
    if original.is_dir():
        root = original.resolve()
        for file in sorted(root.rglob("*")):
            if file.name == NESTED:
                yield from _files(file)
            elif file.is_file():
                yield PurePosixPath(file.relative_to(root.parent)), file.read_bytes
    elif original.suffix == ".zip":
        with zipfile.ZipFile(original) as archive:
            for name in archive.namelist():
                if PurePosixPath(name).name == NESTED:
                    with archive.open(name) as inner:
                        yield from _members(inner)
                else:
                    yield PurePosixPath(name), partial(archive.read, name)
    else:
        with original.open("rb") as stream:
            yield from _members(stream)


def _members(file: IO[bytes]) -> Iterator[tuple[PurePosixPath, Read]]:
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                yield PurePosixPath(member.name), content.read


def _caltech_key(path: PurePosixPath) -> str | None:
    """Class and name: every class counts its photos from one."""
    return _class_and_name(path) if path.parent.parent.name == "101_ObjectCategories" else None


def _class_and_name(path: PurePosixPath) -> str:
    return f"{path.parent.name}/{path.name}"


def _grocery_key(path: PurePosixPath) -> str | None:
    """Part and name: each part counts the photos of a class from one."""
    parts = path.parts
    if len(parts) == 2 and path.name == LICENCE:
        return LICENCE
    if "dataset" not in parts[:-2] or path.suffix != ".jpg":
        return None
    return f"{parts[parts.index('dataset') + 1]}/{path.name}"


def _listed_grocery_key(path: PurePosixPath) -> str:
    """``train/CLASS/NAME`` is of the part train, ``ood/train/NAME`` too."""
    split, part, *_ = path.parts
    return f"{part if split == 'ood' else split}/{path.name}"


def _cifar_key(path: PurePosixPath) -> str | None:
    return path.name if path.parent.name == "cifar-100-python" else None


def _squeezed(photo: bytes, split: str) -> bytes:
    """96 x 96 pixels, whatever the shape was."""
    return _resized(photo, lambda width, height: (96, 96), quality=88)


def _smaller(photo: bytes, split: str) -> bytes:
    """Of training and validation a short side of 224 pixels; test photos stay as they are."""
    if split not in ("train", "val"):
        return photo

    def short_side(width: int, height: int) -> tuple[int, int]:
        share = 224 / min(width, height)
        return round(width * share), round(height * share)

    return _resized(photo, short_side, quality=85)


def _resized(photo: bytes, size: Callable[[int, int], tuple[int, int]], *, quality: int) -> bytes:
    with Image.open(io.BytesIO(photo)) as opened:
        picture = opened.convert("RGB")
    buffer = io.BytesIO()
    resized = picture.resize(size(*picture.size), Image.Resampling.LANCZOS)
    resized.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


ORIGINALS: Final[Mapping[str, Original]] = {
    "caltech101-96": Original(
        place="caltech-101.zip, or 101_ObjectCategories.tar.gz in it, or the folder that this "
        "unpacks to: https://data.caltech.edu/records/mzrjq-6wc02, 137 MB, CC BY 4.0 (Li, "
        "Andreeto, Ranzato and Perona 2022, doi 10.22002/D1.20086)",
        key=_caltech_key,
        listed_key=_class_and_name,
        convert=_squeezed,
    ),
    "grocery-plants": Original(
        place="a checkout of the Grocery Store Dataset, or its zip: git clone "
        "https://github.com/marcusklasson/GroceryStoreDataset, 130 MB, MIT (Klasson, Zhang and "
        "Kjellström, WACV 2019)",
        key=_grocery_key,
        listed_key=_listed_grocery_key,
        convert=_smaller,
    ),
    CIFAR: Original(
        place="cifar-100-python.tar.gz, or the folder that it unpacks to: "
        "https://www.cs.toronto.edu/~kriz/cifar.html, 169 MB; its authors state no licence",
        key=_cifar_key,
        listed_key=str,
        convert=lambda content, split: content,
    ),
}

"""The data sets of the papers: both versions of Pl@ntNet-300K, and CIFAR-100.

Photos of Pl@ntNet-300K are ``<split>/<species>/<photo>.jpg`` in a folder ``images``, in
``images/images``, or beside the tables. In version 1.1, folders are named by species id and the
tables are JSON. In version 2 (February 2026), folders are 0000 to 0999 and the tables are CSV, as
its README describes. One table gives the observation of each photo, so that photos of one plant
stay together. The other names the species. Neither holds GBIF keys.

CIFAR-100 is the standard archive for Python: a folder with the pickles train, test and meta.
Reading a pickle can run code. The unpickler used here creates only NumPy arrays and plain values,
and refuses everything else.
"""

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.data.flora import encode_png
from florilege.data.layouts import with_class_file
from florilege.data.layouts.folder import is_folder_dataset, list_folder
from florilege.data.options import shuffled
from florilege.data.records import Listing, Records, read_json
from florilege.data.sources import DataLayout, OwnPictures
from florilege.errors import DataError, count_of
from florilege.models.classes import ClassInfo, without_author
from florilege.tables import demand_columns, read_table

METADATA: Final = "plantnet300K_metadata.json"
# The second is in old copies.
NAMES: Final = ("plantnet300K_species_id_2_name.json", "plantnet300K_species_names.json")
PLANTNET_PLACE: Final = "Pl@ntNet-300K version 1.1 is at Zenodo, DOI 10.5281/zenodo.5645731"

METADATA_2: Final = "plantnet300K_metadata.csv"
SPECIES_2: Final = "species_metadata.csv"
_PLACE_2: Final = "Pl@ntNet-300K version 2 is at Zenodo, DOI 10.5281/zenodo.10419064"

# Photos by name without suffix: path, and observation or "". Species by id: name without authors,
# name with authors, genus, family.
_Tables = tuple[Mapping[str, tuple[str, str]], Mapping[str, Sequence[str]]]


def _is_plantnet(root: Path) -> bool:
    """Whether ``root`` holds a Pl@ntNet table; an ImageFolder may have its own ``SPECIES_2``."""
    has_table = any((root / name).is_file() for name in (METADATA, METADATA_2, *NAMES))
    return has_table or ((root / SPECIES_2).is_file() and not is_folder_dataset(root))


def _plantnet_root(path: Path) -> Path | None:
    """The folder with the tables: ``path``, or one above it if ``path`` is the photo folder."""
    folders = [path]
    for folder in (path.resolve(), path.resolve().parent):
        if folder.name != "images":
            break
        folders.append(folder.parent)
    return next(filter(_is_plantnet, folders), None)


def _list_plantnet(path: Path, source: str) -> Listing | None:
    """List the existing photos with their observations and species names.

    ``path`` is the folder of the tables, or the photo folder inside it. If there are no tables, the
    result is None. A photo that the tables lack is ``unlisted`` and counts as its own observation.
    A photo that only the tables have is ``missing``. ``classes.csv`` beside the tables may add GBIF
    keys and names. Raises `DataError` if there are no photos, or a table is missing or damaged.
    """
    root = _plantnet_root(path)
    if root is None:
        return None
    files, place, read = _version(root, source)
    photos, species = read(root / files[0], root / files[1])
    places = (root / "images", root / "images" / "images", root)
    folder = next(filter(is_folder_dataset, places), None)
    if folder is None:
        raise DataError(
            f"{source} has {files[0]} but no folder 'images' with photos in train, val and test; "
            f"{place}"
        )
    listing = list_folder(folder, source)
    splits = listing.splits
    stems = set(map(_stem, chain.from_iterable(records.names for records in splits.values())))
    listing = replace(
        listing,
        splits={name: _with_observations(records, photos) for name, records in splits.items()},
        unlisted=sorted(stems - photos.keys()),
        class_infos=_class_infos(species),
        ignored=[name for name in listing.ignored if folder != root or name not in files],
        missing=[path for name, (path, _) in photos.items() if name not in stems],
        published=place,
    )
    return with_class_file(listing, root)


def _version(
    root: Path, source: str
) -> tuple[tuple[str, str], str, Callable[[Path, Path], _Tables]]:
    """The tables of the version in ``root``, where to download it, and what reads the tables."""
    names = next((name for name in NAMES if (root / name).is_file()), NAMES[0])
    files, place, read = (METADATA, names), PLANTNET_PLACE, _read_1
    is_version_2 = (root / METADATA_2).is_file() or (root / SPECIES_2).is_file()
    if is_version_2 and not (root / METADATA).is_file():
        files, place, read = (METADATA_2, SPECIES_2), _PLACE_2, _read_2
    if missing := [name for name in files if not (root / name).is_file()]:
        (present,) = set(files) - set(missing)
        raise DataError(f"{source} has {present} but no {missing[0]}; {place}")
    return files, place, read


def _stem(name: str) -> str:
    """The name of a photo in the tables: without folders and suffix."""
    return PurePath(name).stem


def _with_observations(records: Records, photos: Mapping[str, tuple[str, str]]) -> Records:
    observations = [photos.get(_stem(name), ("", ""))[1] or name for name in records.names]
    return replace(records, observations=observations)


def _read_1(photo_table: Path, name_table: Path) -> _Tables:
    photos = {}
    for photo, entry in _read_object(photo_table).items():
        if isinstance(entry, dict):
            path = f"{entry.get('split')}/{entry.get('species_id')}/{photo}.jpg"
            observation = entry.get("obs_id")
            photos[photo] = (path, "" if observation is None else str(observation).strip())
    rows = {}
    for class_id, text in _read_object(name_table).items():
        full = str(text).replace("_", " ").strip()
        rows[class_id] = (without_author(full), full, full.split(" ")[0], "")
    return photos, rows


def _read_2(photo_table: Path, name_table: Path) -> _Tables:
    columns = ("PN_hash", "species_id", "PN_observation_id", "split")
    photos = {
        _stem(photo): (f"{split}/{_folder(species)}/{photo}.jpg", observation.strip())
        for photo, species, observation, split in _rows(photo_table, columns)
    }
    names = ("species_id", "species", "full_species", "genus", "family")
    rows = {
        _folder(species): tuple(map(str.strip, cells))
        for species, *cells in _rows(name_table, names)
    }
    return photos, rows


def _folder(species_id: str) -> str:
    """The folder of a species: its number with four digits."""
    return species_id.strip().zfill(4)


def _class_infos(rows: Mapping[str, Sequence[str]]) -> dict[str, ClassInfo]:
    """The species by id, from rows of a name without and with authors, a genus and a family.

    Authors are left out, except where only they tell names apart.
    """
    uses = Counter(short for short, *_ in rows.values())
    return {
        class_id: ClassInfo(
            id=class_id,
            scientific_name=short if uses[short] == 1 else full,
            genus=genus or None,
            family=family or None,
        )
        for class_id, (short, full, genus, family) in rows.items()
    }


def _rows(path: Path, columns: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """The cells of these columns, row by row."""
    table = read_table(path)
    demand_columns(str(path), table, columns)
    return zip(*(table[name] for name in columns), strict=True)


def _read_object(path: Path) -> Mapping[str, Any]:
    content = read_json(path, PLANTNET_PLACE)
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content


_PLANTNET: Final = DataLayout(name="a Pl@ntNet-300K folder", list=_list_plantnet)


_FOLDER = "cifar-100-python"
_FILES = ("train", "test", "meta")
CIFAR_PLACE = "cifar-100-python.tar.gz is at www.cs.toronto.edu/~kriz/cifar.html"
_SIDE = 32
# Red, green and blue, from 0 to 1, over the 50,000 pictures of the file train.
_MEAN = (0.5071, 0.4865, 0.4409)
_STD = (0.2673, 0.2564, 0.2762)
_VAL_SHARE = 10  # one train picture in ten of each class becomes val, which leaves 45,000 and 5,000
_VAL_SEED = 0


def _find_cifar100(root: Path) -> Path | None:
    """The folder with the three pickles: ``root``, or the folder of the archive inside it.

    Raises `DataError` if a folder named as in the archive lacks one of them.
    """
    for folder in (root, root / _FOLDER):
        lacking = [name for name in _FILES if not (folder / name).is_file()]
        if not lacking:
            return folder
        if folder.name == _FOLDER and folder.is_dir():
            raise DataError(f"{folder} lacks {' and '.join(lacking)} of CIFAR-100; {CIFAR_PLACE}")
    return None


def _pictures_of_cifar100(path: Path) -> OwnPictures | None:
    """The side and the colours of its pictures; None for another folder."""
    return OwnPictures(_SIDE, _MEAN, _STD) if _find_cifar100(path) else None


def _list_cifar100(path: Path, source: str) -> Listing | None:
    """List the archive at or in ``path``, or None; val is a fixed tenth of each class of train.

    Raises `DataError` if a file is damaged, or holds anything but arrays and plain values.
    """
    root = _find_cifar100(path)
    if root is None:
        return None
    meta = _load(root / "meta")
    names = _names(meta, "fine_label_names")
    train_file, test_file = _load(root / "train"), _load(root / "test")
    train, test = (_labels(file, "fine_labels", len(names)) for file in (train_file, test_file))
    val = _val_rows(train)
    others = np.setdiff1d(np.arange(len(train)), val)
    groups = defaultdict[str, list[str]](list)
    if "coarse_labels" in train_file.fields:
        group_names = _names(meta, "coarse_label_names")
        coarse = _labels(train_file, "coarse_labels", len(group_names))
        for label, group in sorted(set(zip(train, coarse, strict=True))):
            groups[names[label]].append(group_names[group])
    return Listing(
        source=source,
        splits={
            "train": _records(root / "train", others, train, names),
            "val": _records(root / "train", val, train, names),
            "test": _records(root / "test", np.arange(len(test)), test, names),
        },
        class_infos={
            name: ClassInfo(id=name, scientific_name=name.replace("_", " ")) for name in names
        },
        order=names,
        groups=groups,
        published=CIFAR_PLACE,
    )


def _val_rows(labels: Sequence[int]) -> NDArray[np.int64]:
    """Rows of the train file that become val, in order, int64."""
    rows_of = defaultdict[int, list[str]](list)
    for row, label in enumerate(labels):
        rows_of[label].append(str(row))
    samples = (shuffled(rows, _VAL_SEED)[: len(rows) // _VAL_SHARE] for rows in rows_of.values())
    return np.array(sorted(int(row) for rows in samples for row in rows), dtype=np.int64)


def _read(path: Path, rows: NDArray[np.int64], row: int) -> bytes:
    """A picture of the split with these ``rows``; a process loads the pixels at the first one."""
    pixels = _pixels(path)[rows[row]]  # three planes of 32 x 32
    return encode_png(pixels.reshape(3, _SIDE, _SIDE).transpose(1, 2, 0))


def _records(
    path: Path, rows: NDArray[np.int64], labels: Sequence[int], names: Sequence[str]
) -> Records:
    return Records(
        class_ids=[names[labels[row]] for row in rows],
        names=[f"{path.name}/{row:05d}" for row in rows],
        read=partial(_read, path, rows),
    )


@dataclass(frozen=True)
class _Pickle:
    """One file of the archive."""

    path: Path
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.fields:
            raise DataError(f"{self.path} is not a CIFAR-100 file: it has no {name!r}")
        return self.fields[name]


def _names(file: _Pickle, field: str) -> list[str]:
    names = file[field]
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(
            f"{file.path} is not a CIFAR-100 meta file: its class names are not a list of strings"
        )
    return [name.decode() if isinstance(name, bytes) else name for name in names]


def _labels(file: _Pickle, field: str, classes: int) -> list[int]:
    labels, pictures, path = file[field], len(_pixels(file.path)), file.path
    if not isinstance(labels, list) or not all(
        isinstance(label, int) and 0 <= label < classes for label in labels
    ):
        raise DataError(f"{path}: labels must be whole numbers in [0, {classes - 1}]")
    if len(labels) != pictures:
        raise DataError(
            f"{path}: {count_of(len(labels), 'label')} for "
            f"{count_of(pictures, 'picture')}; unpack the archive again"
        )
    return labels


# Train and test, of 154 and 31 MB.
@lru_cache(maxsize=2)
def _pixels(path: Path) -> NDArray[np.uint8]:
    pixels, values = _load(path)["data"], 3 * _SIDE * _SIDE
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (values,)
    ):
        raise DataError(f"{path}: pictures must be bytes of shape (rows, {values})")
    return pixels


def _load(path: Path) -> _Pickle:
    try:
        with path.open("rb") as file:
            # Python 2 wrote it, so its keys and names are bytes.
            content = _PlainUnpickler(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises almost any exception
        raise DataError(f"{path} is damaged or not a CIFAR-100 file: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a CIFAR-100 file: it holds a {type(content).__name__}")
    fields = {key.decode() if isinstance(key, bytes) else key: content[key] for key in content}
    return _Pickle(path, fields)


def _latin1(text: str, encoding: str) -> bytes:
    """``_codecs.encode``, which old pickle protocols need for the bytes of Python 3."""
    if encoding not in {"latin1", b"latin1"}:
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not allowed")
    return text.encode("latin1")


_ARRAY = np.empty(0, dtype=np.uint8)
# The last two are functions that NumPy does not export: what an array of it names when it is
# pickled.
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    ("numpy._core.multiarray", "_reconstruct"): _ARRAY.__reduce__()[0],
    ("numpy._core.numeric", "_frombuffer"): _ARRAY.__reduce_ex__(5)[0],
}


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles arrays, numbers, text, lists and dictionaries; refuses anything else."""

    def find_class(self, module: str, name: str) -> Any:
        # Before NumPy 2 these modules were in numpy.core.
        allowed = _ALLOWED.get((module.replace("numpy.core.", "numpy._core."), name))
        if allowed is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file")
        return allowed


_CIFAR: Final = DataLayout(
    name="a cifar-100-python folder", list=_list_cifar100, pictures=_pictures_of_cifar100
)

LAYOUTS: Final = (_PLANTNET, _CIFAR)

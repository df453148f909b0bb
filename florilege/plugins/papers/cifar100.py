"""The standard CIFAR-100 archive for Python: a folder with the pickles train, test and meta.

Reading a pickle can run code. The unpickler used here creates only NumPy arrays and plain values,
and refuses everything else.
"""

import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.data.flora import encode_png
from florilege.data.options import shuffled
from florilege.data.records import Listing, Records
from florilege.data.sources import DataLayout, OwnPictures
from florilege.errors import DataError, count_of
from florilege.models.classes import ClassInfo

FOLDER = "cifar-100-python"
FILES = ("train", "test", "meta")
PLACE = "cifar-100-python.tar.gz is at www.cs.toronto.edu/~kriz/cifar.html"
SIDE = 32
# Red, green and blue, from 0 to 1, over the 50,000 pictures of the file train.
MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)
_VAL_SHARE = 10  # one train picture in ten of each class becomes val, which leaves 45,000 and 5,000
_VAL_SEED = 0


def _find_cifar100(root: Path) -> Path | None:
    """The folder with the three pickles: ``root``, or the folder of the archive inside it.

    Raises `DataError` if a folder named as in the archive lacks one of them.
    """
    for folder in (root, root / FOLDER):
        lacking = [name for name in FILES if not (folder / name).is_file()]
        if not lacking:
            return folder
        if folder.name == FOLDER and folder.is_dir():
            raise DataError(f"{folder} lacks {' and '.join(lacking)} of CIFAR-100; {PLACE}")
    return None


def _pictures_of_cifar100(path: Path) -> OwnPictures | None:
    """The side and the colours of its pictures; None for another folder."""
    return OwnPictures(SIDE, MEAN, STD) if _find_cifar100(path) else None


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
        published=PLACE,
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
    return encode_png(pixels.reshape(3, SIDE, SIDE).transpose(1, 2, 0))


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


@lru_cache(maxsize=2)
def _pixels(path: Path) -> NDArray[np.uint8]:
    pixels, values = _load(path)["data"], 3 * SIDE * SIDE
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
        allowed = _ALLOWED.get((module.replace("numpy.core.", "numpy._core."), name))
        if allowed is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file")
        return allowed


LAYOUT: Final = DataLayout(
    name="a cifar-100-python folder", list=_list_cifar100, pictures=_pictures_of_cifar100
)

"""Lists of classes, such as the species of a region, to which an answer can be restricted.

A list file holds one class id per line in UTF-8. A ``#`` at the start of a line or after a space
starts a comment.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from florilege.errors import DataError, UsageError, did_you_mean, nearest, nearest_paths, repeated

if TYPE_CHECKING:  # the class table needs pydantic, the records of calibrations do not
    from florilege.models.classes import ClassTable

_COMMENT = re.compile(r"(^|\s)#.*")
LONGEST_NAME = 100
NEAR_IDS_FOR = 20  # unknown ids that get suggestions, because the search is slow


@dataclass(frozen=True, kw_only=True)
class RegionList:
    """Some of the classes of a model."""

    name: str  # of the list in requests
    classes: tuple[int, ...]  # output indices of its classes, ascending, at least one

    def __post_init__(self) -> None:
        if not _is_plain(self.name):
            raise ValueError(f"{self.name[:LONGEST_NAME]!r} cannot be the name of a list")
        ascending = list(self.classes) == sorted(set(self.classes))
        if not self.classes or self.classes[0] < 0 or not ascending:
            raise ValueError(f"list {self.name!r} must hold distinct classes in ascending order")


def _is_plain(name: str) -> bool:
    """Whether a list may have this name, which becomes that of a file when a bundle is exported."""
    printable = name.isprintable() and name == name.strip() and 1 <= len(name) <= LONGEST_NAME
    return printable and "/" not in name and not name.startswith(".")


def _read_list(name: str, path: Path, classes: "ClassTable") -> RegionList:
    if not _is_plain(name):
        raise DataError(
            f"{path}: a list cannot be named {name[:LONGEST_NAME]!r}: use 1 to {LONGEST_NAME} "
            "printable characters without a slash, a leading dot, or spaces around them"
        )
    ids = _ids(path)
    if not ids:
        raise DataError(f"{path} holds no class id: write one per line")
    id_of = classes.ids_of(ids)
    if twice := repeated(id_of.get(name, name) for name in ids):
        raise DataError(f"{path}: these class ids appear twice: {', '.join(twice)}")
    if unknown := [name for name in ids if name not in id_of]:
        raise DataError(
            f"{path}: {len(unknown)} of {len(ids)} class ids are not among the {len(classes):,} of "
            f"the model; correct or remove them:{_with_near_names(unknown, classes)}"
        )
    indices = sorted(classes.index_of[id_] for id_ in id_of.values())
    return RegionList(name=name, classes=tuple(indices))


def read_lists(words: Iterable[str], classes: "ClassTable") -> tuple[RegionList, ...]:
    """Read the lists that `list_files` finds for each of ``words``, of a model with ``classes``.

    Raises:
        DataError: As `list_files`; or a file is unreadable, is not UTF-8, or holds no id, a
            repeated id or ids that the model lacks; or a name is invalid.
        UsageError: Two lists have the same name.
    """
    lists = [_read_list(*named, classes) for word in words for named in list_files(word)]
    if twice := repeated(region.name for region in lists):
        raise UsageError(f"--list: two lists are named {', '.join(twice)}; rename one")
    return tuple(lists)


def list_files(word: str) -> list[tuple[str, Path]]:
    """The list files that ``[NAME=]FILE`` or a folder names, each with its name.

    A list without a name is named after its file, without the suffix. Hidden files are skipped.
    Raises `DataError` if a folder is unreadable or holds no file.
    """
    name, separator, path = word.partition("=")
    if separator:
        return [(name, Path(path))]
    folder = Path(word)
    if not folder.is_dir():
        return [(folder.stem, folder)]
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    if not files:
        raise DataError(f"{folder} holds no list file: add one for each region")
    return [(file.stem, file) for file in files]


def _ids(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        near = did_you_mean(nearest_paths(path))
        raise DataError(f"no list and no file is named {path}{near}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path} is not UTF-8 in line {line}: save it as UTF-8") from error
    lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _with_near_names(unknown: list[str], classes: "ClassTable") -> str:
    """A line for each unknown id, with similar known ids for the first `NEAR_IDS_FOR`."""
    id_of = {info.scientific_name: info.id for info in classes}
    text = ""
    for row, unknown_id in enumerate(unknown):
        candidates = [*classes.ids, *id_of] if row < NEAR_IDS_FOR else []
        near = dict.fromkeys(id_of.get(name, name) for name in nearest(unknown_id, candidates))
        text += f"\n  {unknown_id}" + (f" (near: {', '.join(near)})" if near else "")
    return text
